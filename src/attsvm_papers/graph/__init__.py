"""Mechanics of Next Token Prediction with Self-Attention (Li, Huang, Ildiz, Rawat, Oymak)."""
