"""The programme that a solver works on: scale, span, kernels, and which solver takes it."""
