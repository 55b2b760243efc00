"""Which images each epoch trains on, and what is no schedule of their sizes."""

from dataclasses import replace

import pytest

from vitrine import compose
from vitrine.config import train_faults
from vitrine.config.image_schedule import image_side


@pytest.mark.parametrize(
    ("schedule", "epochs", "sides"),
    [
        (None, 3, [None, None, None]),
        ([16, 0.5], 4, [16, 16, None, None]),
        ([16, 0.5], 5, [16, 16, None, None, None]),
        ([16, 0.29], 100, [16] * 29 + [None] * 71),
        ([16, 0.3, 24, 0.6], 10, [16] * 3 + [24] * 3 + [None] * 4),
        ([16, 0.9], 1, [None]),
    ],
)
def test_a_size_holds_until_its_share_of_the_epochs(schedule, epochs, sides):
    assert [image_side(schedule, epoch, epochs) for epoch in range(epochs)] == sides


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["trainer.image_schedule=[4]"], "must be pairs"),
        (["trainer.image_schedule=[]"], "must be pairs"),
        (["trainer.image_schedule=[4.5,0.5]"], "must be pairs"),
        (["trainer.image_schedule=[0.5,4]"], "must be pairs"),
        (["trainer.image_schedule=[4,0.5,6,0.5]"], "must have shares that rise and are < 1"),
        (["trainer.image_schedule=[4,1]"], "must have shares that rise and are < 1"),
        (["trainer.image_schedule=[16,0.5]"], "smaller than that of the images, 8, not 16"),
        (["trainer.image_schedule=[5,0.5]"], "does not fit the model at size 5: model.patch_size=2 must divide"),
        (["trainer.image_schedule=[-4,0.5]"], "must be > 0 and <= 4096"),
        (
            ["trainer.image_schedule=[4,0.3]", "trainer.max_epochs=3"],
            "has a size, 4, that is in no epoch of trainer.max",
        ),
        (["trainer.image_schedule=[4,0.5,6,0.6]", "trainer.max_epochs=4"], "has a size, 6, that is in no epoch"),
        (["data.image_size=[8,16]"], r"is for square images, not data.image_size=[8,16]"),
        (["position=learned", "trainer.deterministic=true"], "interpolates model.position=learned"),
        (["norm=torch.nn.LayerNorm"], "is a part of your own"),
    ],
)
def test_what_is_no_schedule_or_excludes_one_is_refused_in_one_line(refusal, overrides, problem):
    faults = refusal("model=vit_nano", "trainer.image_schedule=[4,0.5]", *overrides)
    assert len(faults) == 1
    assert faults[0].key == "trainer.image_schedule"
    assert problem in str(faults[0])


def test_a_resumed_run_and_a_short_trial_may_leave_out_a_size():
    config = compose(["model=vit_nano", "trainer.image_schedule=[4,0.5]", "debug=quick"])
    assert config.trainer.max_epochs == 1
    config.debug.limit_batches = None
    assert [fault.key for fault in train_faults(config)] == ["trainer.image_schedule"]
    assert train_faults(replace(config, resume="RUN")) == []


def test_initial_weights_of_the_users_need_no_resizing():
    compose(["model=vit_nano", "trainer.image_schedule=[4,0.5]", "model.init=torch.nn.init.zeros_"])
