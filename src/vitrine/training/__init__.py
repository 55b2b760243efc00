"""Training: the one place where models, data and records meet. Modules here import torch and Lightning, not launched."""
