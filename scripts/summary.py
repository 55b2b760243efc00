"""Print the layers of a model: the same as ``vitrine summary``; see --help."""

from vitrine.cli.summary import main

if __name__ == "__main__":
    main()
