"""Draw training pictures as the model sees them: the same as ``vitrine preview``; see --help."""

from vitrine.cli.preview import main

if __name__ == "__main__":
    main()
