"""What all formats export: the model of a run with its preparation, and what a program has to know to use it."""

import copy
import json
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitrine.config.schema import LEVELS
from vitrine.config.trust import prefixes
from vitrine.data.preparation import Preparation, normalised
from vitrine.errors import first_line
from vitrine.inference.calibrate import TemperatureScaling
from vitrine.inference.export.formats import ExportError, ExportRequest
from vitrine.inference.load import LoadedRun
from vitrine.models import VisionTransformer
from vitrine.runs.provenance import versions

UPRIGHT = "turn the picture upright as its EXIF orientation says"
# Of data sets of image files by data.resize; see vitrine.data.preparation.
PREPARATION = {
    "crop": "scale until the picture covers the input size (bicubic, antialiased; sides rounded), crop the centre "
    "(left and top margins rounded down)",
    "pad": "scale until the picture fits into the input size (bicubic, antialiased; sides rounded), pad the rest with "
    "the mean (left and top margins rounded down)",
    "squash": "scale both sides to the input size, whatever their ratio (bicubic, antialiased)",
}


def described(preparation: Preparation) -> str:
    """Return in words what a program has to do with a picture before the export takes it."""
    (low, high), bits = preparation.levels, "keep the upper byte of 16-bit pixels"
    if preparation.levels != LEVELS:
        bits = f"make 16-bit grey pixels (pixel - {low}) * 256 // {high - low + 1}, clipped to 0 and 255"
    start = f"{UPRIGHT}, {bits}"
    if preparation.from_files:
        covered = "" if preparation.crop_pct == 1 else f" / {preparation.crop_pct}, rounded down"
        return f"{start}, {PREPARATION[preparation.resize].replace('input size', f'input size{covered}')}"
    height, width = preparation.ratio
    part = "square" if height == width else f"part whose height and width are as {height} to {width}"
    cropped = f"crop the largest central {part} (left and top margins rounded down)"
    return f"{start}, {cropped}, resize it to the input size (bilinear, antialiased)"


class PictureClassifier(nn.Module):
    """A model with its preparation: takes pictures as they are stored, gives probabilities, and features if asked.

    Args:
        model: maps normalised images (B, C, H, W) to logits (B, classes).
        mean, std: of each channel in [0, 1], (1, C, 1, 1) float32.
        dtype: what the model computes in. Pixels are normalised, and probabilities computed, in float32.
        multi_label: whether a picture has several labels: probabilities are then a sigmoid for each class.
        features: whether it gives, as a second output, what the head of a Vision Transformer reads.
        temperature: what logits are divided by.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        mean: Tensor,
        std: Tensor,
        dtype: torch.dtype = torch.float32,
        *,
        multi_label: bool = False,
        features: bool = False,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.multi_label = multi_label
        self.features = features
        self.temperature = temperature
        self.dtype = dtype
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.requires_grad_(False)

    def logits(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes) float32."""
        return self._scaled(self.model(self._prepared(images)))

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """(B, C, H, W) uint8 -> (B, classes) float32 in [0, 1]; rows sum to 1, unless pictures have several labels.

        With features, these are (B, D) float32.
        """
        if not self.features:
            return self._probabilities(self.logits(images))
        assert isinstance(self.model, VisionTransformer)
        features = self.model.pooled(self._prepared(images))
        return self._probabilities(self._scaled(self.model.head(features))), features.float()

    def _prepared(self, images: Tensor) -> Tensor:
        return normalised(images, self.mean, self.std).to(self.dtype)

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits.float() if self.temperature == 1 else logits.float() / self.temperature

    def _probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid() if self.multi_label else logits.softmax(dim=1)


