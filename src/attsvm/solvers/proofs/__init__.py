"""Proofs from the caller's data: gaps, residuals, Farkas certificates, ranks, uniqueness."""
