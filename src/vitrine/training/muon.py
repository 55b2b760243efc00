"""Muon (github.com/KellerJordan/Muon) on many matrices at once.

A Vision Transformer's blocks have matrices of three shapes. PyTorch's Muon orthogonalises one matrix after another, in
fifteen small products each. Here all matrices of a shape, or of its transpose, are one batch: few kernels on a GPU, and
on a CPU each thread has matrices of its own.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrine.distributed.hardware import cpu_supports_bf16

# Iterations on one Gram matrix. Each makes its rounding errors twelve times as large where singular values are small.
# In bfloat16, three stay within 2.5 times the error of iterations on the matrices themselves, and often below it; five
# diverge where singular values fall steeply.
STEPS_ON_GRAM = 3


class Muon(torch.optim.Muon):
    """PyTorch's Muon, batched: the same groups, state and updates, up to rounding."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all matrices that have a gradient; ``closure`` is called once before."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
            for matrices in alike.values():
                self._step_together(matrices, group)
        return loss

    def _step_together(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Step matrices that have one shape, or its transpose."""
        gradients, momenta = [], []
        for matrix in matrices:
            assert matrix.grad is not None
            state = self.state[matrix]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(matrix.grad)
            gradients.append(matrix.grad)
            momenta.append(state["momentum_buffer"])
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, momenta, group["momentum"]) if group["nesterov"] else momenta
        shape = (len(matrices), *sorted(matrices[0].shape))
        wide = matrices[0].new_empty(shape, dtype=product_dtype(matrices[0]))
        # Views into ``wide``, each with the shape of its matrix.
        views = [
            view.T if matrix.size(0) > matrix.size(1) else view for matrix, view in zip(matrices, wide, strict=True)
        ]
        torch._foreach_copy_(views, updates)
        orthogonalize_(wide, group["ns_coefficients"], group["ns_steps"], group["eps"])
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        adjusted = 0.2 * math.sqrt(shape[2]) * group["lr"]  # match_rms_adamw: arXiv:2502.16982, section 2.2
        torch._foreach_add_(matrices, views, alpha=-adjusted)


def orthogonalize_(matrices: Tensor, coefficients: Sequence[float], steps: int, eps: float) -> None:
    """Bring the singular values of matrices (K, M, N), M <= N, near 1, by Newton-Schulz iterations on all of them.

    An iteration multiplies a matrix X by a polynomial of its Gram matrix X X^T. Of wide matrices, several iterations
    act on the Gram matrix (M, M) alone, before their product multiplies X: a third less work for N = 4 M.
    """
    matrices /= torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True).clamp(min=eps)
    together = STEPS_ON_GRAM if matrices.size(2) > 1.5 * matrices.size(1) else 1
    result = matrices
    for done in range(0, steps, together):
        factor = _factor(torch.bmm(result, result.mT), coefficients, min(together, steps - done))
        result = torch.bmm(factor, result)
    matrices.copy_(result)


def _factor(gram: Tensor, coefficients: Sequence[float], steps: int) -> Tensor:
    """Return what ``steps`` iterations multiply matrices by, from their Gram matrices (K, M, M)."""
    a, b, c = coefficients
    product = None
    for step in range(steps):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else torch.bmm(factor, product)
        if step + 1 < steps:
            gram = torch.bmm(torch.bmm(factor, gram), factor)
    assert product is not None
    return product


def product_dtype(matrix: Tensor) -> torch.dtype:
    """Return the dtype of products: bfloat16, as PyTorch's Muon, except for float64 and CPUs that are slow in it."""
    if matrix.dtype is torch.float64 or (matrix.device.type == "cpu" and not cpu_supports_bf16()):
        return matrix.dtype
    return torch.bfloat16
