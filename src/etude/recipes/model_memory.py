"""Refuse a model that this machine's memory cannot hold, before anything of it is allocated.

A recipe or a config.json of a few hundred bytes can ask for any size. The model is built on the meta device first,
where a tensor is its shape alone, and its bytes are compared with the memory there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

from torch import Tensor, device, get_default_device
from torch.nn import init
from torch.overrides import TorchFunctionMode
from torch.random import fork_rng

from etude.errors import UserError
from etude.models.base import Model
from etude.train.memory import machine_memory

DRAWS: frozenset[Callable[..., object]] = frozenset(
    {Tensor.normal_, Tensor.uniform_, init.normal_, init.uniform_, init.trunc_normal_, init.kaiming_uniform_}
)


def build_within_memory(build: Callable[[], Model], name: str) -> Model:
    """Build a model after a look at its size; on the meta device, build it at once."""
    if get_default_device().type == "meta":
        return build()
    limit = machine_memory()
    if limit is not None:
        size = measure_bytes(build, name)
        if size > limit:
            raise UserError(
                f"The model of {name} needs {size / 1e9:,.1f} GB for its weights alone, and this machine has "
                f"{limit / 1e9:,.1f} GB of memory. Make model.layers, model.width, model.vocab or model.context "
                "smaller, or use a larger machine."
            )
    return build()


def measure_bytes(build: Callable[[], Model], name: str) -> int:
    """Return the bytes of a model's weights without allocating them."""
    with shapes_only(), fork_rng(devices=[]), explain_oversize(name):
        return sum(tensor.nbytes for tensor in _distinct_tensors(build()))


class SkippedDraws(TorchFunctionMode):
    """Leaves tensors on the meta device undrawn: torch draws them there by code that imports its compiler."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        tensor = args[0] if args else (kwargs or {}).get("tensor")
        if func in DRAWS and isinstance(tensor, Tensor) and tensor.is_meta:
            return tensor
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Build modules on the meta device, where a tensor is its shape alone, without their first values."""
    with device("meta"), SkippedDraws():
        yield


@contextmanager
def explain_oversize(name: str) -> Iterator[None]:
    """Answer what torch and numpy raise at a shape beyond any memory with one message."""
    try:
        yield
    except (OverflowError, RuntimeError, MemoryError, TypeError) as error:
        text = str(error).lower()
        words = ("overflow", "too large", "too big", "exceed", "memory")
        if not isinstance(error, MemoryError) and not any(word in text for word in words):
            raise
        raise UserError(f"The model of {name} is larger than any memory: {text.partition(chr(10))[0]}.") from None


def _distinct_tensors(model: Model) -> Iterator[Tensor]:
    seen: set[int] = set()
    for tensor in chain(model.parameters(), model.buffers()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
