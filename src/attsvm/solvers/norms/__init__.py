"""One solver for each family of norms, put together from methods and proofs."""
