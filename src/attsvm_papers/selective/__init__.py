"""Selective Attention (Zhang, Chang, Li, Roy-Chowdhury, Chen, Oymak)."""
