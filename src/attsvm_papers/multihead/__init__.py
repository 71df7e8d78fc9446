"""Several heads, layers over layers, and starts and noise of released and of real training."""
