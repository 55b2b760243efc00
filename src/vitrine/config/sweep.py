"""Keys of ``train.py`` that are not a run's configuration: which runs ``-m`` makes, and how they are launched."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from vitrine.config.fields import KeyFacts, as_float, choice, number, setting
from vitrine.config.keys import key_facts, kind
from vitrine.config.metrics import TEST, VALIDATION, bias_of
from vitrine.config.schema import OF_OWN, TrainConfig
from vitrine.errors import Fault

LAUNCHERS = ("basic", "process", "slurm")
# Keys of the section launcher that each launcher reads. Others have no effect with it.
READ_BY = {
    "basic": (),
    "process": ("workers", "threads", "per_gpu"),
    "slurm": ("workers", "threads", "time", "mem_gb", "gpus", "partition", "account", "qos", "setup", "sbatch"),
}
# Options of sbatch that launcher=slurm sets, by the keys for them, and those that its jobs rely on.
KEYS_OF_SBATCH = {
    "time": "launcher.time",
    "mem": "launcher.mem_gb",
    "cpus-per-task": "launcher.threads",
    "gpus-per-node": "launcher.gpus",
    "partition": "launcher.partition",
    "account": "launcher.account",
    "qos": "launcher.qos",
    "array": "launcher.workers",
    "job-name": "sweep.name",
}
FIXED_IN_SBATCH = (
    *("error", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "signal", "wrap"),
    *("requeue", "no-requeue"),
)
SAMPLERS = ("tpe", "random", "grid", "cmaes", "nsga2")
PRUNERS = ("none", "median", "successive_halving")

# Metrics that a search can optimise.
OBJECTIVES = (*VALIDATION, "images_per_second", "train_seconds", "parameters", "flops_per_image")

# Rules by which ``sweep=decide`` stops, its keys, and metrics that it decides by.
DECISION_METHODS = ("group_sequential", "anytime")
DECISION_KEYS = ("metric", "alpha", "difference", "min_seeds", "max_seeds")
DECISION_METRICS = tuple(name for name in VALIDATION + TEST if not bias_of(name))

# Keys and groups that repeat a comparison in place of adding a choice to it.
CROSSED = ("seed", "data.fold", "data.val_seed", "data", "data.root")

# Keys that choose images and labels.
DATA_KEYS = ("data.name", "data.root", "data.targets", "data.multi_label")

# Hydra's own settings: how runs are carried out, not what they are.
HYDRA = KeyFacts(affects_result=False, shared_by_trials=True)


@dataclass
class SweepConfig:
    """Which runs a multirun consists of, in addition to those of overrides with several values.

    Attributes:
        name: folder under ``sweeps/``; null is a name made from the overrides.
        space: keys or groups with lists of values; overrides take precedence. In a search also intervals, ``{low:
            1e-4, high: 1e-2, log: true}`` (command/space.py).
        one_at_a_time: run the first value of every key together, and each other value alone in place of its key's
            first; each with every seed, fold and data set. Otherwise every combination runs.
        sampler: how a search chooses trials; null runs every combination instead of a search.
        n_trials: total number of trials of a search; null with the grid sampler is every combination.
        repeats: runs of each trial of a search, with successive seeds; their mean ranks it.
        metrics: objectives of a search: metrics of the validation split, ``images_per_second``, ``train_seconds``,
            ``parameters``, ``flops_per_image`` (docs/search.md).
        pruner: rule that stops unpromising runs of a search early.
        method: rule by which seeds are trained until each configuration is better or worse than the first, or is given
            up; null trains every combination.
        metric: metric that is decided by, announced in sweep.json before the first run.
        alpha: probability of any false verdict, over all configurations and looks.
        difference: differences up to this size do not matter, in the metric's unit (0.003 is 0.3 points of accuracy);
            null if every one does.
        min_seeds: seeds of each configuration before the first verdict.
        max_seeds: seeds after which a configuration stays undecided.
    """

    name: str | None = None
    space: dict[str, Any] = setting({})
    one_at_a_time: bool = False
    sampler: str | None = choice(SAMPLERS, None)
    n_trials: int | None = number(None, ge=1, le=1_000_000)
    repeats: int = number(1, ge=1, le=100)
    metrics: list[str] = setting(["val/acc"])
    pruner: str = choice(PRUNERS, "none")
    method: str | None = choice(DECISION_METHODS, None)
    metric: str = choice(DECISION_METRICS, "val/acc", others=OF_OWN.replace("val/NAME`", "val/NAME` or `test/NAME`"))
    alpha: float = number(0.05, gt=0, lt=1)
    difference: float | None = number(None, gt=0)
    min_seeds: int = number(3, ge=3, le=1000)
    max_seeds: int = number(20, ge=3, le=1000)


@dataclass
class LauncherConfig:
    """How the trials of a multirun are launched, where ``hydra/launcher`` is not basic.

    Attributes:
        workers: concurrent trials; null is ``per_gpu`` for each GPU, by default one, and on CPUs one per ``threads``
            cores, by default one per two cores.
        threads: CPU threads of each trial; null divides the cores among the workers.
        per_gpu: trials that may share a GPU; null is as many as ``workers`` takes.

    For slurm, ``workers`` is the number of concurrent jobs of an array, by default all; ``threads`` is 4 per rank by
    default.

    Attributes:
        time: time limit of a job in minutes. A longer trial saves, and is resumed by another job.
        mem_gb: memory of a job in GiB; null is the cluster's default.
        gpus: GPUs of a job; null is trainer.devices if the accelerator is gpu, else 0.
        partition, account, qos: as in sbatch.
        setup: shell commands at the start of each job, such as ``module load cuda``.
        sbatch: further options of sbatch: ``--constraint=a100``.
    """

    workers: int | None = number(None, ge=1, le=1024)
    threads: int | None = number(None, ge=1, le=1024)
    per_gpu: int | None = number(None, ge=1, le=1024)
    time: int = number(240, ge=5, le=525_600)
    mem_gb: int | None = number(16, ge=1, le=65_536)
    gpus: int | None = number(None, ge=0, le=64)
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    setup: list[str] = setting([])
    sbatch: list[str] = setting([])


@dataclass
class TrainCommand(TrainConfig):
    """All keys of ``train.py``.

    Attributes:
        sweep, launcher: settings of a multirun.
        rerun: run all trials of a multirun again, in a new folder beside the existing one.
        trust: with ``resume``, ``like`` or ``distill.teacher``, prefixes of the dotted names of a run that may be
            imported: ``[my_lab]``.
        allow_changed_code: resume although the source of the run's own parts was edited.
        accept_changed_data: resume although the images or classes are not those that the run began with.
        force: take runs over from processes on other machines without watching them for a sign of life.
    """

    sweep: SweepConfig = setting(SweepConfig, affects_result=False, shared_by_trials=True)
    launcher: LauncherConfig = setting(LauncherConfig, affects_result=False, shared_by_trials=True)
    rerun: bool = setting(False, affects_result=False, shared_by_trials=True)
    trust: list[str] = setting([], affects_result=False, shared_by_trials=True, describes_run=False)
    allow_changed_code: bool = setting(False, affects_result=False, shared_by_trials=True, describes_run=False)
    accept_changed_data: bool = setting(False, affects_result=False, shared_by_trials=True, describes_run=False)
    force: bool = setting(False, affects_result=False, shared_by_trials=True, describes_run=False)

    @property
    def run(self) -> TrainConfig:
        """The configuration of a run."""
        return TrainConfig(**{one.name: getattr(self, one.name) for one in fields(TrainConfig)})


def facts_of(name: str) -> KeyFacts:
    """Return the facts of a key, a section or a config group as typed after ``train.py``.

    A group has the facts of the section of that name (``sweep=grid``, ``logger=csv``); other groups have those that
    most keys have.
    """
    key = name.partition("/")[0]
    return HYDRA if key.partition(".")[0] == "hydra" else key_facts(TrainCommand, key)


def sbatch_faults(options: Sequence[str]) -> Iterator[Fault]:
    """Yield why an option of ``launcher.sbatch`` cannot be passed on."""
    for option in options:
        given = re.split(r"[=\s]", option.removeprefix("--"))[0].replace("_", "-")  # as submitit does
        known = (name for name in (*KEYS_OF_SBATCH, *FIXED_IN_SBATCH) if name.startswith(given))  # sbatch: --arr
        if not option.startswith("--") or not given:
            yield Fault("launcher.sbatch", option, "must be an option's long name, as in --constraint=a100")
        elif (name := next(known, "")) in KEYS_OF_SBATCH:
            yield Fault("launcher.sbatch", option, f"is set by {KEYS_OF_SBATCH[name]}")
        elif name:
            yield Fault("launcher.sbatch", option, "is set by the launcher, whose jobs rely on it")


def one_spelling(key: str, text: str) -> str:
    """Return the value ``text`` of an override in its one spelling, where the key takes numbers, or true and false.

    ``1.0`` and ``1`` are ``1``; ``1e-1``, ``.1`` and ``0.1`` are ``0.1``; ``True`` is ``true``. Others stay.
    """
    hint = kind(TrainCommand, key)
    if hint is float:
        return _number(text)
    if hint is bool:
        return text.lower()
    if hint == list[float] and text[:1] == "[" and text[-1:] == "]":
        return f"[{','.join(map(_number, text[1:-1].split(',')))}]"
    return text


def _number(text: str) -> str:
    value = as_float(text.strip("'"))
    return str(value).removesuffix(".0") if isinstance(value, float) else text
