"""A whole model: a small convolutional network, as a baseline for Vision Transformers.

python train.py -m model=vit_nano,examples.small_cnn.SmallCNN seed=0,1,2
python train.py model=examples.small_cnn.SmallCNN model.options.width=32
"""

from itertools import pairwise

from torch import Tensor, nn


class SmallCNN(nn.Sequential):
    """Three 3x3 convolutions, each with batch normalisation and a ReLU, then the mean over the image and a linear map.

    Args:
        in_channels: of the images.
        num_classes: number of logits.
        width: channels of the first convolution; each of the others has twice as many as the one before.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int = 16) -> None:
        channels = [in_channels, width, 2 * width, 4 * width]
        layers: list[nn.Module] = []
        for index, (inputs, outputs) in enumerate(pairwise(channels)):
            conv = nn.Conv2d(inputs, outputs, kernel_size=3, stride=min(2, 1 + index), padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) normalised images -> (B, num_classes) logits."""
        return super().forward(images)
