"""Initial values of the weights.

Every matrix is drawn from a normal distribution of standard deviation 0.02 (GPT-1), or the same truncated at two
deviations (BERT); biases are 0, gains 1. The last matrix of each residual branch may be drawn smaller, and here the
published descriptions disagree, so it is a setting:

    none    as every other matrix (GPT-1, BERT, and GPT-2's released code)
    paper   times 1/sqrt(2 * layers), the same in every layer (GPT-2, section 2.3, N = number of residual branches)
    depth   times 1/sqrt(2 * (l + 1)) in layer l, shrinking with the layer's index

Each parameter has its own random stream, keyed by its name: adding a module does not change the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from etude.chance import fold
from etude.nn.generator_jump import count_normal_words, draw_normal, skip_words

Scaling = Literal["none", "paper", "depth"]
# fills flat float32 values on the CPU: the share, from a place on, of a parameter of so many values
Fill = Callable[[Tensor, int, int], object]


def residual_scale(scaling: Scaling, layer: int, layers: int) -> float:
    """Return the factor on the standard deviation of a branch's last matrix."""
    if scaling == "paper":
        return float((2 * layers) ** -0.5)
    if scaling == "depth":
        return float((2 * (layer + 1)) ** -0.5)
    return 1.0


def draw_key() -> int:
    """Draw a key from torch's global generator, so that `torch.manual_seed` decides it."""
    return int(torch.randint(2**62, (), device="cpu"))


def fill_normal(parameter: Tensor, key: int, deviation: float, truncated: bool) -> None:
    """Fill a parameter in place.

    Values are drawn on the CPU, so that every device starts from the same bits.
    """

    def fill(values: Tensor, start: int, total: int) -> None:
        generator = torch.Generator().manual_seed(key)
        if truncated:
            _draw_truncated(values, generator, deviation, start, total)
        else:
            draw_normal(values, generator, deviation, start, total)

    _fill(parameter, fill)


def fill_uniform(parameter: Tensor, key: int, bound: float) -> None:
    """Fill a parameter in place with values between -bound and bound, drawn on the CPU."""

    def fill(values: Tensor, start: int, total: int) -> None:
        generator = torch.Generator().manual_seed(key)
        skip_words(generator, start)
        values.uniform_(-bound, bound, generator=generator)

    _fill(parameter, fill)


def fill_constant(parameter: Tensor, value: float) -> None:
    """Fill a parameter in place with one value."""
    _fill(parameter, lambda values, start, total: values.fill_(value))


def _fill(parameter: Tensor, fill: Fill) -> None:
    """Fill a parameter now; on the meta device record how, where someone does (nn/deferred_weights.py)."""
    if parameter.is_meta:
        if (records := RECORDS.get()) is not None:
            records[parameter] = fill
        return
    values = torch.empty(parameter.numel(), dtype=torch.float32, device="cpu")
    with torch.no_grad():
        fill(values, 0, len(values))
        parameter.copy_(values.view(parameter.shape))


# how parameters on the meta device are to be filled, while a model is built there to be filled later
RECORDS: ContextVar[dict[Tensor, Fill] | None] = ContextVar("records", default=None)


# --- truncated normal values --------------------------------------------------------------------------


def _draw_truncated(values: Tensor, generator: torch.Generator, deviation: float, start: int, total: int) -> None:
    """Fill flat values with those from `start` on of `total` that torch's trunc_normal_ draws."""
    if len(values) == total:
        nn.init.trunc_normal_(values, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)
    elif _redraws_all():
        _redraw_outliers(values, generator, deviation, start, total)
    else:
        whole = torch.empty(total, dtype=torch.float32, device="cpu")
        nn.init.trunc_normal_(whole, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)
        values.copy_(whole[start : start + len(values)])


def _redraw_outliers(values: Tensor, generator: torch.Generator, deviation: float, start: int, total: int) -> None:
    """Draw normal values of the whole tensor again and again, and take the first within the bounds for each place."""
    bound = float(torch.tensor(2 * deviation, dtype=torch.float32))
    words = draw_normal(values, generator, deviation, start, total)
    while (outliers := values.abs() > bound).any():
        skip_words(generator, count_normal_words(total) - words)
        again = torch.empty_like(values)
        words = draw_normal(again, generator, deviation, start, total)
        values.copy_(torch.where(outliers, again, values))


@cache
def _redraws_all() -> bool:
    """Whether trunc_normal_ of this torch draws again for outliers (2.13), and not one value each (2.11)."""
    whole, part = torch.empty(512, device="cpu"), torch.empty(200, device="cpu")
    nn.init.trunc_normal_(whole, 0.0, 0.02, -0.04, 0.04, generator=torch.Generator().manual_seed(0))
    _redraw_outliers(part, torch.Generator().manual_seed(0), 0.02, 100, len(whole))
    return torch.equal(part, whole[100:300])


def init_weights(
    module: nn.Module,
    *,
    key: int,
    deviation: float = 0.02,
    truncated: bool = False,
    factors: dict[str, float] | None = None,
) -> None:
    """Draw every matrix of a module; set biases to 0 and gains to 1.

    `factors` maps the name of a parameter to the factor on its standard deviation.
    """
    factors = factors or {}
    unknown = set(factors) - {name for name, _ in module.named_parameters()}
    if unknown:
        raise ValueError(f"no parameter named {sorted(unknown)}")
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            fill_normal(parameter, fold(key, name), deviation * factors.get(name, 1.0), truncated)
        else:
            fill_constant(parameter, 0.0 if name.endswith("bias") else 1.0)
