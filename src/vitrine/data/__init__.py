"""Input pipeline: data sets on disk to augmented batches on the training device.

Most modules import torch, so import them by name; ``image_folder`` does not, and is used when a configuration is
composed.
"""
