"""The Hydra shell around :func:`vitrine.training.fit.fit`: compose, check, call, return.

A configuration is composed and checked before Hydra runs anything and before torch is imported, so that a mistake
costs a second and leaves nothing behind. In a multirun every trial is checked before the first one starts.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from vitrine.command.compose import Point, check_words, composing, conf, finish, launcher, points
from vitrine.command.overrides import quote
from vitrine.config import EvalConfig
from vitrine.config.sweep import TrainCommand
from vitrine.distributed.rendezvous import enter
from vitrine.errors import ConfigError, Interrupted, RunError, VitrineError
from vitrine.runs.provenance import process_started_at


def train() -> None:
    """``python train.py``: train once, or once for each point of a multirun."""
    _main("train", _train, _sweep)


def evaluate() -> None:
    """``python eval.py``: the test metrics of a run, from its checkpoint."""
    _main("eval", _evaluate, _evaluate_all)


def _train(command: TrainCommand) -> float:
    from vitrine.training.fit import fit
    from vitrine.training.resume import resume

    began = process_started_at()
    if command.resume is not None:
        words = list(HydraConfig.get().overrides.task)
        result = resume(command.resume, command.run, words, began=began)
    else:
        result = fit(command.run, began=began)
    return result.metrics["val/acc"]


def _sweep(asked: list[Point], arguments: list[str]) -> int:
    from vitrine.sweeps.run import run

    return run(asked, launcher(arguments))


def _evaluate(config: EvalConfig) -> float:
    from vitrine.training.evaluate import evaluate_run

    return evaluate_run(config)["test/acc"]


def _evaluate_all(asked: list[Point], arguments: list[str]) -> int:
    """Test run after run; gives how many could not be tested."""
    failed = 0
    for point in asked:
        try:
            _evaluate(point.config)
        except VitrineError as error:
            print(f"vitrine: {point.config.run}: {error}", file=sys.stderr)
            failed += 1
    return failed


def _main(name: str, one: Callable[[Any], float], several: Callable[[list[Point], list[str]], int]) -> None:
    """Run a command; Ctrl-C before or after training, where there is nothing to go on with, ends it quietly."""
    try:
        enter()
        _run(name, one, several)
    except RunError as error:
        _exit_with(error, 1, show_traceback=False)
    except KeyboardInterrupt:
        _exit_with(Interrupted("interrupted"), Interrupted.exit_code, show_traceback=False)


def _run(name: str, one: Callable[[Any], float], several: Callable[[list[Point], list[str]], int]) -> None:
    """Check what was typed, then carry it out; exits non-zero if anything failed."""
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: "=" in word and not word.startswith("-"))  # flags first
    args = get_args_parser().parse_args()
    show_traceback = any(
        word.startswith(("debug=", "debug.traceback=true", "traceback=true")) for word in args.overrides
    )
    try:
        if args.help or args.hydra_help or args.info or args.shell_completion:
            pass
        elif args.cfg:
            check_words(name, args.overrides)
        else:
            asked = points(name, args.overrides, multirun=args.multirun)
            if args.multirun:
                sys.exit(1 if several(asked, args.overrides) else 0)
    except Interrupted as error:
        _exit_with(error, error.exit_code, show_traceback)
    except VitrineError as error:
        _exit_with(error, 2, show_traceback)

    def job(composed: DictConfig) -> float:
        try:
            return one(finish(name, composed, HydraConfig.get().overrides.task))
        except Interrupted as error:
            _exit_with(error, error.exit_code, show_traceback)
        except VitrineError as error:
            _exit_with(error, 2 if isinstance(error, ConfigError) else 1, show_traceback)
        except Exception:
            traceback.print_exc()
            sys.exit(1)

    sys.argv[1:] = _quoted(sys.argv[1:])
    hydra.main(config_path=str(conf()), config_name=name, version_base="1.3")(job)()


def _quoted(words: Sequence[str]) -> list[str]:
    with composing() as loader:
        return quote(words, loader)


def _exit_with(error: Exception, code: int, show_traceback: bool) -> NoReturn:
    if show_traceback:
        traceback.print_exception(error)
    else:
        print(f"vitrine: {error}", file=sys.stderr)
    sys.exit(code)
