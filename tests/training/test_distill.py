"""A trained run teaches another one: the loss, the teacher's images and classes, resuming, and what is refused."""

import csv
import hashlib
import json
import math
import os
import re
import shutil
import signal
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers.exporting import untrained_run
from helpers.running import SMALL, only_run
from helpers.user_parts import enter_lab
from lightning.pytorch.callbacks import Callback
from torch.nn import functional as F

from vitrine import compose, fit, load_run, resume
from vitrine.config.distill import DistillConfig
from vitrine.config.distill_faults import distill_faults
from vitrine.config.serialize import to_plain
from vitrine.data.datamodule import ImageDataModule
from vitrine.errors import ConfigError, Interrupted, RunError
from vitrine.runs import RunRecord
from vitrine.training.distill import Distillation, distillation_loss, teacher_of
from vitrine.training.lit_module import Classifier

DIGITS = SimpleNamespace(classes=[str(number) for number in range(10)])


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The folder of a run on the digits, on images of 8x8, that takes each for a 3."""
    run = untrained_run(tmp_path_factory.mktemp("teacher") / "run", image_size=8)
    checkpoint = torch.load(RunRecord(run).best, weights_only=True)
    checkpoint["state_dict"]["model.head.bias"][3] = 100.0
    torch.save(checkpoint, RunRecord(run).best)
    return run


def taught(folder, teacher, *overrides):
    """Compose the smallest training with a teacher."""
    return compose([*SMALL, "patch=4", f"paths.output_dir={folder}", f"distill.teacher={teacher}", *overrides])


def edited(run, folder, **facts):
    """Copy a run, with other entries of run.json."""
    copy = shutil.copytree(run, folder)
    file = copy / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))
    return copy


def by_hand(student, answers, labels, weight, temperature):
    """The mean loss over images of equation 2 or, without a temperature, 3 of DeiT, with a weight."""
    total = 0.0
    for own, theirs, label in zip(student.tolist(), answers.tolist(), labels, strict=True):

        def share(values, index, t=1.0):
            return math.exp(values[index] / t) / sum(math.exp(value / t) for value in values)

        loss = -math.log(share(own, label))
        if temperature is None:
            learned = -math.log(share(own, theirs.index(max(theirs))))
        else:
            pairs = [(share(theirs, k, temperature), share(own, k, temperature)) for k in range(len(own))]
            learned = temperature**2 * sum(p * math.log(p / q) for p, q in pairs)
        total += (1 - weight) * loss + weight * learned
    return total / len(labels)


@pytest.mark.parametrize(("weight", "temperature"), [(0.1, 3.0), (0.7, 1.0), (0.5, None), (1.0, None), (1.0, 0.5)])
def test_the_loss_is_that_of_the_papers(weight, temperature):
    generator = torch.Generator().manual_seed(0)
    logits, answers = (3 * torch.randn(5, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    labels = [0, 3, 1, 1, 2]
    distillation = Distillation(DistillConfig("soft", "run", weight, temperature), lambda images: answers, *[None] * 3)
    loss = distillation.loss(F.cross_entropy(logits, torch.tensor(labels)), logits, images=None)
    assert loss.item() == pytest.approx(by_hand(logits, answers, labels, weight, temperature), rel=1e-12)


def test_a_model_that_answers_as_its_teacher_has_nothing_to_learn():
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    loss = distillation_loss(logits, logits.detach(), temperature=3.0)
    loss.backward()
    assert (loss.item(), logits.grad.abs().max().item()) == pytest.approx((0.0, 0.0), abs=1e-12)


def test_the_teacher_has_its_own_size_normalisation_and_order_of_classes(tmp_path):
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    run = edited(
        untrained_run(tmp_path / "run", image_size=12), tmp_path / "other", classes=[str(number) for number in order]
    )
    distillation = Distillation.prepare(taught(tmp_path, run), DIGITS)
    assert distillation.facts == {"run": str(run), "sha256": sha256(run)}
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    larger = F.interpolate((images / 255 - 0.4) / 0.3, size=(12, 12), mode="bilinear", antialias=True)
    expected = load_run(run).model(larger)[:, [order.index(number) for number in range(10)]]
    torch.testing.assert_close(distillation.teacher(images), expected)
    torch.testing.assert_close(distillation.teacher(images.float()), expected)
    assert not any(module.training for module in distillation.teacher.modules())
    assert not distillation.teacher(images).requires_grad


def test_copies_of_a_model_share_its_teacher(teacher, tmp_path):
    module = Classifier(config := taught(tmp_path, teacher), 1, 1, distillation=Distillation.prepare(config, DIGITS))
    assert deepcopy(module).distillation is module.distillation
    assert module.state_dict().keys() == Classifier(config, 1, 1).state_dict().keys()
    assert len(list(module.parameters())) == len(list(module.model.parameters()))


def test_a_weight_of_0_needs_no_teacher(tmp_path):
    config = compose([*SMALL, f"paths.output_dir={tmp_path}"])
    assert Distillation.prepare(replace(config, distill=DistillConfig(teacher="nowhere", weight=0.0)), DIGITS) is None


MIXED = ["augment.mixup=0.8", "callbacks=[default,ema]", "data.batch_size=112", "trainer.precision=32-true"]


@pytest.mark.parametrize("kind", ["soft", pytest.param("hard", marks=pytest.mark.whole)])
def test_a_model_learns_what_its_teacher_says_and_resumes_bit_equal(teacher, tmp_path, capsys, kind):
    def config(name):
        return taught(tmp_path / name, teacher, f"distill={kind}", "distill.weight=0.9", *MIXED)

    whole = RunRecord(fit(config("whole")).run_dir)
    assert (load_run(whole.path).test_outputs[0].argmax(dim=1) == 3).all()
    shown = capsys.readouterr()
    assert f"warning: distill.teacher={teacher} was trained on this data: validation" in shown.err
    assert " beside its teacher, too short to pay off" in " ".join(shown.out.split())
    with pytest.raises(Interrupted):
        fit(config("stopped"), callbacks=[SignalAt(14)])
    record = RunRecord(only_run(tmp_path / "stopped"))
    assert record.facts["teacher"] == {"run": str(teacher), "sha256": sha256(teacher)}
    student, its_teacher = record.facts["flops_per_image"], record.facts["teacher_flops_per_image"]
    assert record.facts["training_flops_per_image"] == 3 * student + its_teacher

    for other in (str(untrained_run(tmp_path / "other", image_size=8, depth=2)), None):
        changed = config("stopped")
        changed.distill = replace(changed.distill, teacher=other)
        with pytest.raises(RunError, match=r"began with a teacher with sha256 \w{16}, and has (a|no) teacher.* now;"):
            resume(record.path, changed)
    moved = shutil.copytree(teacher, tmp_path / "moved")
    resume(record.path, compose([f"resume={record.path}", f"distill.teacher={moved}"]))
    assert rows(record) == rows(whole)
    assert all(torch.equal(one, other) for one, other in zip(weights(record), weights(whole), strict=True))
    assert weights(record)


class SignalAt(Callback):
    """Sends this process a signal after an optimiser step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def rows(record):
    """The losses in metrics.csv."""
    with (record.path / "metrics.csv").open(newline="") as file:
        return [(row["step"], row["train/loss"], row["val/loss"]) for row in csv.DictReader(file)]


