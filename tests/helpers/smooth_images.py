"""Images on which operations on colour and geometry can be distinguished."""

import torch

from vitrine.config.size import height_width


def smooth_images(count, size=32, channels=3):
    """Smooth images with a little noise and different ranges, which colour operations change differently."""
    generator = torch.Generator().manual_seed(sum(height_width(size)) // 2)
    coarse = torch.rand(count, channels, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=height_width(size), mode="bilinear")
    darkest, brightest = torch.rand(2, count, 1, 1, 1, generator=generator).sort(dim=0).values
    noise = 0.05 * torch.rand(smooth.shape, generator=generator)
    return (255 * (darkest + (smooth + noise).clamp(0, 1) * (brightest - darkest))).to(torch.uint8)
