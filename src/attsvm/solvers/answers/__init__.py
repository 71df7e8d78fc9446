"""What a solver is asked and what it hands back."""
