"""The Hydra shell around :func:`vitrine.training.fit.fit`: compose, check, call, return.

A configuration is composed and checked before Hydra runs anything and before torch is imported, so that a mistake
costs a second and leaves nothing behind. In a multirun every trial is checked before the first one starts.
"""

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.config import EvalConfig, TrainConfig, train_faults
from vitrine.config.limits import faults
from vitrine.config.overrides import check_overrides, optional_section, quote
from vitrine.config.vit import missing_weights
from vitrine.data.folder import ImageFolder
from vitrine.errors import ConfigError, DataError, Fault, Interrupted, RunError, VitrineError
from vitrine.runs.provenance import command_began
from vitrine.runs.record import RunRecord, check_writable

SCHEMAS: dict[str, type] = {"train": TrainConfig, "eval": EvalConfig}


def compose(overrides: Sequence[str] = ()) -> TrainConfig:
    """A checked configuration from overrides as they are typed after ``train.py``: ``compose(["model=vit_nano"])``.

    Raises:
        ConfigError: something in it cannot work; the error has all faults.
    """
    (config,) = _compose_all("train", list(overrides), multirun=False)
    assert isinstance(config, TrainConfig)
    return config


def train() -> None:
    """``python train.py``: train once, or once for each point of a multirun."""
    _main("train", _train)


def evaluate() -> None:
    """``python eval.py``: the test metrics of a run, from its checkpoint."""
    _main("eval", _evaluate)


def _train(config: TrainConfig, varies: str) -> float:
    from vitrine.training.fit import fit
    from vitrine.training.measure import run_began
    from vitrine.training.resume import resume

    began, time_from = run_began(), command_began()
    hydra_config = HydraConfig.get()
    if config.resume is not None:
        words = list(hydra_config.overrides.task)
        result = resume(config.resume, config, words, began=began, time_from=time_from)
    elif hydra_config.mode is RunMode.MULTIRUN:
        place = Path(hydra_config.sweep.dir)
        result = fit(config, parent=place, varies=varies, began=began, time_from=time_from)
    else:
        result = fit(config, began=began, time_from=time_from)
    return result.metrics["val/acc"]


def _evaluate(config: EvalConfig, varies: str) -> float:
    from vitrine.training.evaluate import evaluate_run

    return evaluate_run(config)["test/acc"]


def _main(name: str, task: Callable[[Any, str], float]) -> None:
    """Run a command; Ctrl-C before or after training, where there is nothing to go on with, ends it quietly."""
    try:
        _run(name, task)
    except KeyboardInterrupt:
        _exit_with(Interrupted("interrupted"), Interrupted.exit_code, show_traceback=False)


def _run(name: str, task: Callable[[Any, str], float]) -> None:
    """Check what was typed, then let Hydra run ``task`` once or many times; exits non-zero if anything failed."""
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: "=" in word and not word.startswith("-"))  # flags first
    args = get_args_parser().parse_args()
    trials = 1
    show_traceback = any(
        word.startswith(("debug=", "debug.traceback=true", "traceback=true")) for word in args.overrides
    )
    if not (args.help or args.hydra_help or args.info or args.shell_completion):
        try:
            if args.cfg:
                _check_overrides(name, args.overrides)
            else:
                trials = len(_compose_all(name, args.overrides, multirun=args.multirun))
        except VitrineError as error:
            _exit_with(error, 2, show_traceback)

    with _composing() as loader:
        sys.argv[1:], overrides = quote(sys.argv[1:], loader), quote(args.overrides, loader)
    failed: list[str] = []

    def job(composed: DictConfig) -> float:
        what = _varies(overrides)
        if args.multirun:
            print(f"\ntrial {HydraConfig.get().job.num + 1} of {trials}: {what}", flush=True)
        try:
            return task(_finish(name, composed), what)
        except Interrupted as error:
            _exit_with(error, error.exit_code, show_traceback)
        except VitrineError as error:
            if not args.multirun:
                _exit_with(error, 2 if isinstance(error, ConfigError) else 1, show_traceback)
            print(f"vitrine: {error}", file=sys.stderr)
            failed.append(f"  {what}: {error}")
        except Exception as error:
            traceback.print_exc()
            if not args.multirun:
                sys.exit(1)
            failed.append(f"  {what}: {type(error).__name__}: {error}")
        return float("nan")

    hydra.main(config_path=str(_conf()), config_name=name, version_base="1.3")(job)()
    if failed:
        print("\n".join([f"vitrine: {len(failed)} of {trials} trials failed:", *failed]), file=sys.stderr)
        sys.exit(1)


