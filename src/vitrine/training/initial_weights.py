"""Initial weights from (seed, parameter name): a change in one part of a model leaves the others as they were.

A model draws its weights from one stream of random numbers, so that one more parameter changes all that are drawn after
it. Here each parameter has a stream of its own. Which draw belongs to which parameter is observed while the model is
built, so that this holds for any module, whoever wrote it and however it initialises its weights.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitrine.config.parts import PartError
from vitrine.data.epoch_plan import derive_seed

Built = TypeVar("Built", bound=nn.Module)
Stream = tuple[str, int]


def drawn_by_name(build: Callable[[], Built], seed: int) -> Built:
    """Return the module that ``build`` makes, with random values that follow from ``seed`` and their names alone.

    They do not depend on what else is drawn, nor on the order in which it is. Tensors that are computed from the same
    draws, such as layers that start as copies, remain so. Buffers count as parameters; draws that reach neither, with
    a generator of their own or outside of PyTorch, are left as they are. Draws on other devices than the CPU are, too.

    Args:
        build: makes the module; called twice, and must do the same both times.
        seed: any integer.
    """
    with torch.random.fork_rng(devices=[]):
        with Draws(seed, {}) as observed:
            streams = observed.streams(build())
        with Draws(seed, streams):
            return build()


def check_all_stored(build: Callable[[], nn.Module], shape: Sequence[int], parts: Sequence[str]) -> None:
    """Check that a model with parts of the user's computes the same after its state dict is loaded into another.

    A part whose outputs differ from call to call, by noise of its own, is not checked.

    Args:
        build: makes the model.
        shape: of images that it takes, (B, C, H, W).
        parts: dotted names of the user's parts.

    Raises:
        PartError: it keeps random values that no checkpoint holds: a saved model would compute something else.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        images = torch.randn(*shape)
        one, other = build().eval(), build().eval()
        for parameter in one.parameters():  # some begin at 0, and would hide what they multiply
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
        other.load_state_dict(one.state_dict())
        logits, again, loaded = one(images), one(images), other(images)
    if torch.equal(logits, again) and not torch.allclose(logits, loaded, equal_nan=True):
        problem = "computes with random values that no checkpoint holds: register them as buffers, with persistent=True"
        raise PartError(", ".join(parts), problem)


class Draws(TorchDispatchMode):
    """Seeds each random draw by its stream, and follows drawn values through operations into parameters.

    A draw into memory that holds drawn values already, such as an initialisation after PyTorch's default, continues
    their stream. Any other draw begins a source, numbered in order.

    Args:
        seed: of all streams.
        streams: by the number of the source; sources that are missing have a stream each.
    """

    supports_higher_order_operators = True  # a user's part may have one in its forward pass

    def __init__(self, seed: int, streams: Mapping[int, Stream]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._streams = seed, streams
        self._sources: dict[StorageWeakRef, frozenset[int]] = {}  # of the values in each memory
        self._draws = Counter[int]()  # of each source; its length is the number of sources

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, seeded if it is random."""
        kwargs = kwargs or {}
        sources = frozenset[int]().union(*(self.sources_of(tensor) for tensor in _tensors((args, kwargs))))
        if torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ()):
            sources = sources or frozenset([len(self._draws)])
            self._start_draw(min(sources))
        result = operator(*args, **kwargs)
        if sources:
            for tensor in _tensors(result):
                self._sources[StorageWeakRef(tensor.untyped_storage())] = self.sources_of(tensor) | sources
        return result

    def sources_of(self, tensor: Tensor) -> frozenset[int]:
        """Return the sources that the values of ``tensor`` depend on."""
        return self._sources.get(StorageWeakRef(tensor.untyped_storage()), frozenset())

    def streams(self, model: nn.Module) -> dict[int, Stream]:
        """Return the stream of each source in a model built under this mode: a parameter's name, and a count from 0.

        The name is the first in alphabetical order if a source reached several parameters.
        """
        names: dict[int, str] = {}
        for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda pair: pair[0]):
            for source in sorted(self.sources_of(tensor)):
                names.setdefault(source, name)
        counts = Counter[str]()
        streams = {}
        for source in sorted(names):
            streams[source] = (names[source], counts[names[source]])
            counts[names[source]] += 1
        return streams

    def _start_draw(self, source: int) -> None:
        stream = self._streams.get(source, ("", source))
        torch.default_generator.manual_seed(derive_seed(self._seed, *stream, self._draws[source]))
        self._draws[source] += 1


def _tensors(values: Any) -> Iterator[Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, Tensor))
