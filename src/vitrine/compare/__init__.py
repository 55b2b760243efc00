"""From runs to findings."""
