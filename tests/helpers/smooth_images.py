"""Images on which operations on colour and geometry can be distinguished."""

import torch
from scipy import stats

from vitrine.config.size import height_width


def smooth_images(count, size=32, channels=3):
    """Smooth images with a little noise and different ranges, which colour operations change differently."""
    generator = torch.Generator().manual_seed(sum(height_width(size)) // 2)
    coarse = torch.rand(count, channels, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=height_width(size), mode="bilinear")
    darkest, brightest = torch.rand(2, count, 1, 1, 1, generator=generator).sort(dim=0).values
    noise = 0.05 * torch.rand(smooth.shape, generator=generator)
    return (255 * (darkest + (smooth + noise).clamp(0, 1) * (brightest - darkest))).to(torch.uint8)


def assert_same_distribution(some, others):
    """Compare two samples of images (N, C, 32, 32): their mean, contrast and first moments, in distribution."""
    weight = torch.linspace(-1, 1, 32)
    for measure in (
        lambda images: images.float().mean(dim=(1, 2, 3)),
        lambda images: (images.float() * weight).mean(dim=(1, 2, 3)),
        lambda images: (images.float() * weight[:, None]).mean(dim=(1, 2, 3)),
        lambda images: images.float().std(dim=(1, 2, 3)),
    ):
        assert stats.ks_2samp(measure(some).numpy(), measure(others).numpy()).pvalue > 1e-3
