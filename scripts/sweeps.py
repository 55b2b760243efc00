"""The progress of sweeps: the same as ``vitrine sweeps``; see --help."""

from vitrine.cli.sweeps import main

if __name__ == "__main__":
    main()
