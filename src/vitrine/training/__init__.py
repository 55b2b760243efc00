"""Training: where models, data and records meet. Most modules import torch and Lightning."""
