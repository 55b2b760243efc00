"""Test a run's checkpoint again: python eval.py run=outputs/runs/RUN."""

from vitrine.cli import evaluate

if __name__ == "__main__":
    evaluate()
