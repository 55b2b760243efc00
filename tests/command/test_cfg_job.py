"""``--cfg job`` prints exactly what would be trained: it is the composition that a run starts from."""

import pytest
from helpers.levels import sampled
from omegaconf import OmegaConf

from vitrine.cli.train import main
from vitrine.command.compose import points
from vitrine.config.serialize import from_plain, to_plain
from vitrine.config.sweep import TrainCommand
from vitrine.runs import RunRecord


@pytest.fixture
def run(tmp_path):
    """A run whose values differ from the defaults, with optional sections on."""
    record = RunRecord.create(tmp_path, "run")
    record.update(status="finished")
    overrides = ["model=vit_nano", "position=rope", "optimizer=sgd", "optimizer.lr=0.25", "callbacks=[default,ema]"]
    (point,) = points("train", [*overrides, "callbacks.ema.decay=0.9", "logger=wandb"], multirun=False)
    record.write_config(to_plain(point.config.run))
    return record.path


@pytest.mark.whole
@pytest.mark.parametrize(
    "overrides",
    sampled(
        [
            ["model=vit_nano", "patch=4", "seed=3"],
            ["model=vit_small", "data=cifar10", "callbacks=[default,early_stopping,ema]", "callbacks.ema.decay=0.99"],
            ["logger=wandb", "logger.wandb.mode=offline", "augment=strong", "data=cifar10"],
            ["like={run}"],
            ["like={run}", "patch=4", "callbacks.ema.decay=0.8", "logger.wandb.mode=offline"],
            ["like={run}", "data=cifar10", "logger=csv", "callbacks=default"],
            ["resume={run}"],
            ["resume={run}", "trainer.max_epochs=50", "accelerator=cpu", "logger.wandb.mode=offline"],
        ],
        every=4,
    ),
    ids=" ".join,
)
@pytest.mark.parametrize("resolve", [False, True], ids=["", "resolved"])
def test_what_is_printed_is_what_would_be_trained(run, overrides, resolve, capsys):
    typed = [override.format(run=run) for override in overrides]
    main(["--cfg", "job", *typed, *(["--resolve"] if resolve else [])])
    printed = OmegaConf.create(capsys.readouterr().out)
    (point,) = points("train", typed, multirun=False)
    assert from_plain(TrainCommand, OmegaConf.to_container(printed, resolve=True)) == point.config
    if resolve:
        assert "${" not in OmegaConf.to_yaml(printed)
