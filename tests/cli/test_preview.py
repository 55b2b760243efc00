"""The pictures that preview draws are those of training, in their places."""

import pytest
import torch
from helpers.running import write_image_folder
from helpers.user_parts import enter_lab
from PIL import Image

from vitrine import compose
from vitrine.cli.preview import augmented, main
from vitrine.data.image_dataset import Split
from vitrine.training import plots

IMAGES = torch.randint(0, 256, (8, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
SPLIT = Split(IMAGES, torch.arange(8))


def config_of(*overrides):
    return compose(["model=vit_nano", "data=cifar10", "augment=none", *overrides])


def test_without_augmentation_each_picture_is_in_its_place_in_every_epoch():
    for epoch in range(3):
        assert torch.equal(augmented(SPLIT, config_of(), epoch), IMAGES)


def test_a_picture_is_mirrored_or_not_by_epoch_and_seed():
    config = config_of("augment.flip=true")
    epochs = [augmented(SPLIT, config, epoch) for epoch in range(4)]
    for images in epochs:
        for image, before in zip(images, IMAGES, strict=True):
            assert torch.equal(image, before) or torch.equal(image, before.flip(-1))
    assert len({images.sum(dim=(1, 2)).numpy().tobytes() for images in epochs}) > 1
    assert not torch.equal(epochs[0], augmented(SPLIT, config_of("augment.flip=true", "seed=1"), 0))


def test_mixed_pictures_stay_whole_numbers():
    mixed = augmented(SPLIT, config_of("augment.mixup=1.0"), 0)
    assert mixed.dtype is torch.uint8
    assert (mixed != IMAGES).flatten(1).any(dim=1).all()


def test_the_command_draws_pictures_of_all_classes(tmp_path, monkeypatch, capsys):
    write_image_folder(tmp_path / "pets", "train", classes=("cat", "dog", "owl"))
    monkeypatch.chdir(tmp_path)
    shown = []
    draw = plots.previewed
    monkeypatch.setattr(plots, "previewed", lambda *given: shown.append(given) or draw(*given))
    data = ["data=imagefolder", "data.root=pets", "data.image_size=8", "patch=4", "model=vit_nano"]
    larger = ["data.train_size=12", "augment=none", "augment.resized_crop=[1.0,1.0]"]
    main([*data, *larger, "--epochs", "2"])
    ((rows, names, classes),) = shown
    assert capsys.readouterr().out == "written to preview.png\n"
    assert (len(rows), {row.shape for row in rows}) == (3, {(8, 3, 8, 8)})
    assert (rows[1] != rows[0]).mean() > 0.5, "scaled from 12x12, not those of 8x8"
    assert (names, classes) == (["cat"] * 3 + ["dog"] * 2 + ["owl"] * 3, ["cat", "dog", "owl"])
    with Image.open("preview.png") as image:
        assert image.width > 900
    assert {path.name for path in tmp_path.iterdir()} == {"pets", "preview.png"}, "nothing is cached, no run begins"


def test_an_augmentation_of_the_users_that_fails_is_one_line(tmp_path, monkeypatch, capsys):
    enter_lab(tmp_path, monkeypatch, "lab_of_preview")
    broken = (
        "class Broken:\n    num_draws = 1\n\n    def __call__(self, images, draws):\n        raise ValueError('no')\n"
    )
    (tmp_path / "lab_of_preview" / "broken.py").write_text(broken)
    with pytest.raises(SystemExit):
        main(["model=vit_nano", "augment.parts=[lab_of_preview.broken.Broken]"])
    assert capsys.readouterr().err.startswith("vitrine: lab_of_preview.broken.Broken failed: ValueError: no (")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "x.gif"], "cannot write x.gif: its name must end in .png, .pdf or .svg"),
        (["--output", "no/x.png"], "no is not a folder"),
        (["--epochs", "21"], "--epochs 21 must be at most 20"),
        (["augment=dei3"], "did you mean augment=deit3?"),
    ],
)
def test_bad_input_is_one_message(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
