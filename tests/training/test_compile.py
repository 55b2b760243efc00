"""The model is compiled where that pays, and what is trained stays what it was, but for rounding."""

import shutil
import sys
import sysconfig
import time
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.levels import slow
from helpers.running import SMALL, only_run, run_script

from vitrine import compose, fit, resume
from vitrine.errors import Interrupted
from vitrine.models.block import Block
from vitrine.runs import RunRecord
from vitrine.training import compile as compilation
from vitrine.training.callbacks import Callback
from vitrine.training.compile import COMPILERS
from vitrine.training.trainer import _compilation

pytestmark = pytest.mark.whole

HEADERS = Path(sysconfig.get_path("include")) / "Python.h"

can_compile = pytest.mark.skipif(
    not (any(map(shutil.which, COMPILERS)) and HEADERS.is_file()),
    reason="there is no C++ compiler, or Python's headers are missing",
)

# Dropout and two depths of stochastic depth are on, and each epoch's last batch is smaller; in float32, where rounding
# stays small.
OVERRIDES = [
    *SMALL,
    "depth=2",
    "model.drop_path=0.2",
    "data.drop_last=false",
    "model.mlp_dropout=0.1",
    "trainer.precision=32-true",
    "trainer.log_every_n_steps=1",
    "accelerator=cpu",
]

ONE_BATCH = ["trainer.max_epochs=1", "debug.limit_batches=1"]
WITHOUT_MASKS = ["model.drop_path=0.0", "model.mlp_dropout=0.0"]


def comparable(what):
    """Overrides with which training is the same as uncompiled: PyTorch 2.11 draws other masks in a whole model."""
    return WITHOUT_MASKS if what != "blocks" and torch.__version__.startswith("2.11.") else []


@pytest.fixture
def trained(tmp_path):
    """The record of a small training."""

    def train(name, *overrides, callbacks=()):
        return RunRecord(
            fit(compose([*OVERRIDES, f"paths.output_dir={tmp_path / name}", *overrides]), callbacks=callbacks).run_dir
        )

    return train


def losses(record):
    return [row["train/loss"] for row in record.history() if "train/loss" in row]


@pytest.fixture(scope="module")
def uncompiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uncompiled")
    return RunRecord(fit(compose([*OVERRIDES, f"paths.output_dir={folder}", "trainer.compile=nothing"])).run_dir)


@can_compile
@pytest.mark.parametrize("what", ["blocks", slow("model")])
def test_a_compiled_training_is_the_same_training(trained, uncompiled, what, capfd, monkeypatch):
    eager, forward = [], Block.forward

    def watched(block, tokens, *rest):
        if block.training and not torch.compiler.is_compiling():
            eager.append(len(tokens))
        return forward(block, tokens, *rest)

    if changed := comparable(what):
        uncompiled = trained("uncompiled", "trainer.compile=nothing", *changed)
    monkeypatch.setattr(Block, "forward", watched)
    torch._dynamo.utils.counters.clear()
    record = trained(what, f"trainer.compile={what}", *changed)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, "of all blocks and batches"
    assert eager == [13] * 4, "two blocks in two epochs: 1,293 images in batches of 256"
    assert record.facts["compiled"] == what
    assert record.facts["speed"]["compile_seconds"] > 0.1
    np.testing.assert_allclose(losses(record), losses(uncompiled), rtol=1e-4)
    assert record.metrics["val/loss"] == pytest.approx(uncompiled.metrics["val/loss"], rel=1e-4)
    assert "recompile_limit" not in capfd.readouterr().err


@can_compile
@pytest.mark.quick
def test_a_short_training_is_not_compiled_and_the_reason_is_printed(trained, capsys, monkeypatch):
    """The time that it takes to decide is a part of the training's."""
    monkeypatch.setattr(compilation.Compilation, "_step_seconds", lambda *_: time.sleep(1.0) or 0.001)
    record = trained("short")
    compiling, first = record.facts["start_ups"][0]["compiling"], record.history()[0]["seconds"]
    assert 1.0 <= compiling == record.facts["speed"]["compile_seconds"] < first
    assert record.facts["compiled"] == "nothing"
    assert "compiler         not used: training takes less than" in capsys.readouterr().out


