"""Where a model is built: in host memory, or on the meta device, to be filled in shards (nn/deferred_weights.py).

Weights that come from elsewhere (a start, a teacher, entity vectors) are loaded into a whole model. So are kinds that
draw weights otherwise than by nn/initialization.py: recurrent models, which are small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from torch import nn

from etude.nn.deferred_weights import DeferredWeights, record_weights
from etude.pretraining.loop import Learner
from etude.train.parallel import Ranks
from etude.train.settings import Settings

Built = TypeVar("Built")


def build_or_defer(
    build: Callable[[], Built],
    learner_of: Callable[[Built], Learner],
    settings: Settings,
    ranks: Ranks,
    is_deferrable: bool,
) -> tuple[Built, DeferredWeights | None]:
    """Build a learner; on the meta device where it may be divided into shards, with what fills it then."""
    if is_deferrable and _may_shard(settings, ranks):
        with record_weights() as recording:
            built = build()
        model, objective = learner_of(built)
        deferred = recording.collect(nn.ModuleDict({"model": model, "objective": objective}))
        if deferred is not None:
            return built, deferred
    return build(), None


def _may_shard(settings: Settings, ranks: Ranks) -> bool:
    """Whether these processes may hold shards (train/strategy.py chooses, once shapes are known)."""
    if ranks.size > 1:
        return settings.parallel != "ddp"
    return dist.is_initialized() and settings.parallel in ("fsdp", "hybrid")
