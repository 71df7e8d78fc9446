"""Max-Margin Token Selection in Attention Mechanism (Tarzanagh, Li, Zhang, Oymak)."""
