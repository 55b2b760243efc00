"""A live view of a sweep or a run: the same as ``vitrine watch``; see --help."""

from vitrine.cli.watch import main

if __name__ == "__main__":
    main()
