"""Export a trained model to run without vitrine: the same as ``vitrine export``; see --help."""

from vitrine.cli.export import main

if __name__ == "__main__":
    main()
