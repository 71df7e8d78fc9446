"""Whether an optimiser leaves attention that survives pruning."""
