"""Dropout (Srivastava et al., JMLR 15, 2014), with which a CPU keeps up.

PyTorch draws a random number for each value; on a CPU that can take longer than the layers before and after. Here four
values share one. On a GPU PyTorch's own is as fast as can be, and used.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANCES = 2**16  # what a quarter of a random number distinguishes


class Dropout(nn.Dropout):
    """Zeroes values at random in training, and scales the others to keep the mean."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, and the same again."""
        return drop(x, self.p) if self.training else x


def drop(x: Tensor, rate: float) -> Tensor:
    """``x``, each value zeroed with chance ``rate``, in [0, 1), the others scaled to keep the mean.

    On a CPU the rate is rounded to a multiple of 2**-16, and the scale follows it.
    """
    if rate == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    dropped = min(round(rate * CHANCES), CHANCES - 1)
    numbers = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),))  # all 64 bits
    kept = numbers.view(torch.int16)[: x.numel()].ge_(dropped - CHANCES // 2)  # 1 or 0; bool is slow to convert
    return x * kept.view(x.shape).to(x.dtype).mul_(CHANCES / (CHANCES - dropped))
