import pytest
import torch
from helpers.user_parts import enter_lab

from vitrine.config import ViTConfig
from vitrine.config.part_failures import failing_in_one_line
from vitrine.config.parts import PartError, load

LAB = "lab_of_failures"
FAILING = """
import torch

from .layers import places


class First(torch.nn.Module):
    def forward(self, x):
        return self.product(x)

    def product(self, x):
        return x @ x


class Second(First):
    def forward(self, x):
        return places("four")


class Inherited(First):
    pass
"""


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, LAB, failing=FAILING)


def config(**parts):
    return ViTConfig(image_size=8, patch_size=2, in_channels=1, num_classes=10, dim=8, depth=1, heads=2, **parts)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("First", r"failed: RuntimeError: .*failing.py, line 12\)$"),  # raised in torch, called from here
        ("Second", r"failed: TypeError: .*layers.py, line 6\)$"),  # raised in a module beside the part's
        ("Inherited", r"failed: RuntimeError: .*failing.py, line 12\)$"),
    ],
)
def test_an_exception_names_the_part_and_the_line_of_the_users(name, place):
    part = f"{LAB}.failing.{name}"
    other = f"{LAB}.fourier.Fourier"
    with (
        pytest.raises(PartError, match=f"^{part} {place}") as caught,
        failing_in_one_line(config(position=other, mlp=part) if name != "Inherited" else config(mlp=part)),
    ):
        load(part)()(torch.ones(2, 3))
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None, "debug=traceback shows it"


def test_an_exception_of_an_installed_part_names_it():
    named = config(norm="torch.nn.RMSNorm")
    with pytest.raises(PartError, match=r"^torch.nn.RMSNorm failed: RuntimeError"), failing_in_one_line(named):
        torch.nn.RMSNorm(3)(torch.ones(2))
    with pytest.raises(RuntimeError), failing_in_one_line(named):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_an_exception_outside_the_parts_passes():
    with pytest.raises(ZeroDivisionError), failing_in_one_line(config(mlp=f"{LAB}.failing.First")):
        1 / 0  # noqa: B018
