"""Augmentation of batches of uint8 images on the training device."""
