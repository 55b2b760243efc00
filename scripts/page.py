"""Write a page to try a trained model: the same as ``vitrine page``; see --help."""

from vitrine.cli.page import main

if __name__ == "__main__":
    main()
