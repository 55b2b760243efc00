"""Upload runs to Weights & Biases that were trained offline: the same as ``vitrine wandb-sync``; see --help."""

from vitrine.cli.wandb_sync import main

if __name__ == "__main__":
    main()
