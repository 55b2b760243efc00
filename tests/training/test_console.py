"""Console output of a run, and no messages of libraries."""

import io
import logging
import math
import warnings
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from rich.console import Console

from vitrine import compose
from vitrine.config import TrainConfig
from vitrine.distributed.hardware import Hardware
from vitrine.runs import RunRecord
from vitrine.training.compile import Compiled
from vitrine.training.console import quiet_libraries, show_compiled, show_result, show_start

FACTS = {
    "parameters": 1_234_567,
    "trained_parameters": 650,
    "flops_per_image": 35_145_000_000,
    "steps_per_epoch": 1_012,
}
DATA = SimpleNamespace(
    sizes={"train": 1_294, "val": 143, "test": 0}, placement=SimpleNamespace(line="in memory: 92 kB")
)


@pytest.fixture(params=["terminal", "plain"])
def console(request) -> Console:
    terminal = request.param == "terminal"
    return Console(file=io.StringIO(), force_terminal=terminal, width=80, color_system=None)


@cache
def composed(*overrides: str) -> TrainConfig:
    return compose(list(overrides))


def printed(console: Console) -> str:
    """Return the output, wrapped lines joined."""
    return " ".join(console.file.getvalue().split())


def show(console, config, record, hardware, facts=FACTS, classes=""):
    run = SimpleNamespace(config=config, record=record, hardware=hardware, pretrained=None)
    show_start(console, run, DATA, facts, classes)


def start(
    console: Console, record: RunRecord, *overrides: str, devices: int = 1, classes: str = "a: 9, b: 3 in train"
) -> None:
    rate = [] if "finetune=linear_probe" in overrides else ["optimizer.lr=0.003"]
    config = composed("model=vit_nano", "position=learned", *rate, "seed=7", *overrides)
    hardware = Hardware("cpu", devices, "bf16-mixed", "explicit", "CPU, 2 threads")
    show(console, config, record, hardware, classes=classes)


def test_the_start_shows_the_settings_of_the_run(console, tmp_path):
    start(console, RunRecord(tmp_path), "trainer.max_epochs=9", "data.batch_size=48")
    text = printed(console)
    for fact in (
        "digits: 8x8x1, 10 classes; 1,294 train, 143 val",
        "ViT 64 wide, 4 deep, 4 heads",
        "classes a: 9, b: 3 in train images in memory: 92 kB",
        "16 tokens of 2x2 pixels",
        "position learned, pool mean",
        "1,234,567",
        "35.1 G",
        "9 epochs of 1,012 steps with 48 images",
        "adamw at 0.003",
        "seed 7",
        "CPU, 2 threads",
        "precision bf16-mixed",
        "attention by two matrix products",
    ):
        assert fact in text
    assert str(tmp_path) in "".join(console.file.getvalue().split())
    assert "0 test" not in text
    assert "processes" not in text


def test_the_start_shows_the_size_of_images_to_train_on(console, tmp_path):
    given = ["data.image_size=[8,16]", "patch=4", "augment.crop=0", "augment.resized_crop=[0.1,1.0]"]
    config = composed("model=vit_nano", "position=learned", "trainer.precision=32-true", *given)
    config = replace(config, data=replace(config.data, train_size=[12, 20]))
    show(console, config, RunRecord(tmp_path), Hardware("cpu", 1, "32-true", "sdpa", "CPU"))
    assert "digits: 8x16x1, in training cropped from 12x20, 10 classes; 1,294 train" in printed(console)


@pytest.mark.parametrize(
    ("override", "end"),
    [("attention=torch.nn.MultiheadAttention", ", attention by torch.nn.MultiheadAttention"), ("model=my_lab.Net", "")],
)
def test_no_kernel_is_named_for_code_outside_vitrine(console, tmp_path, override, end):
    key, _, name = override.partition("=")
    own = {"name": name} if key == "model" else {key: name}
    config = composed("model=vit_nano", "position=learned", "trainer.precision=32-true")
    config = replace(config, model=replace(config.model, **own))
    show(console, config, RunRecord(tmp_path), Hardware("cpu", 1, "32-true", "sdpa", "CPU"))
    assert f"precision 32-true{end} run folder" in printed(console)


def test_a_step_has_no_more_images_than_there_are(console, tmp_path):
    start(console, RunRecord(tmp_path), "data.batch_size=2000")
    assert "steps with 1,294 images" in printed(console)


