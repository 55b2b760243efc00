"""Pack a data set into a few files of a chosen size: the same as ``vitrine pack``; see --help."""

from vitrine.cli.pack import main

if __name__ == "__main__":
    main()
