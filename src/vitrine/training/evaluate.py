"""Measure a trained model, from its checkpoint, on test or validation images."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from rich.console import Console

from vitrine.config import EvalConfig, TrainConfig, vit_faults
from vitrine.config.part_failures import failing_in_one_line
from vitrine.config.parts import is_dotted
from vitrine.config.schema import OWN_FILES
from vitrine.config.serialize import from_plain
from vitrine.config.size import size_override
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.datasets import refuse_download
from vitrine.data.own_files import refuse_idle_root
from vitrine.data.workers import without_workers_key
from vitrine.distributed.hardware import Hardware, choose_hardware, lightning_deterministic, on_one_device
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.models import VisionTransformer
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import checkpoint_of
from vitrine.runs.image_groups import group_numbers
from vitrine.runs.predictions import write_predictions
from vitrine.runs.user_code import refuse_edited_model
from vitrine.text import report
from vitrine.training.changed_data import check_data, validation_splits
from vitrine.training.console import quiet_libraries, show_result
from vitrine.training.lit_module import Classifier
from vitrine.training.losses import check_state
from vitrine.training.metrics import by_target, class_metrics, measure, own_metrics
from vitrine.training.weights import check_size, differences, load_weights, model_weights, read_checkpoint


@dataclass(frozen=True)
class Evaluation:
    """Metrics of the images of a split, with their logits and labels.

    Attributes:
        metrics: for ``split="test"``, ``test/acc``, ``test/loss``, those of training/metrics.py, and those of
            ``callbacks.metrics``; those of further targets, too, as ``test/acc/NAME``.
        logits: (N, num_classes) float32; of several targets, those of the first.
        labels: (N,) int64; or (N, num_classes) uint8, where images have several.
        further: logits and labels of further targets, by name.
        groups: (N,) int32, the number of each image's group; ``None`` without ``data.group``.
    """

    metrics: dict[str, float]
    logits: np.ndarray
    labels: np.ndarray
    further: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    groups: np.ndarray | None = None

    def save(self, record: RunRecord) -> None:
        """Write predictions.npz."""
        arrays = {"logits": self.logits, "labels": self.labels}
        for name, (logits, labels) in self.further.items():
            arrays |= {f"logits/{name}": logits, f"labels/{name}": labels}
        if self.groups is not None:
            arrays["groups"] = self.groups
        write_predictions(record.path / "predictions.npz", arrays)


def classifier_from(config: TrainConfig, checkpoint: dict[str, Any]) -> Classifier:
    """Build the model and the loss of a checkpoint, resized to the image and patch size of ``config``.

    Raises:
        RunError: the weights don't fit the model that ``config`` describes.
        ConfigError: the model can't be resized to these sizes.
    """
    stored = replace(
        config.model,
        image_size=checkpoint["config"]["model"]["image_size"],
        patch_size=checkpoint["config"]["model"]["patch_size"],
    )
    weights = model_weights(checkpoint)
    check_size(stored, weights, "the checkpoint")
    module = Classifier(replace(config, model=stored), steps=0, images_per_step=0, all_ranks=False)
    if config.trainer.precision == "64-true":
        module.double()
    load_weights(module.model, weights, "the checkpoint")
    if isinstance(module.criterion, torch.nn.Module):
        state = model_weights(checkpoint, "criterion.")
        check_state(module.criterion, config.loss.name, state)
        module.criterion.load_state_dict(state)
    if stored != config.model:
        if not isinstance(module.model, VisionTransformer):
            size = size_override(config.model.image_size)
            raise ConfigError([Fault("image_size", size, f"model={config.model.name} cannot be resized")])
        module.model = module.model.resized(image_size=config.model.image_size, patch_size=config.model.patch_size)
    return module


def evaluate_split(
    config: TrainConfig, module: Classifier, data: ImageDataModule, hardware: Hardware, split: str = "test"
) -> Evaluation:
    """Measure a model on the images of ``test`` or ``val``, on this rank alone."""
    data.tested = split
    trainer = pl.Trainer(
        accelerator=hardware.accelerator,
        devices=1,
        precision=hardware.lightning_precision,  # type: ignore[arg-type]
        deterministic=lightning_deterministic(config.trainer.deterministic),
        limit_test_batches=config.debug.limit_batches,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=LightningEnvironment(),
    )
    with failing_in_one_line(config):
        trainer.test(module, datamodule=data, verbose=False)
    found = trainer.callback_metrics.items()
    metrics = {f"{split}/{name.removeprefix('test/')}": float(value) for name, value in found}
    logits, labels = (torch.cat(parts) for parts in zip(*module.test_outputs, strict=True))
    (logits, labels), *others = by_target(logits, labels, config.data.classes_per_target)
    names = data.groups_of(split)
    groups = None if names is None else group_numbers(names[: len(labels)])  # fewer with debug.limit_batches
    further = measure(logits, labels) | class_metrics(logits, labels, data.dataset.classes, groups)
    metrics |= {f"{split}/{name}": value for name, value in further.items()}
    named = dict(zip(config.data.targets[1:], others, strict=True))
    own = own_metrics(config.callbacks) if named else {}  # of the first target, the trainer measured them
    for target, values in named.items():
        metrics |= {f"{split}/{name}/{target}": value for name, value in measure(*values, own=own).items()}
    arrays = {target: (of_target.numpy(), true.numpy()) for target, (of_target, true) in named.items()}
    return Evaluation(metrics, logits.numpy(), labels.numpy(), arrays, groups)


def evaluate_run(options: EvalConfig) -> dict[str, float]:
    """Measure a run's best checkpoint, or that of an epoch, and print the result. The run folder is not changed.

    Raises:
        RunError: there is no such run, its checkpoint is missing, damaged or refused, its data has no test images, or
            its data or the code of its model or metrics has changed.
        DataError: its data is missing or damaged.
        ConfigError: its model can't be resized as asked, or its data is read from no folder and ``data_root`` given.
    """
    record = RunRecord.open(options.run)
    path = checkpoint_of(record, options.checkpoint)
    if (status := record.status) != "finished" and options.checkpoint is None:
        report(f"{record.path} is {status}, not finished: its best epoch so far is tested")
    checkpoint = read_checkpoint(path)
    config = from_plain(TrainConfig, checkpoint["config"], trust=options.trust, source=path)
    stored = from_plain(TrainConfig, record.config, trust=options.trust, source=record.path).model
    if other := differences(checkpoint["config"]["model"], stored):
        raise RunError(f"{path} belongs to another model than {record.path / 'config.yaml'}: {', '.join(other)}")
    if not options.allow_changed_code:
        refuse_edited_model(record, config.model, filter(is_dotted, config.callbacks.metrics))
    if options.data_root is None:
        advice = "; data_root=DIR names the folder that holds it"
        own = config.data.name in OWN_FILES
        refuse_download(config.data, advice if own else f"{advice}, or where it is downloaded to")
    else:
        refuse_idle_root(config.data, options.data_root)
        config.data.root = options.data_root
    if not any(Path(config.paths.cache_dir).glob("*.npz")):  # others may have made the run, so no cache is begun there
        config.data.storage = "disk"
    config.data.image_size = config.model.image_size = options.image_size or config.model.image_size
    config.model.patch_size = options.patch_size or config.model.patch_size
    if found := vit_faults(config.model):
        raise ConfigError(found)
    config = on_one_device(config, options.accelerator)
    with quiet_libraries(), without_workers_key():
        hardware = choose_hardware(config)
        with hardware.set_up(), hardware.caller_rng_kept():
            data = ImageDataModule(config, hardware.accelerator, patience=0.0)  # only images of the split need decoding
            split = options.split
            if split == "test" and data.test is None:
                problem = "has no test images; split=val measures its validation images"
                raise RunError(f"{record.path}: its data in {config.data.root} {problem}")
            splits = ["test"] if split == "test" else validation_splits(data)
            check_data(record, data, accept=options.accept_changed_data, splits=splits, key="data_root")
            evaluation = evaluate_split(config, classifier_from(config, checkpoint), data, hardware, split)
        show_result(Console(), record, evaluation.metrics, without_test=split != "test", epoch=options.checkpoint)
    return evaluation.metrics
