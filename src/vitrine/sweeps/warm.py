"""What the process that trials are forked from imports: all that takes long, and nothing that starts threads.

Also all that a trial runs of this project: the trials of a sweep run the code that it began with, whatever is edited
meanwhile.
"""

import sklearn.datasets
import torch._dynamo

import vitrine.app
import vitrine.sweeps.process
import vitrine.training.fit
import vitrine.training.resume

__all__ = ["sklearn", "torch", "vitrine"]