@can_compile
def test_a_long_training_is_compiled_if_that_makes_it_faster(trained, uncompiled, monkeypatch, capsys):
    """The clock is replaced: it says that uncompiled steps are slow, then that compiled ones are fast.

    Blocks that are computed twice are compiled, too, and draw the same masks both times.
    """
    seconds = iter([1000.0, 1.0])
    monkeypatch.setattr(compilation.Compilation, "_step_seconds", lambda *_: next(seconds))
    record = trained("long", "trainer.activation_checkpointing=true")
    assert record.facts["compiled"] == "blocks"
    np.testing.assert_allclose(losses(record), losses(uncompiled), rtol=1e-4)
    assert "compiler         each block: 1 s a step instead of 17 minutes" in capsys.readouterr().out


@can_compile
def test_a_trial_that_takes_too_long_is_abandoned(trained, monkeypatch, capsys):
    """The clock is replaced for uncompiled steps; the trial is as long as it is."""
    uncompiled = iter([1000.0])
    monkeypatch.setattr(compilation.Compilation, "_step_seconds", lambda *_: next(uncompiled, None) or time.sleep(600))
    monkeypatch.setitem(compilation.TRIAL_SECONDS, "blocks", 0.3)
    begin = time.monotonic()
    record = trained("abandoned")
    assert time.monotonic() - begin < 300
    assert (record.status, record.facts["compiled"]) == ("finished", "nothing")
    shown = capsys.readouterr().out
    assert "trying the compiler (at most 0 s)" in shown
    assert "compiler         not used: abandoned after 300 ms" in shown


def test_a_limit_that_is_reached_in_a_destructor_is_reached_again_without_a_word(monkeypatch):
    class Slow:
        def __del__(self):
            time.sleep(600)

    class Broken:
        def __del__(self):
            raise ValueError("of another kind")

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    def work():
        with compilation._at_most(0.1):
            Broken()
            Slow()
            time.sleep(600)

    with pytest.raises(compilation.TrialTooLong):
        work()
    assert [str(unraisable.exc_value) for unraisable in reported] == ["of another kind"]
    assert sys.unraisablehook == reported.append


@can_compile
def test_the_real_compiler_is_abandoned_without_a_trace(trained, monkeypatch, uncompiled, tmp_path):
    """Too late, it is in the middle of its work; training is what it is without."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    measured, real = iter([1000.0]), compilation.Compilation._step_seconds
    monkeypatch.setattr(compilation.Compilation, "_step_seconds", lambda *given: next(measured, None) or real(*given))
    for seconds in (0.5, 2.0):
        monkeypatch.setitem(compilation.TRIAL_SECONDS, "blocks", seconds)
        measured = iter([1000.0])
        record = trained(f"after-{seconds}")
        assert record.facts["compiled"] == "nothing"
        assert losses(record) == losses(uncompiled)


@can_compile
def test_compilation_that_gains_nothing_is_undone(trained, monkeypatch, uncompiled, capsys):
    seconds = iter([1000.0, 999.0])
    monkeypatch.setattr(compilation.Compilation, "_step_seconds", lambda *_: next(seconds))
    record = trained("vain")
    assert record.facts["compiled"] == "nothing"
    assert "it was not faster" in capsys.readouterr().out
    assert losses(record) == losses(uncompiled)


@can_compile
def test_measuring_changes_neither_weights_nor_statistics(trained):
    """The trial of auto is the only difference; conv_stem would keep its batches' statistics."""
    stem = ["patch_embed=conv_stem", "trainer.max_epochs=1"]
    one, other = trained("one", *stem, "trainer.compile=auto"), trained("other", *stem, "trainer.compile=nothing")
    assert losses(one) == losses(other)
    assert one.metrics["val/loss"] == other.metrics["val/loss"]


