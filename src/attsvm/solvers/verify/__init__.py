"""The same programme through solvers of others, to check ours."""
