"""Train a Vision Transformer: python train.py model=vit_tiny. All groups and keys: python train.py --help."""

from vitrine.cli.train import main

if __name__ == "__main__":
    main()
