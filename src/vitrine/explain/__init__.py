"""The page of one run: its results, and what its model has learned."""
