"""Save a view of a W&B project that compares runs: the same as ``vitrine wandb-workspace``; see --help."""

from vitrine.cli.wandb_workspace import main

if __name__ == "__main__":
    main()
