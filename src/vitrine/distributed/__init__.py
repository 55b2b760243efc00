"""Devices, and the processes that train together."""
