"""Train a Vision Transformer: python train.py model=vit_tiny. What can be set: python train.py --help."""

from vitrine.cli import train

if __name__ == "__main__":
    train()
