"""Test a run's checkpoint again: python eval.py run=outputs/runs/RUN."""

from vitrine.cli.evaluate import main

if __name__ == "__main__":
    main()
