"""Training on images that are smaller than the model's, with the model's weights."""

from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from vitrine.models import VisionTransformer
from vitrine.models.resize import resize_weights


class SmallerImages:
    """A model for smaller images that computes with the weights of another, and trains them.

    Positions are those of :meth:`VisionTransformer.resized`: fixed ones are computed for the smaller grid, learned ones
    interpolated in each pass, as FlexiViT does (arXiv:2212.08013), so that the gradient reaches the model's own. So
    optimiser state, averages and checkpoints have one shape throughout.

    Not a module: its parameters are the model's.

    Args:
        model: the model whose weights are used and trained.
        side: height and width of the smaller images, in pixels.
    """

    def __init__(self, model: VisionTransformer, side: int) -> None:
        self.model, self.side = model, side
        self.resized = model.without_weights(replace(model.config, image_size=side))

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, H, W) normalised images of the model's size, resized to (B, C, side, side) -> (B, num_classes)."""
        images = F.interpolate(images, size=(self.side, self.side), mode="bilinear", antialias=True)
        weights = resize_weights(self.model.state_dict(keep_vars=True), self.model.config, self.resized.config)
        for name, weight in weights.items():  # until the next pass: the backward pass may compute blocks again
            path, _, own = name.rpartition(".")
            part = self.resized.get_submodule(path)
            delattr(part, own)  # a parameter cannot be set to a tensor that is none
            setattr(part, own, weight)
        logits: Tensor = self.resized(images)
        return logits
