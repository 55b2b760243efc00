"""An image file for each picture that shows which patches the model attends to, by attention rollout."""

from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from vitrine.data.image_folder import SUFFIXES
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.figure_style import ATTENTION
from vitrine.files import naming_failed_write, replacing
from vitrine.inference.predictor import Predictor
from vitrine.models import VisionTransformer, attended_patches, rollout_problem

HEIGHT = 224  # least height of an image, in pixels
GAP, BAR, LABELS = 8, 14, 44  # between image, map and colour bar; of the colour bar and its labels
WEIGHTS = 2**26  # attention weights that are held together: 256 MB
MARK, MARK_WITHIN = "vitrine: attention rollout", 1024  # what the files have as Software, and in which first bytes


class AttentionImages:
    """Writes ``FOLDER/PATH.png`` for each picture: as the model takes it, beside it what it attends to, a colour bar.

    The colour bar ends at the share of the patch with the most attention. Files of an earlier command are replaced; any
    other file that is there, such as a picture itself, is left as it is, and is an error.

    Args:
        folder: where to write; made if missing.
        root: folder that paths are relative to; "" where there is none.
        predictor: the model.

    Raises:
        RunError: the model has no attention weights to show.
    """

    def __init__(self, folder: Path, root: str, predictor: Predictor) -> None:
        model = predictor.model
        if problem := rollout_problem(model):
            raise RunError(f"attention= has no maps to write: {problem}")
        assert isinstance(model, VisionTransformer)
        self.folder = folder
        self.root = root
        self.pictures: dict[Path, Path] = {}  # by the image of each; of a folder's pictures, images differ as names do
        self.predictor = predictor
        self.model = model
        config = model.config
        self.together = max(1, WEIGHTS // (config.depth * config.heads * config.tokens**2))
        self.colours = np.rint(matplotlib.colormaps[ATTENTION](np.arange(256))[:, :3] * 255).astype(np.uint8)

    def write(self, paths: list[str], images: Tensor) -> None:
        """Write the images of B pictures.

        Args:
            paths: of the pictures.
            images: (B, C, H, W) uint8, prepared.

        Raises:
            ConfigError: another file is there.
            RunError: an image cannot be written.
        """
        predictor = self.predictor
        mark = PngInfo()
        mark.add_text("Software", MARK)
        for part in torch.arange(len(images)).split(self.together):
            normalised = predictor.preparation.normalised(images[part].to(predictor.device), predictor.dtype)
            patches = attended_patches(self.model, normalised).float().cpu()
            for index, attended in zip(part.tolist(), patches.numpy(), strict=True):
                path = self.path_of(paths[index])
                with naming_failed_write(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with replacing(path) as temporary:
                        self.drawn(images[index], attended).save(temporary, format="PNG", pnginfo=mark)

    def path_of(self, path: str) -> Path:
        """Return where the image of a picture is written.

        Raises:
            ConfigError: another file is there, or the image of another picture.
            RunError: what is there cannot be read.
        """
        given = Path(path)
        relative = given.relative_to(self.root) if self.root else given.relative_to(given.anchor)
        inside = self.folder.joinpath(*(part for part in relative.parts if part != ".."))
        keeps_name = inside.suffix == ".png" and Path(inside.stem).suffix.lower() not in SUFFIXES  # a.jpg is a.jpg.png
        image = inside if keeps_name else inside.with_name(f"{inside.name}.png")
        if not self.root and (other := self.pictures.setdefault(image, given)) != given:
            problem = f"{other} and {path} would both have the image {image}; give them to separate commands"
            raise ConfigError([Fault("attention", str(self.folder), problem)])
        with naming_failed_write(image):
            if _is_other_file(image):
                problem = (
                    f"the image of {path} would replace {image}, which is not an attention map; give another folder"
                )
                raise ConfigError([Fault("attention", str(self.folder), problem)])
        return image

    def drawn(self, image: Tensor, attended: np.ndarray) -> Image.Image:
        """Return image, map and colour bar side by side.

        Args:
            image: (C, H, W) uint8.
            attended: (rows, columns), the share of each patch.
        """
        grey = len(image) not in (3, 4)
        picture = Image.fromarray(image[0].numpy() if grey else image[:3].permute(1, 2, 0).numpy()).convert("RGB")
        scale = -(-HEIGHT // picture.height)
        width, height = (side * scale for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.NEAREST)
        levels = np.rint(255 * attended / max(attended.max(), 1e-12)).astype(np.uint8)
        heat = Image.fromarray(self.colours[levels]).resize((width, height), Image.Resampling.NEAREST)
        shown = Image.new("RGB", (2 * (width + GAP) + BAR + LABELS, height), "white")
        shown.paste(picture, (0, 0))
        shown.paste(heat, (width + GAP, 0))
        bar = Image.fromarray(self.colours[np.linspace(255, 0, height).astype(np.uint8)[:, None].repeat(BAR, axis=1)])
        shown.paste(bar, (2 * (width + GAP), 0))
        pen, font, left = ImageDraw.Draw(shown), ImageFont.load_default(12), 2 * (width + GAP) + BAR + 4
        pen.text((left, 2), f"{100 * attended.max():.1f} %", "black", font)
        pen.text((left, height - 2), "0 %", "black", font, anchor="ls")
        return shown


def _is_other_file(path: Path) -> bool:
    """Whether there is a file at ``path`` that :class:`AttentionImages` has not written."""
    try:
        with path.open("rb") as file:
            return MARK.encode() not in file.read(MARK_WITHIN)
    except FileNotFoundError:
        return False