def _varies(arguments: Sequence[str]) -> str:
    """What distinguishes the present trial from the others that ``arguments`` ask for: ``patch=2,seed=1``."""
    overrides = OverridesParser.create().parse_overrides(list(arguments))
    swept = {one.key_or_group for one in overrides if one.is_sweep_override()}
    words = [word for word in HydraConfig.get().overrides.task if word.partition("=")[0] in swept]
    return ",".join(words).replace("'", "")


def _compose_all(name: str, arguments: list[str], *, multirun: bool) -> list[TrainConfig | EvalConfig]:
    """The configuration of each trial that ``arguments`` ask for, all checked; the faults of all are told at once."""
    with _composing() as loader:
        sound, found = check_overrides(quote(arguments, loader), SCHEMAS[name], loader)
        overrides = OverridesParser.create(config_loader=loader).parse_overrides(sound)
        if multirun:
            points = _points(overrides, found)
        else:
            swept = [one for one in overrides if one.is_sweep_override()]
            problem = "has several values; python train.py -m ... runs them one after the other"
            found += [Fault(one.key_or_group, _typed(one), problem) for one in swept]
            points = [[one.input_line or "" for one in overrides if one not in swept]]
        configs: list[TrainConfig | EvalConfig] = []
        for point in points:
            try:
                usable, off = _sections_that_are_off(name, point)
                found += off
                configs.append(_finish(name, hydra.compose(name, usable)))
            except ConfigError as error:
                found += error.faults
            except (HydraException, OmegaConfBaseException) as error:
                found.append(_composition_fault(error))
    found += _devices_that_are_missing(configs)
    if found:
        raise ConfigError(found)
    return configs


def _sections_that_are_off(name: str, point: list[str]) -> tuple[list[str], list[Fault]]:
    """Split off overrides of a section that nothing turns on, such as logger.wandb.mode without logger=wandb."""
    inside = {word: section for word in point if (section := optional_section(SCHEMAS[name], word.partition("=")[0]))}
    if not inside:
        return point, []
    composed = hydra.compose(name, [word for word in point if word not in inside])
    off = [word for word, section in inside.items() if OmegaConf.select(composed, section) is None]
    found = []
    for word in off:
        key, _, value = word.partition("=")
        group, _, option = inside[word].partition(".")
        choice = f"[default,{option}]" if group == "callbacks" else option
        found.append(Fault(key, value, f"{inside[word]} is off; turn it on with {group}={choice}"))
    return [word for word in point if word not in off], found


def _typed(override: Override) -> str:
    """The value of an override as it was typed."""
    return (override.input_line or "").partition("=")[2].replace("'", "")


def _points(overrides: list[Override], found: list[Fault]) -> list[list[str]]:
    """The overrides of each trial of a multirun; values that can't be counted are added to ``found``."""
    endless = [one for one in overrides if one.is_sweep_override() and not one.is_discrete_sweep()]
    problem = "has no end of values; name some: a,b,c"
    found += [Fault(one.key_or_group, _typed(one), problem) for one in endless]
    (points,) = BasicSweeper.split_arguments([one for one in overrides if one not in endless], None)
    return points


def _check_overrides(name: str, arguments: list[str]) -> None:
    with _composing() as loader:
        _, found = check_overrides(quote(arguments, loader), SCHEMAS[name], loader)
    if found:
        raise ConfigError(found)


