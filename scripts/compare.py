"""Which runs are better, and how sure that is: the same as ``vitrine compare``; see --help."""

from vitrine.cli.compare import main

if __name__ == "__main__":
    main()
