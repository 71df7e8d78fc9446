"""From Self-Attention to Markov Models (Ildiz, Huang, Li, Rawat, Oymak)."""
