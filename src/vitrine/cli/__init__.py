"""The commands: ``vitrine NAME``, and the same code as ``train.py``, ``eval.py`` and ``scripts/``."""
