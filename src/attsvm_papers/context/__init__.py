"""Facts that a model answers although nobody told it: which norm does it."""
