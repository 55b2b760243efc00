"""What ``train.py`` can be told beside a run's configuration: which runs ``-m`` makes, and where they are made."""

from dataclasses import dataclass, field, fields
from typing import Any

from vitrine.config.fields import choice, number
from vitrine.config.schema import TrainConfig

CLUSTERS = ("slurm", "local")
LAUNCHERS = ("basic", "process", *CLUSTERS)
SAMPLERS = ("tpe", "random", "grid", "cmaes", "nsga2")
PRUNERS = ("none", "median", "successive_halving")

# What a search can go by, and whether more of it is better.
OBJECTIVES = {
    "val/acc": True,
    "val/loss": False,
    "images_per_second": True,
    "train_seconds": False,
    "parameters": False,
    "flops_per_image": False,
}

# What cannot change what a run comes to: another value here makes no other trial and no other sweep.
WITHOUT_EFFECT = (
    "paths",
    "logger",
    "launcher",
    "sweep",
    "hydra",
    "rerun",
    "name",
    "tags",
    "resume",
    "like",
    "debug.traceback",
    "debug.profile",
    "data.storage",
    "data.workers",
    "trainer.log_every_n_steps",
    "trainer.max_time",
)

# What is no matter of single trials.
SAME_FOR_ALL = ("paths", "sweep", "launcher", "hydra", "rerun", "resume")


@dataclass
class SweepConfig:
    """Which runs a multirun is made of, beside those that values with commas ask for.

    Attributes:
        name: folder under ``sweeps/``; null makes one from what is asked for.
        space: keys or groups with their values, as if typed with commas; what is typed comes before it. In a search
            also an interval, ``{low: 1e-4, high: 1e-2, log: true}`` (config/space.py).
        sampler: who chooses the next trial of a search; null is no search, but every combination.
        n_trials: of a search, in all; null, with the grid sampler, is every combination.
        repeats: runs of each trial of a search, with successive seeds; it is judged by their mean.
        metrics: what a search goes by, one or several of ``OBJECTIVES``.
        pruner: stops runs of a search that others leave behind.
    """

    name: str | None = None
    space: dict[str, Any] = field(default_factory=dict)
    sampler: str | None = choice(SAMPLERS, None)
    n_trials: int | None = number(None, ge=1, le=1_000_000)
    repeats: int = number(1, ge=1, le=100)
    metrics: list[str] = field(default_factory=lambda: ["val/acc"])
    pruner: str = choice(PRUNERS, "none")


@dataclass
class LauncherConfig:
    """How the trials of a multirun are carried out, where ``hydra/launcher`` is not basic.

    Attributes:
        workers: trials at a time; null is as many as there is room for: on GPUs ``per_gpu`` each, on CPUs one per
            ``threads`` cores, and where that is null, too, one per two cores.
        threads: CPU threads of each trial; null shares the cores out among the workers.
        per_gpu: trials that share a GPU.

    Of jobs (slurm, and local, which tries it without a cluster). There ``workers`` may run at a time, all of them where
    it is null, or one if local; and null ``threads`` are four for each process.

    Attributes:
        time: minutes a job may take. A trial that needs more saves, waits in the queue again, and goes on.
        mem_gb: memory of a job, in GiB; null is what the cluster gives.
        gpus: of each job; null is one for each of trainer.devices if the accelerator is gpu, else none.
        partition, account, qos: as in sbatch.
        setup: shell commands before each job's, such as ``module load cuda``.
        sbatch: other options, as sbatch takes them: ``--constraint=a100``.
    """

    workers: int | None = number(None, ge=1, le=1024)
    threads: int | None = number(None, ge=1, le=1024)
    per_gpu: int = number(1, ge=1, le=64)
    time: int = number(240, ge=5, le=525_600)
    mem_gb: int | None = number(16, ge=1, le=65_536)
    gpus: int | None = number(None, ge=0, le=64)
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    setup: list[str] = field(default_factory=list)
    sbatch: list[str] = field(default_factory=list)


@dataclass
class TrainCommand(TrainConfig):
    """Everything that can be typed after ``train.py``.

    Attributes:
        sweep, launcher: of a multirun.
        rerun: carry out all trials of a multirun anew, in a folder beside the one that is there.
    """

    sweep: SweepConfig = field(default_factory=SweepConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    rerun: bool = False

    @property
    def run(self) -> TrainConfig:
        """What one run is made with."""
        return TrainConfig(**{one.name: getattr(self, one.name) for one in fields(TrainConfig)})


def is_same_for_all(key: str) -> bool:
    """Whether all trials of a multirun share ``key``."""
    return key.split(".")[0].split("/")[0] in SAME_FOR_ALL


def has_no_effect(key: str, data: str = "") -> bool:
    """Whether ``key`` cannot change what a run on the data source ``data`` comes to.

    The folder of a known data set is only where it lies; that of one's own pictures is which pictures they are.
    """
    if key == "data.root":
        return data != "imagefolder"
    return any(key == one or key.startswith((f"{one}.", f"{one}/")) for one in WITHOUT_EFFECT)
