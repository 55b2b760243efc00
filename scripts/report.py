"""Write the page of one run: the same as ``vitrine report``; see --help."""

from vitrine.cli.report import main

if __name__ == "__main__":
    main()
