"""Many programmes at once, and programmes of very many rows."""
