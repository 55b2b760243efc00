"""Comparisons of finished runs: tables, statistics, findings and a report."""
