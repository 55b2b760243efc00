"""Compare runs: the same as ``vitrine compare``; see --help."""

from vitrine.cli.compare import main

if __name__ == "__main__":
    main()
