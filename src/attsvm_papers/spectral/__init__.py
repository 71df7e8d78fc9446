"""Implicit Bias of Spectral Descent and Muon."""
