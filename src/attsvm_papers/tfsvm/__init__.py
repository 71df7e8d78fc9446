"""Transformers as Support Vector Machines (Tarzanagh, Li, Thrampoulidis, Oymak)."""
