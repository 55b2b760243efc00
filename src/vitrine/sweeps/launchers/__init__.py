"""Ways to run the trials of a sweep."""
