"""Loggers: the run folder's own, TensorBoard and Weights & Biases."""
