"""Overrides of Hydra's own settings: which have an effect, and what to type in place of the others."""

from collections.abc import Iterator, Mapping

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from vitrine.config.sweep import LAUNCHERS
from vitrine.errors import Fault
from vitrine.runs.flatten import flatten
from vitrine.text import nearest

OUTPUT_DIRS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")

# Settings that a file may have, and what Hydra itself sets for each composition.
USED: tuple[str, ...] = (
    *OUTPUT_DIRS,
    "hydra.searchpath",
    "hydra.help",
    "hydra.launcher._target_",
    "hydra.sweeper._target_",
)
USED += ("hydra.runtime", "hydra.overrides", "hydra.job.config_name", "hydra.job.override_dirname")

# What to type in place of a setting that has no effect, by the beginning of its key.
INSTEAD = {
    "hydra.job.chdir": "the working directory is kept, so that paths stay valid; hydra.run.dir=DIR sets the run folder",
    "hydra.job.name": "name=NAME is part of the run folder's name",
    "hydra.job.env_set": "set environment variables before the command: export NAME=VALUE",
    "hydra.output_subdir": "config.yaml and the command are in every run folder",
    "hydra.searchpath": "--config-dir=DIR adds a folder of configurations",
    "hydra.mode": "-m runs several configurations",
    "hydra.launcher": "launcher.workers=N and other keys of launcher set up every launcher",
    "hydra.sweeper": "sweep.sampler, sweep.n_trials, sweep.space and other keys of sweep set up a search",
    "hydra.callbacks": "callbacks=[default,...] turns on those of training",
    "hydra.job_logging": "what a command prints can be redirected: ... | tee log.txt",
    "hydra.hydra_logging": "what a command prints can be redirected: ... | tee log.txt",
    "hydra.verbose": "debug=traceback shows where an error comes from, --info all how a configuration is composed",
}
LAUNCHERS_OF_PLUGINS = {
    "joblib": "process",
    "ray": "process",
    "rq": "process",
    "loky": "process",
    "multiprocessing": "process",
    "submitit_slurm": "slurm",
    "submitit": "slurm",
    "submitit_local": "process",
}


def hydra_faults(override: Override) -> Iterator[Fault]:
    """Yield what is wrong with an override whose key begins with ``hydra``."""
    key, chooses = override.key_or_group, override.key_or_group in ("hydra/launcher", "hydra/sweeper")
    if (chooses or key in OUTPUT_DIRS) and override.is_sweep_override():
        yield Fault(key, (override.input_line or "").partition("=")[2], "takes one value")
    elif chooses:
        yield from choice_faults(key, {key: override.get_value_element_as_str().strip("'\"")})
    elif key not in OUTPUT_DIRS:
        yield _unused(key)


def unused_settings(settings: DictConfig, packaged: DictConfig) -> list[Fault]:
    """Return a fault for each setting without effect in which a user's files differ from those ``packaged``."""
    given, known = (flatten(OmegaConf.to_container(one), "hydra.") for one in (settings, packaged))  # type: ignore[arg-type]
    differing = [key for key in given if given[key] != known.get(key) and not key.startswith(USED)]
    return list(dict.fromkeys(map(_unused, differing)))


def _unused(key: str) -> Fault:
    dotted = key.replace("/", ".")
    hints = [hint for setting, hint in INSTEAD.items() if f"{dotted}.".startswith(f"{setting}.")]
    problem = hints[0] if hints else f"only {', '.join(OUTPUT_DIRS)} and hydra/launcher"
    return Fault(key, "", f"this setting of Hydra is not used here: {problem}")


def choice_faults(group: str, choices: Mapping[str, str]) -> Iterator[Fault]:
    """Yield why the choice of ``hydra/launcher`` or ``hydra/sweeper`` cannot be used, typed or in a file."""
    choice = choices[group]
    if group == "hydra/launcher" and choice not in LAUNCHERS:
        near = LAUNCHERS_OF_PLUGINS.get(choice) or nearest(choice, LAUNCHERS)
        problem = f"is not one of vitrine's launchers: {', '.join(LAUNCHERS)}"
        yield Fault(group, choice, problem, f"hydra/launcher={near}" if near else "")
    elif group == "hydra/sweeper" and choice != "basic":
        near = "sweep=optuna/lr_wd" if choice == "optuna" else ""
        problem = "searches are set up by the group sweep, in place of Hydra's sweepers; see conf/sweep"
        yield Fault(group, choice, problem, near)
