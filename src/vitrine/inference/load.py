"""Load a run with its model, to use it from Python."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import nn

from vitrine.config import TrainConfig, vit_config_from
from vitrine.config.serialize import from_plain
from vitrine.errors import ConfigError, RunError
from vitrine.models import build_model
from vitrine.runs import RunRecord
from vitrine.training.weights import load_weights, model_weights, read_checkpoint


@dataclass(frozen=True)
class LoadedRun:
    """A run folder with its model.

    Attributes:
        record: the run folder: facts, history, paths.
        trust: prefixes of the dotted names that may be imported.
    """

    record: RunRecord
    trust: tuple[str, ...] = ()

    @cached_property
    def config(self) -> TrainConfig:
        """The run's configuration.

        Raises:
            RunError: it cannot be read, or names code outside :attr:`trust`.
        """
        return from_plain(TrainConfig, self.record.config, trust=self.trust, source=self.record.path)

    @property
    def metrics(self) -> dict[str, float]:
        """Final metrics, such as ``test/acc``; empty for a run that is not finished."""
        return self.record.metrics

    @cached_property
    def model(self) -> nn.Module:
        """The model of the best epoch, on the CPU, in evaluation mode. Takes normalised images, (B, C, H, W), float.

        Raises:
            RunError: the checkpoint is missing, damaged or refused, or names code outside :attr:`trust`.
        """
        checkpoint = read_checkpoint(self.record.best)
        try:
            stored = checkpoint["config"]["model"]
            model = build_model(vit_config_from(stored, trust=self.trust, source=self.record.path))
        except (KeyError, TypeError, ConfigError) as error:
            problem = f"{self.record.best} contains a model that this version of vitrine does not know"
            raise RunError(f"{problem}: {error}") from None
        load_weights(model, model_weights(checkpoint), str(self.record.best))
        return model.eval()


def load_run(folder: str | Path, *, trust: Collection[str] = ()) -> LoadedRun:
    """Open a run folder.

    Args:
        folder: the run folder.
        trust: prefixes of the dotted names that the run may import, for runs with parts of your own: ``["my_lab"]``.

    Raises:
        RunError: there is no run at ``folder``.
    """
    return LoadedRun(RunRecord.open(folder), tuple(trust))
