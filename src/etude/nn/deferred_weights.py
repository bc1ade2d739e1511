"""Initial weights of a model that is built on the meta device and filled after it has been divided into shards.

A model of 175 billion parameters is larger than the host memory of a process, which holds a small share of it in the
end. On the meta device it is shapes alone; how each parameter is to be filled is recorded (nn/initialization.py). Then
each process draws its own share of each parameter, and nothing else.

The bits are those of a model that is built at once. Parameters have random streams of their own, by keys drawn from
torch's generator; but torch's own modules draw values from it before, which are overwritten later. Nothing is drawn on
the meta device, so the generator passes over as many values. Shares and those are found in a stream by jumps
(nn/generator_jump.py): what comes before them is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from etude.nn.generator_jump import count_normal_words, skip_words
from etude.nn.initialization import RECORDS, Fill


class DeferredWeights:
    """How the parameters of a model on the meta device are to be filled, by name."""

    def __init__(self, fills: Mapping[str, Fill]) -> None:
        self.fills = fills

    def fill(self, module: nn.Module, find_share: Callable[[Tensor], tuple[Tensor, int]] | None = None) -> None:
        """Fill all parameters; `find_share` returns what this process holds of one, and where that begins."""
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                share, start = (parameter, 0) if find_share is None else find_share(parameter)
                if share.numel():
                    values = torch.empty(share.numel(), dtype=torch.float32, device="cpu")
                    self.fills[name](values, start, parameter.numel())
                    share.copy_(values.view(share.shape))


class Recording:
    """What a build on the meta device recorded."""

    def __init__(self) -> None:
        self.records: dict[Tensor, Fill] = {}
        self.is_changed = False  # whether a parameter was changed after it was filled, which no fill would repeat

    def collect(self, module: nn.Module) -> DeferredWeights | None:
        """Return how to fill a module; None where it has values that nobody recorded, and must be built at once."""
        named = dict(module.named_parameters())
        is_complete = (
            not self.is_changed
            and set(map(id, self.records)) == set(map(id, named.values()))
            and all(parameter.dtype == torch.float32 for parameter in named.values())
            and len(named) == sum(1 for _ in module.named_parameters(remove_duplicate=False))  # none is in two modules
            and not any(True for _ in module.buffers())
            and not any(_holds_meta_tensor(part) for part in module.modules())
        )
        return DeferredWeights({name: self.records[p] for name, p in named.items()}) if is_complete else None


@contextmanager
def record_weights() -> Iterator[Recording]:
    """Build on the meta device within this context, and record how parameters are to be filled."""
    recording = Recording()
    token = RECORDS.set(recording.records)
    try:
        with _DropDraws(recording), torch.device("meta"):
            yield recording
    finally:
        RECORDS.reset(token)


def _holds_meta_tensor(module: nn.Module) -> bool:
    """Whether a module has a tensor beside its parameters that was computed on the meta device: one without values."""
    return any(isinstance(value, Tensor) and value.is_meta for value in vars(module).values())


class _DropDraws(TorchDispatchMode):
    """Takes from torch's generator what a tensor on the meta device would take elsewhere."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs, records = kwargs or {}, self.recording.records
        if func._schema.is_mutable and isinstance(args[0], Tensor) and (args[0] in records or args[0]._base in records):
            self.recording.is_changed = True
        draws = (torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default)
        if func not in draws or not args[0].is_meta or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        size, is_normal = args[0].numel(), func is torch.ops.aten.normal_.default
        if args[0].dtype == torch.float32 and (size >= 16 or not is_normal):
            skip_words(torch.default_generator, count_normal_words(size) if is_normal else size)
        else:
            func(torch.empty(size, dtype=args[0].dtype, device="cpu"))
        return args[0]