@can_compile
def test_deterministic_runs_do_not_decide_by_measured_time(trained, monkeypatch, capsys):
    monkeypatch.setattr(compilation.Compilation, "_step_seconds", lambda *_: pytest.fail("measured"))
    assert trained("deterministic", "trainer.deterministic=true", *ONE_BATCH).facts["compiled"] == "nothing"
    assert "deterministic runs do not decide by measured time" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["compiler", "headers"])
def test_what_the_compiler_lacks_is_reported_and_training_continues(trained, monkeypatch, capsys, missing):
    if missing == "compiler":
        monkeypatch.setattr(compilation.shutil, "which", lambda name: None)
        expected = "this machine has no C++ compiler"
    else:
        monkeypatch.setattr(compilation.sysconfig, "get_path", lambda name: "/nowhere")
        expected = "this machine has no Python headers"
    assert trained("lacking", "trainer.compile=blocks", *ONE_BATCH).status == "finished"
    assert f"compiler         not used: {expected}" in capsys.readouterr().out


@can_compile
def test_a_failed_compilation_is_reported_once_and_training_continues(trained, monkeypatch, tmp_path, capfd):
    """The real compiler: it is given a C++ compiler that fails."""
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with import_module("torch._inductor.config").patch({"cpp.cxx": (None, str(broken))}):
        record = trained("broken", *ONE_BATCH, "trainer.compile=blocks")
    out, err = capfd.readouterr()
    assert out.count("not used: it failed") == 1
    assert "Traceback" not in out + err
    assert record.facts["compiled"] == "nothing"


@pytest.fixture
def decides_at(monkeypatch):
    """Lets a compilation be decided at so many seconds a step, with a compiler that is not used."""

    def patch(seconds):
        monkeypatch.setattr(compilation, "missing_for", lambda device: "")
        monkeypatch.setattr(compilation.Compilation, "_step_seconds", lambda *_: seconds)
        monkeypatch.setattr(torch.compiler, "reset", lambda: None)  # it imports the compiler, for seconds

    return patch


@pytest.mark.quick
@pytest.mark.parametrize("fails_at", [0, 1])
def test_no_rank_compiles_where_another_one_cannot(monkeypatch, decides_at, fails_at):
    """For lack of a compiler there, or in its trial."""
    decides_at(1.0)
    decisions = []

    def compile_parts(model, what):
        model._compiled_call_impl = model.forward
        return [model]

    def reduce_boolean_decision(decision, all):
        decisions.append(decision)
        return len(decisions) > fails_at

    monkeypatch.setattr(compilation, "compile_parts", compile_parts)
    trainer = SimpleNamespace(strategy=SimpleNamespace(reduce_boolean_decision=reduce_boolean_decision))
    module = SimpleNamespace(device=torch.device("cpu"), model=torch.nn.Linear(2, 2), config=compose(OVERRIDES))
    compiled = compilation.Compilation("model", True, print, nullcontext)._compile(trainer, module)
    assert (compiled.what, compiled.why) == ("nothing", "it failed on another rank")
    assert decisions == [False] * (fails_at + 1)
    assert module.model._compiled_call_impl is None


@pytest.mark.quick
@pytest.mark.parametrize("pays_after", [0, 100])
def test_a_trial_ends_before_the_time_limit(monkeypatch, decides_at, pays_after):
    decides_at(1000.0)
    monkeypatch.setattr(compilation, "compile_parts", lambda model, what: [])
    monkeypatch.setitem(compilation.EARNED_BACK_AFTER, "blocks", pays_after)
    monkeypatch.setitem(compilation.TRIAL_SHARE, "blocks", 1.0)
    same = {"reduce_boolean_decision": lambda decision, all: decision, "broadcast": lambda seconds: seconds}
    trainer = SimpleNamespace(world_size=1, strategy=SimpleNamespace(**same))
    module = SimpleNamespace(device=torch.device("cpu"), model=torch.nn.Linear(2, 2), config=compose(OVERRIDES))
    module.steps, limits = 10, []

    def showing(limit):
        limits.append(limit)
        return nullcontext()

    stop_by = time.time() + 20
    compiled = compilation.Compilation("auto", True, print, showing, stop_by)._compile(trainer, module)
    assert compiled.what == "nothing"
    assert all(limit == pytest.approx(15, abs=1) for limit in limits)
    assert limits or compiled.why.startswith("trainer.max_time leaves 1")


