"""Optimizing Attention with Mirror Descent (Julistiono, Ataee Tarzanagh, Azizan)."""
