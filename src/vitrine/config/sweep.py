"""What ``train.py`` can be told beside a run's configuration: which runs ``-m`` makes, and where they are made."""

from dataclasses import dataclass, fields
from typing import Any

from vitrine.config.fields import Facts, choice, number, setting
from vitrine.config.keys import facts
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

# Hydra's own settings: how runs are carried out, not what they are.
HYDRA = Facts(affects_result=False, shared_by_trials=True)


@dataclass
class SweepConfig:
    """Which runs a multirun is made of, beside those that values with commas ask for.

    Attributes:
        name: folder under ``sweeps/``; null makes one from what is asked for.
        space: keys or groups with their values, as if typed with commas; what is typed comes before it. In a search
            also an interval, ``{low: 1e-4, high: 1e-2, log: true}`` (command/space.py).
        sampler: who chooses the next trial of a search; null is no search, but every combination.
        n_trials: of a search, in all; null, with the grid sampler, is every combination.
        repeats: runs of each trial of a search, with successive seeds; it is judged by their mean.
        metrics: what a search goes by, one or several of ``OBJECTIVES``.
        pruner: stops runs of a search that others leave behind.
    """

    name: str | None = None
    space: dict[str, Any] = setting({})
    sampler: str | None = choice(SAMPLERS, None)
    n_trials: int | None = number(None, ge=1, le=1_000_000)
    repeats: int = number(1, ge=1, le=100)
    metrics: list[str] = setting(["val/acc"])
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
    setup: list[str] = setting([])
    sbatch: list[str] = setting([])


@dataclass
class TrainCommand(TrainConfig):
    """Everything that can be typed after ``train.py``.

    Attributes:
        sweep, launcher: of a multirun.
        rerun: carry out all trials of a multirun anew, in a folder beside the one that is there.
        trust: with ``resume`` or ``like``, prefixes of the dotted names of a run that may be imported: ``[my_lab]``.
        allow_changed_code: with ``resume``, go on although the code of the run's own parts was edited.
    """

    sweep: SweepConfig = setting(SweepConfig, affects_result=False, shared_by_trials=True)
    launcher: LauncherConfig = setting(LauncherConfig, affects_result=False, shared_by_trials=True)
    rerun: bool = setting(False, affects_result=False, shared_by_trials=True)
    trust: list[str] = setting([], affects_result=False, shared_by_trials=True, describes_run=False)
    allow_changed_code: bool = setting(False, affects_result=False, shared_by_trials=True, describes_run=False)

    @property
    def run(self) -> TrainConfig:
        """What one run is made with."""
        return TrainConfig(**{one.name: getattr(self, one.name) for one in fields(TrainConfig)})


def facts_of(name: str) -> Facts:
    """Return the facts of a key, a section or a config group as typed after ``train.py``.

    A group has the facts of the section of that name (``sweep=grid``, ``logger=csv``); other groups have those that
    most keys have.
    """
    key = name.partition("/")[0]
    return HYDRA if key.partition(".")[0] == "hydra" else facts(TrainCommand, key)
