"""How Transformers Learn Regular Language Recognition (Huang, Liang, Yang)."""