@pytest.mark.parametrize("supported", [True, False])
def test_a_precision_that_the_processor_emulates_comes_with_a_faster_one(console, tmp_path, monkeypatch, supported):
    monkeypatch.setattr("vitrine.training.console.cpu_supports_bf16", lambda: supported)
    start(console, RunRecord(tmp_path))
    slow = "bf16-mixed (slow: this processor has no instructions for it; try trainer.precision=32-true), attention"
    assert (slow in printed(console)) == (not supported)


def test_the_number_of_ranks_is_shown(console, tmp_path):
    start(console, RunRecord(tmp_path), devices=4)
    assert "CPU, 2 threads, 4 processes" in printed(console)


def test_a_long_path_is_neither_cut_nor_broken_at_the_edge_of_a_terminal(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    record = RunRecord(tmp_path / ("a-long-name" * 12))
    start(console, record)
    show_result(console, record, {"val/acc": 0.5, "val/loss": 1.0})
    assert console.file.getvalue().count(f"  {record.path}\n") == 2


def test_a_file_gets_a_whole_line_for_each_fact_and_no_control_codes(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=False, width=20)
    record = RunRecord(tmp_path / ("a-long-name" * 12))
    start(console, record)
    lines = console.file.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "data",
        "classes",
        "images",
        "model",
        "parameters",
        "FLOPs per image",
        "training",
        "device",
        "precision",
        "run folder",
    ]
    assert lines[-1].endswith(str(record.path))
    assert "\x1b" not in console.file.getvalue()


def test_a_line_break_in_the_name_of_a_class_begins_no_line(console, tmp_path):
    start(console, RunRecord(tmp_path), classes="a\ntest accuracy  1.0: 9, b: 3 in train")
    assert "  a test accuracy  1.0: 9, b: 3 in train\n" in console.file.getvalue()


def test_square_brackets_in_a_folder_are_shown_as_they_are(console, tmp_path):
    record = RunRecord(tmp_path / "[red]runs[/red]" / "[old]")
    show_result(console, record, {"val/acc": 0.5, "val/loss": 1.0})
    assert str(record.path) in "".join(console.file.getvalue().split())


@pytest.mark.parametrize(
    ("monitor", "chosen"),
    [
        ("val/acc", "the best on validation"),
        ("last", "the last"),
        ("val/loss", "the lowest val/loss"),
        ("val/error_rate", "the lowest val/error_rate"),
        ("val/worst_class", "the highest val/worst_class"),
        ("val/auroc", "val/auroc was NaN in every epoch"),
    ],
)
def test_the_result_shows_metrics_speed_and_folder(console, tmp_path, monitor, chosen):
    (tmp_path / "config.yaml").write_text(f"callbacks: {{monitor: {monitor}}}")
    metrics = {
        "val/acc": 0.98765,
        "val/loss": 0.04321,
        "val/auroc": math.nan,
        "test/acc": 0.9,
        "test/loss": 0.25,
        "best_epoch": 12,
        "train_seconds": 83.26,
    }
    show_result(console, RunRecord(tmp_path), metrics)
    text = printed(console)
    for fact in (
        "validation accuracy 0.9877",
        "validation loss 0.0432",
        "test accuracy 0.9000",
        "test loss 0.2500",
        f"chosen checkpoint epoch 12, {chosen}",
        "training time 83.3 s",
        "run folder",
    ):
        assert fact in text


def test_the_result_shows_both_accuracies_of_each_target(console, tmp_path):
    metrics = {"val/acc": 0.5, "val/acc/side": 0.75, "val/loss": 1.0, "test/acc": 0.625, "test/loss": 2.0}
    show_result(console, RunRecord(tmp_path), metrics | {"test/acc/side": 0.25})
    text = printed(console)
    assert "validation accuracy 0.5000 validation accuracy of side 0.7500 validation loss" in text
    assert "test accuracy 0.6250 test accuracy of side 0.2500 test loss" in text


def test_the_result_without_test_images(console, tmp_path):
    show_result(console, RunRecord(tmp_path), {"val/acc": 0.5, "val/loss": 1.0})
    text = printed(console)
    assert "test accuracy the data has no test images" in text
    assert "test loss" not in text
    assert "training time" not in text


SPEED = {
    "images_per_second": 12345.6,
    "images_per_second_slow": 9876.5,
    "data_share": 0.0123,
    "flops_per_second": 2.5e12,
    "mfu_measured": 0.456,
    "mfu_datasheet": None,
    "startup_seconds": 7.89,
    "compile_seconds": 12.3,
}