def _finish(name: str, composed: DictConfig) -> Any:
    """The typed configuration: what only the data's folder can say filled in, and everything checked."""
    found = []
    if name == "eval":
        if OmegaConf.is_missing(composed, "run"):
            raise ConfigError([Fault("run", "", "needs a run folder: python eval.py run=outputs/runs/RUN")])
    elif composed.resume is not None:
        found += _fault_of("resume", composed.resume, lambda: RunRecord.open(composed.resume))
    else:
        found += _fill_in(composed.data)
        if (source := composed.model.pretrained) is not None and (problem := missing_weights(source)):
            found.append(Fault("model.pretrained", source, problem))
        found += _fault_of(
            "paths.output_dir", composed.paths.output_dir, lambda: check_writable(Path(composed.paths.output_dir))
        )
    config = OmegaConf.to_object(composed)
    found += train_faults(config) if isinstance(config, TrainConfig) else faults(config)
    if found:
        raise ConfigError(found)
    return config


def _fill_in(data: DictConfig) -> list[Fault]:
    """Count the classes of a folder of pictures; what keeps that from being done is returned."""
    if data.name != "imagefolder":
        return []
    found = []
    if not data.root:
        found.append(
            Fault("data.root", "", "data=imagefolder needs the folder of your pictures, with train/<class>/* in it")
        )
    classes = 2  # stands in where they can't be counted, so that the rest is checked all the same
    if not found:
        try:
            classes = len(ImageFolder.scan(data.root).classes)
        except DataError as error:
            found.append(Fault("data.root", data.root, str(error)))
    if OmegaConf.is_missing(data, "num_classes"):
        data.num_classes = classes
    return found


def _fault_of(key: str, value: str, action: Callable[[], object]) -> list[Fault]:
    try:
        action()
    except RunError as error:
        return [Fault(key, value, str(error))]
    return []


def _devices_that_are_missing(configs: Sequence[TrainConfig | EvalConfig]) -> list[Fault]:
    """The GPUs that are asked for and aren't there. Imports torch, and so only where a GPU is asked for by name."""
    found: list[Fault] = []
    for config in configs:
        if isinstance(config, TrainConfig) and config.trainer.accelerator == "gpu":
            from vitrine.training.devices import choose, gpus
            from vitrine.training.estimate import missing_gpu

            if not gpus():  # said once, not for each trial of a multirun
                return [*found, missing_gpu(config, _conf() / "experiment")]
            try:
                choose(config)
            except ConfigError as error:
                found += error.faults
    return found


def _composition_fault(error: Exception) -> Fault:
    """What Hydra or OmegaConf says of a configuration file, as a fault."""
    causes = [str(one) for one in (error, error.__cause__) if one is not None]
    lines = dict.fromkeys(line.strip() for cause in causes for line in cause.splitlines() if line.strip())
    key = getattr(error.__cause__, "full_key", None) or "configuration"
    return Fault(
        str(key), "", "; ".join(line for line in lines if not line.startswith(("object_type", "reference_type")))
    )


def _exit_with(error: Exception, code: int, show_traceback: bool) -> NoReturn:
    if show_traceback:
        traceback.print_exception(error)
    else:
        print(f"vitrine: {error}", file=sys.stderr)
    sys.exit(code)


def _conf() -> Path:
    """The folder ``conf/``: at the top of a checkout, inside the package where it was installed from a wheel."""
    packaged = Path(__file__).parent / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "conf"


def _divide(one: float, other: float) -> float:
    """``${divide:0.2,${model.dim}}``. A width of 0 is a fault of its own, and not one of what is divided by it."""
    return one / max(other, 1)


def _if_set(value: object, then: object, otherwise: object) -> object:
    """``${if_set:${model.pretrained},learned,sincos2d}``: the second where the first is not null, else the third."""
    return otherwise if value is None else then


def _share(share: float, pixels: int) -> int:
    """``${share:0.125,${data.image_size}}``: so much of a length in whole pixels, rounded down, but one at least."""
    return max(1, int(share * pixels))


def _register() -> None:
    """Make known to Hydra what conf/ refers to."""
    for name, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{name}_schema", node=schema)
    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("share", _share, replace=True)
    OmegaConf.register_new_resolver("if_set", _if_set, replace=True)


@contextmanager
def _composing() -> Iterator[ConfigLoader]:
    """Hydra ready to compose from ``conf/``; what it was ready for before comes back after."""
    with hydra.initialize_config_dir(str(_conf()), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


_register()
