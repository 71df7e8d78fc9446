"""Wrong labels that are fitted by heart: when that spoils a head of attention, and when not."""
