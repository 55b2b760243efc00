"""``python -m vitrine``: the same as the command ``vitrine``."""

from vitrine.cli.main import main

if __name__ == "__main__":
    main()
