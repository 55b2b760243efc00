"""Classify pictures with a trained model: python predict.py run=outputs/runs/RUN input=DIR."""

from vitrine.cli.predict import main

if __name__ == "__main__":
    main()
