"""What the process that trials are forked from imports: all that takes long, and nothing that starts threads."""

import sklearn.datasets
import torch._dynamo

import vitrine.training.fit
import vitrine.training.resume

__all__ = ["sklearn", "torch", "vitrine"]