@dataclass(frozen=True)
class ExportSource:
    """A run about to be exported.

    Attributes:
        request: what is asked for.
        run: the run with its model.
        calibration: the temperature that logits are divided by; ``None`` divides them by none.
    """

    request: ExportRequest
    run: LoadedRun
    calibration: TemperatureScaling | None = None

    @classmethod
    def load(cls, request: ExportRequest) -> "ExportSource":
        """Read the run's model.

        Raises:
            RunError: the checkpoint is missing, damaged or refused, or names code outside ``request.trust`` or
                code that was edited; or the model has no features, and these are asked for.
        """
        trust = prefixes(request.trust)
        run = LoadedRun(request.record, trust, request.target, request.allow_changed_code, request.checkpoint)
        source = cls(request, run)
        _ = source.reference, request.features and source.run.feature_size
        return source

    @property
    def temperature(self) -> float:
        """What logits are divided by."""
        return 1.0 if self.calibration is None else self.calibration.temperature

    @property
    def extra_facts(self) -> dict[str, str]:
        """Temperature and its effect, target and epoch, those that were asked for, as every format records them."""
        facts = {"target": self.run.answers} if self.run.answers else {}
        if self.calibration is not None:
            facts |= {"temperature": str(self.temperature), "calibration": "; ".join(self.calibration.lines)}
        if self.request.checkpoint is not None:
            facts["epoch"] = str(self.request.checkpoint)
        return facts

    @cached_property
    def reference(self) -> PictureClassifier:
        """The model in float32, in PyTorch: what every export is compared with."""
        data = self.run.config.data
        mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) for values in (data.mean, data.std))
        return self._classifier(self.run.model, mean, std, torch.float32)

    @cached_property
    def classifier(self) -> PictureClassifier:
        """The model in the floating-point type that is asked for; for int8, which is made from it, in float32."""
        if self.request.dtype != "float16":
            return self.reference
        reference = self.reference
        return self._classifier(copy.deepcopy(reference.model).half(), reference.mean, reference.std, torch.float16)

    def _classifier(self, model: nn.Module, mean: Tensor, std: Tensor, dtype: torch.dtype) -> PictureClassifier:
        return PictureClassifier(
            model,
            mean,
            std,
            dtype,
            multi_label=self.run.config.data.multi_label,
            features=self.request.features,
            temperature=self.temperature,
        ).eval()

    @cached_property
    def program(self) -> ExportedProgram:
        """The graph of :attr:`classifier`, for any number of pictures.

        Raises:
            ExportError: the model can't be traced, or works for one batch size only.
        """
        # Traced with two pictures: of one, PyTorch would conclude that there is always one.
        pictures = torch.zeros(2, *self.picture_shape, dtype=torch.uint8)
        try:
            program = torch.export.export(
                self.classifier, (pictures,), dynamic_shapes={"images": {0: Dim("batch", min=1)}}, strict=False
            )
        except Exception as error:  # tracing a user's own part can fail in any way
            raise ExportError(f"PyTorch can't trace the model of {self.request.run}: {first_line(error)}") from None
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # paths of this machine, which files would show
        return program

    @property
    def picture_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the pictures."""
        data = self.run.config.data
        return (data.in_channels, *data.image_hw)

    @property
    def facts(self) -> dict[str, str]:
        """What a program has to know to use the export; written into onnx, torch_export and aoti files."""
        data, transform = self.run.config.data, self.run.transform
        shape = ", ".join(map(str, self.picture_shape))
        independent = "; of each label by itself, as pictures may have several" if data.multi_label else ""
        extra = self.extra_facts
        if self.request.features:
            extra["features"] = f"float32 (B, {self.run.feature_size}), what the model's head reads; the second output"
        if not transform.from_files:
            extra["ratio"] = json.dumps(transform.ratio)
        return extra | {
            "classes": json.dumps(self.run.classes),
            "input": f"images: uint8 (B, {shape}), pixels in [0, 255]",
            "output": f"probabilities: float32 (B, {len(self.run.classes)}), in the order of classes{independent}",
            "multi_label": json.dumps(data.multi_label),
            "preparation": described(transform),
            "resize": transform.resize if transform.from_files else "stretch",
            "crop_pct": json.dumps(transform.crop_pct),
            "levels": json.dumps(transform.levels),
            "mean": json.dumps(list(data.mean)),
            "std": json.dumps(list(data.std)),
            "normalisation": "inside the model",
            "dtype": self.request.dtype,
            "license": self.request.license,
            "run": str(self.request.record.facts.get("id", self.request.record.name)),
            "vitrine": versions()["vitrine"],
        }
