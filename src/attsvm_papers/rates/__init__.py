"""Implicit Bias and Fast Convergence Rates for Self-attention (Vasudeva, Deora,
Thrampoulidis).
"""
