"""Which margin an optimiser maximises (a study of this project)."""
