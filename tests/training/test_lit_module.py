import pytest
import torch
from helpers.user_parts import write_package

from vitrine import compose
from vitrine.config.parts import PartError
from vitrine.training.lit_module import Classifier

LAB = "lab_of_lit_module"


def test_a_loss_of_the_users_that_fails_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_package(tmp_path, LAB, losses="def broken(logits, targets):\n    raise ValueError('bad loss')\n")
    config = compose(["model=vit_nano", "depth=1", f"loss={LAB}.losses.broken"])
    module = Classifier(config, steps=1, images_per_step=2)
    with pytest.raises(PartError, match=r"failed: ValueError: bad loss \(.*losses.py, line 2\)$"):
        module.training_loss(torch.zeros(2, config.model.num_classes), torch.zeros(2, dtype=torch.long))