def test_the_result_shows_speed(console, tmp_path):
    metrics = {"val/acc": 0.5, "val/loss": 1.0}
    show_result(console, RunRecord(tmp_path), metrics, speed=SPEED)
    text = printed(console)
    assert "12,346 images/s (9,876 in the slowest twentieth of the steps); 1.2% of the time waiting for data" in text
    assert "2.5 T, 46% of a matrix product's here" in text
    assert "datasheet" not in text
    assert "start-up 7.9 s compiler 12.3 s, included in the training time" in text
    show_result(console, RunRecord(tmp_path), metrics, speed=SPEED | {"mfu_datasheet": 0.301, "compile_seconds": 0.2})
    text = printed(console)
    assert "30% of the datasheet's" in text
    assert text.count("compiler") == 1  # in the first result alone


def test_the_compilation_result_is_shown(console):
    show_compiled(console, Compiled("nothing", "training takes about 4 s, too short to pay off"))
    shown = "compiler         not used: training takes about 4 s, too short to pay off"
    assert console.file.getvalue().splitlines() == [shown]
    show_compiled(console, Compiled("blocks", "20 ms a step instead of 30 ms"))
    assert "compiler each block: 20 ms a step instead of 30 ms" in printed(console)


@pytest.mark.parametrize(
    ("finetune", "shown"),
    [
        ((), "adamw at 0.003, seed"),
        (("finetune.head_lr=0.01",), "adamw at 0.003, the head at 0.01, seed"),
        (("finetune=linear_probe", "finetune.head_lr=0.01"), "adamw at 0.01, seed"),
    ],
)
def test_the_start_shows_the_rates_at_which_weights_are_trained(console, tmp_path, finetune, shown):
    start(console, RunRecord(tmp_path), *finetune, "model.pretrained=vit_tiny_patch16_224")
    assert shown in printed(console)


@pytest.mark.parametrize(
    ("overrides", "shown"),
    [
        ((), ""),
        (("logger=wandb", "logger.wandb.mode=disabled"), ""),
        (("logger=wandb",), "logged to Weights & Biases, project vitrine (online)"),
        (
            ("logger=wandb", "logger.wandb.mode=offline", "logger.wandb.entity=team", "logger.wandb.project=digits"),
            "logged to Weights & Biases, project team/digits (offline)",
        ),
        (("logger=tensorboard",), "logged to TensorBoard files in the run folder"),
    ],
)
def test_the_start_says_where_the_run_is_logged(console, tmp_path, monkeypatch, overrides, shown):
    """The configuration of another's run (like=RUN) may name another's project."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    (tmp_path / "run.json").write_text("{}")
    start(console, RunRecord(tmp_path), *overrides)
    text = printed(console)
    assert ("logged to" in text) == bool(shown)
    assert shown in text


def test_the_start_shows_what_weights_and_biases_own_variables_set(console, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "digits")
    (tmp_path / "run.json").write_text("{}")
    start(console, RunRecord(tmp_path), "logger=wandb")
    assert "logged to Weights & Biases, project digits (offline)" in printed(console)


@pytest.mark.parametrize(
    ("flops", "shown"), [(999, "999 "), (1_000, "1 k"), (35_145_000_000, "35.1 G"), (2_500_000_000_000_000, "2.5 P")]
)
def test_large_numbers_are_short(tmp_path, flops, shown):
    console = Console(file=io.StringIO(), force_terminal=False)
    config = composed("model=vit_nano")
    facts = {**FACTS, "flops_per_image": flops}
    show(console, config, RunRecord(tmp_path), Hardware("cpu", 1, "32-true", "sdpa", "CPU"), facts)
    assert f"FLOPs per image  {shown}" in console.file.getvalue()


def test_libraries_are_quiet_and_errors_still_show(caplog):
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    with quiet_libraries():
        logger.warning("of no use")
        logger.error("of use")
    assert [one.message for one in caplog.records] == ["of use"]


def test_warnings_are_silenced_and_restored():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quiet_libraries():
            warnings.warn("of no use", stacklevel=1)
        with pytest.raises(UserWarning, match="of use"):
            warnings.warn("of use", stacklevel=1)


def test_log_levels_are_restored_after_an_error():
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero", "torch.distributed")
    before = {name: logging.getLogger(name).level for name in names}
    logging.getLogger("lightning.fabric").setLevel(logging.DEBUG)
    try:
        with quiet_libraries():
            assert {logging.getLogger(name).level for name in names} == {logging.ERROR}
        assert logging.getLogger("lightning.fabric").level == logging.DEBUG
        with pytest.raises(ZeroDivisionError), quiet_libraries():
            raise ZeroDivisionError
        assert logging.getLogger("lightning.fabric").level == logging.DEBUG
        assert all(logging.getLogger(name).level == before[name] for name in names if name != "lightning.fabric")
    finally:
        logging.getLogger("lightning.fabric").setLevel(before["lightning.fabric"])
