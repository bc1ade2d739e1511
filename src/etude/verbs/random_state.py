"""The caller's random numbers stay the caller's.

Initial weights and dropout are drawn from torch's generators, which are seeded from the recipe: whatever a script has
seeded before it calls a verb, its draws go on afterwards as if the verb had drawn nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import ParamSpec, TypeVar, cast

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Restore torch's generators, of the CPU and of GPUs in use, on the way out; without torch nobody has seeded it."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    state = torch.get_rng_state()
    gpu_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if gpu_states:
            torch.cuda.set_rng_state_all(gpu_states)


def keeps_random_state(verb: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a verb keep the random state of its caller; one that yields, in each of its turns."""
    if inspect.isgeneratorfunction(verb):

        @functools.wraps(verb)
        def iterate(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[object]:
            with closing(verb(*args, **kwargs)) as turns:
                while True:
                    with keep_random_state():
                        try:
                            item = next(turns)
                        except StopIteration:
                            return
                    yield item

        return cast(Callable[Arguments, Result], iterate)

    @functools.wraps(verb)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with keep_random_state():
            return verb(*args, **kwargs)

    return call
