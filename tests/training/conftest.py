"""What tests of several optimisers share."""

import pytest
import torch


@pytest.fixture
def muon_in_float64(monkeypatch):
    """PyTorch's Muon rounds its gradients to bfloat16, whatever the weights are; here it leaves float64 as it is."""
    monkeypatch.setattr(torch, "bfloat16", torch.float64)
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.to(torch.float64, copy=True))  # PyTorch 2.11