class StopAt(Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 3:
            raise KeyboardInterrupt


@can_compile
def test_a_resumed_run_is_compiled_as_before(trained, tmp_path, monkeypatch):
    """Whatever the clock would say by then."""
    seconds = iter([1000.0, 1.0])
    monkeypatch.setattr(compilation.Compilation, "_step_seconds", lambda *_: next(seconds, 0.001))
    with pytest.raises(Interrupted):
        trained("stopped", callbacks=[StopAt()])
    folder = only_run(tmp_path / "stopped")
    assert RunRecord(folder).facts["compiled"] == "blocks"
    resume(folder)
    assert RunRecord(folder).facts["compiled"] == "blocks"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_graphs_without_a_gpu_are_refused_before_anything_is_written(tmp_path):
    done = run_script("train.py", "trainer.compile=graphs", f"paths.output_dir={tmp_path}/out", cwd=tmp_path)
    assert done.returncode == 2
    lines = ["trainer.compile=graphs", "needs a GPU: these are CUDA graphs", "did you mean trainer.compile=blocks?"]
    assert [line.strip() for line in done.stderr.splitlines()[1:]] == lines
    assert not (tmp_path / "out").exists()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("device", "ranks", "what"),
    [("cpu", 1, "blocks"), ("cuda", 1, "graphs"), ("cuda", 2, "model"), ("mps", 1, "nothing")],
)
def test_auto_compiles_what_pays_on_the_device(device, ranks, what):
    assert compilation.what_pays(device, ranks) == what


@can_compile
def test_a_trial_of_graphs_marks_its_steps(trained, monkeypatch):
    """On a CPU, where a model compiled as a whole stands for them."""
    marked, uncompiled, measured = [], iter([1000.0]), compilation.Compilation._step_seconds
    monkeypatch.setattr(compilation, "what_pays", lambda *_: "graphs")
    monkeypatch.setattr(compilation, "compile_parts", lambda *_: [])
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append("step"))
    monkeypatch.setattr(
        compilation.Compilation, "_step_seconds", lambda *given: next(uncompiled, None) or measured(*given)
    )
    assert trained("graphs", "trainer.max_epochs=1").facts["compiled"] == "graphs"
    assert len(marked) == 4 + 6, "passes of the trial, and steps of training"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("before", "accelerator", "devices", "mode"),
    [
        ("graphs", "cuda", 1, "graphs"),
        ("graphs", "cuda", 2, "auto"),
        ("graphs", "cpu", 1, "auto"),
        ("blocks", "cpu", 1, "blocks"),
        ("nothing", "cuda", 1, "nothing"),
        (None, "cuda", 1, "auto"),
    ],
)
def test_a_resumed_run_is_compiled_as_before_but_for_graphs_where_they_are_not_tried(
    before, accelerator, devices, mode
):
    facts = {} if before is None else {"compiled": before}
    hardware = SimpleNamespace(accelerator=accelerator, devices=devices)
    record = SimpleNamespace(facts=facts)
    run = SimpleNamespace(config=compose(SMALL), record=record, hardware=hardware, stop_by=None)
    assert _compilation(run, print, nullcontext).mode == mode


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_cuda_graphs_train_as_the_compiled_model_does(trained):
    """Whatever masks the compiler draws: PyTorch 2.11 draws other ones than without it."""
    one, other = (trained(what, "accelerator=gpu", f"trainer.compile={what}") for what in ("graphs", "model"))
    assert (one.facts["compiled"], other.facts["compiled"]) == ("graphs", "model")
    np.testing.assert_allclose(losses(one), losses(other), rtol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("what", ["blocks", "model", "graphs"])
def test_a_compiled_training_is_the_same_on_a_gpu(trained, what):
    overrides = ["accelerator=gpu", *comparable(what)]
    one, other = (trained(name, *overrides, f"trainer.compile={name}") for name in (what, "nothing"))
    assert one.facts["compiled"] == what
    np.testing.assert_allclose(losses(one), losses(other), rtol=1e-3)
