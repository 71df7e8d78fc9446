"""What heads of trained transformers have to do with support vector machines."""
