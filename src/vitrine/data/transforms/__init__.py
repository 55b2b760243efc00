"""Augmentation of batches of uint8 images on their device."""