def weights(record):
    """Weights and their averages at the end of a run."""
    checkpoint = torch.load(record.last, weights_only=True)
    return [*checkpoint["state_dict"].values(), *checkpoint["current_model_state"].values()]


def sha256(run):
    return hashlib.sha256((run / "checkpoints" / "best.ckpt").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("facts", "data", "problem"),
    [
        ({"classes": [*"012345678", "ten"]}, {}, "its classes lack 9; its classes have ten"),
        ({"classes": None}, {}, "its run.json does not name each of its 10 classes once"),
        ({"classes": [*"00123456789"]}, {}, "its run.json does not name each of its 10 classes once"),
        ({}, {"levels": [0, 4095]}, "its images have data.levels=[0,65535], not data.levels=[0,4095]"),
        ({}, {"in_channels": 3}, "its images have 1 channel, not 3"),
        ({}, {"targets": ["above5"]}, "it answers data.targets=[], not data.targets=[above5]"),
    ],
)
def test_a_teacher_of_something_else_is_refused_before_anything_is_written(teacher, tmp_path, facts, data, problem):
    run = edited(teacher, tmp_path / "run", **facts)
    config = taught(tmp_path, run)
    with pytest.raises(ConfigError) as error:
        Distillation.prepare(replace(config, data=replace(config.data, **data)), DIGITS)
    (fault,) = error.value.faults
    assert (fault.key, fault.given) == ("distill.teacher", str(run))
    assert fault.problem == f"is a run that cannot teach this one: {problem}"


def test_a_teacher_that_is_still_training_is_refused(teacher, tmp_path):
    run = edited(teacher, tmp_path / "run", status="running", host="elsewhere")
    with pytest.raises(ConfigError, match="is still training, so its best epoch may change: wait for it, or stop it"):
        Distillation.prepare(taught(tmp_path, run), DIGITS)


def test_a_teacher_that_is_unfinished_or_had_images_resized_otherwise_is_reported(teacher, tmp_path):
    run = edited(teacher, tmp_path / "run", status="interrupted")
    config = taught(tmp_path, run)
    config.data.resize, config.data.crop_pct = "pad", 0.9
    data = ImageDataModule(config)
    notes = Distillation.prepare(config, DIGITS).notes(data)
    assert f"distill.teacher={run} is interrupted, not finished: its best epoch so far teaches" in notes
    assert f"distill.teacher={run} was trained with data.resize=crop, not pad" in notes
    assert f"distill.teacher={run} was trained with data.crop_pct=1.0, not 0.9" in notes
    config.data.train_size = 64
    assert "crop_pct" not in str(Distillation.prepare(config, DIGITS).notes(data))


