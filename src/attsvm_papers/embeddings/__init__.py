"""Attention with Trained Embeddings Provably Selects Important Tokens (Wu et al.)."""
