"""Sweeps and searches: many trials from one command, resumed by the same command. Imports no torch until one trains."""
