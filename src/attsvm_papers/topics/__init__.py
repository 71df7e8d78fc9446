"""Dynamics of Spontaneous Topic Changes in Next Token Prediction with Self-Attention (Jia,
Diaz-Rodriguez).
"""