@pytest.mark.parametrize(
    ("overrides", "key", "problem"),
    [
        (["distill=hard", "distill.temperature=2"], "distill.temperature", "belongs to soft, not to distill=hard"),
        (["distill.temperature=null"], "distill.temperature", "is required by distill=soft"),
        (["model.num_classes=12"], "model.num_classes", "must be 10, the number of classes, with distill.teacher"),
        (
            ["data.targets=[digit,above5]"],
            "distill.teacher",
            "teaches one target, and data.targets=[digit,above5] are several",
        ),
        (
            ["model.pretrained={teacher}", "finetune=linear_probe"],
            "finetune",
            "trains on features, which may be computed once, and a teacher needs the images of each step",
        ),
        (["distill.teacher={teacher}s"], "distill.teacher", "there is no such run or file; did you mean {teacher}?"),
        (["distill.teacher=vit_tiny_patch16_224"], "distill.teacher", "there is no such folder: only runs teach"),
        (["distill.teacher={teacher}/checkpoints"], "distill.teacher", "is not the folder of a run: only runs teach"),
        (["distill.teacher=[{teacher},{teacher}]"], "distill.teacher", "must be a string, or null"),
    ],
)
def test_what_cannot_be_taught_is_refused(refusal, teacher, overrides, key, problem):
    given = [override.format(teacher=teacher) for override in overrides]
    named = [] if any("distill.teacher" in one for one in given) else [f"distill.teacher={teacher}"]
    (fault,) = refusal("model=vit_nano", *named, *given)
    assert (fault.key, fault.problem) == (key, problem.format(teacher=teacher))


def test_a_teacher_whose_code_was_edited_teaches_where_it_is_allowed(tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, "edited_lab")
    run = untrained_run(tmp_path / "teacher", image_size=8, position="edited_lab.fourier.Fourier")
    RunRecord(run).update(parts={"edited_lab.fourier.Fourier": "of other code"})
    student = RunRecord.at(tmp_path / "student")
    student.write_config(to_plain(taught(tmp_path, run)))
    student.update(id="student", status="interrupted")
    refused = f"was edited since the run began. {run} teaches with the code it was trained with; resume=RUN"
    with pytest.raises(RunError, match=re.escape(refused)):
        resume(student.path, trust=["edited_lab"])
    with pytest.raises(RunError, match=r"began with no teacher, and has a teacher .* now; leave distill\.teacher out"):
        resume(student.path, trust=["edited_lab"], allow_changed_code=True)


def test_a_teacher_is_looked_for_only_to_train_on_and_also_where_it_was(teacher, tmp_path, capsys):
    run = RunRecord(untrained_run(tmp_path / "run", image_size=8))
    run.write_config(run.config | {"distill": {"teacher": "gone"}})
    run.write_metrics({})
    resume(run.path, compose([f"resume={run.path}"]))
    assert f"{run.path} is finished; trainer.max_epochs=N" in capsys.readouterr().out
    longer = compose([f"resume={run.path}", "trainer.max_epochs=1000"])
    with pytest.raises(ConfigError, match="names it: there is no such folder: only runs teach"):
        resume(run.path, longer)
    run.update(teacher={"run": str(teacher), "sha256": sha256(teacher)})
    assert teacher_of(run, longer.distill) == str(teacher)


def test_several_labels_per_image_cannot_be_taught():
    config = compose(["model=vit_nano"])
    config.distill.teacher, config.data.multi_label = __file__, True
    faults = distill_faults(config)
    assert [fault.problem for fault in faults] == [
        "is not the folder of a run: only runs teach",
        "teaches one class per image, and data.multi_label=true has several",
    ]


@pytest.mark.whole
def test_a_teacher_with_code_of_the_users_is_trusted_in_a_run_and_in_a_sweep_over_its_weight(
    train, tmp_path, monkeypatch
):
    enter_lab(tmp_path, monkeypatch, "teacher_lab")
    teacher = untrained_run(tmp_path / "teacher", image_size=8, position="teacher_lab.fourier.Fourier")
    command = [*SMALL, "distill.teacher=teacher"]
    refused = train(*command)
    assert refused.returncode == 1
    assert "names code outside vitrine, model.position=teacher_lab.fourier.Fourier" in refused.stderr
    assert not (tmp_path / "outputs").exists()
    allowed = train(*command, "trust=[teacher_lab]", "hydra.run.dir=single")
    assert allowed.returncode == 0, allowed.stderr
    swept = train("-m", *command, "distill.weight=0,0.5", "trust=[teacher_lab]")
    assert swept.returncode == 0, swept.stderr
    assert "teacher          teacher: soft at temperature 3, weight 0.5; " in swept.stdout
    records = [RunRecord(path.parent) for path in tmp_path.glob("outputs/sweeps/*/*/run.json")]
    taught_by = {record.config["distill"]["weight"]: record.facts["teacher"] for record in records}
    parts = ["teacher_lab.fourier.Fourier"]
    assert taught_by == {0.0: None, 0.5: {"run": str(teacher), "sha256": sha256(teacher), "parts": parts}}
    assert RunRecord(tmp_path / "single").facts["teacher"] == taught_by[0.5]
