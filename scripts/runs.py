"""List, show, compare, export and delete runs: the same as ``vitrine runs``; see --help."""

from vitrine.cli.runs import main

if __name__ == "__main__":
    main()
