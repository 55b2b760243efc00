"""Launchers: how the trials of a sweep are trained, several at a time."""
