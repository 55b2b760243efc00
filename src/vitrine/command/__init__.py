"""From overrides on the command line to checked configurations. Imports no torch."""
