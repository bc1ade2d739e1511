"""Attention inside packed sequences: several paths, one meaning (design decision 4).

    varlen      flash kernels over bounds: on a CUDA device, in half precision
    grouped     dense batches of similar length (nn/attention/grouped.py): CPU, float32; and equal lengths anywhere, for there
                the batch is dense as it lies, and dense kernels are the faster ones
    short       our own kernels for sequences of up to 128 tokens (nn/triton/short_attention.py), where varlen would serve
    tiled       our own for longer ones (nn/triton/tiled_attention.py), on a Hopper card or a later one
    reference   one sequence after the other, any mask, weights on request: slow, and what the others are tested against

A query sees the keys of its own sequence: all, or with `causal` those up to itself, and with `window` those
at most `window` tokens away. A query that may see nothing gives zeros. `choose_path` says which path runs. Where
states are asked for at some tokens alone, a CPU has queries of those alone (nn/attention/query_subset.py).

Scaled dot products: Vaswani et al. 2017, section 3.2.1. Bands: Child et al. 2019 (Sparse Transformers), as used
by GPT-3.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo

from etude.errors import UserError
from etude.nn.attention.grouped import attend_equal, attend_equal_packed, attend_grouped
from etude.nn.packed import Layout
from etude.nn.triton.availability import (
    KERNEL_MODULES,
    compute_capability,
    kernel_module,
    supports_flash,
    supports_half_kernels,
)

# Shapes of the grouped path change with the lengths of every batch, so a compiled model steps out of its graph for it.
# torch.compiler.disable would do, and costs every program the seconds of importing the compiler.
_grouped_outside_graph = _disable_dynamo(attend_grouped)

Path = Literal["varlen", "grouped", "short", "tiled", "reference"]
KERNEL_PATHS = ("short", "tiled")  # those with kernels of our own


class _Varlen(NamedTuple):
    """torch's function, if there is one, and the names of its parameters, which differ between versions."""

    function: Callable[..., Any] | None
    names: frozenset[str]


_VARLEN: list[_Varlen] = []
PairMask = Callable[[Tensor, Tensor], Tensor]  # (query index (L, 1), key index (1, L)) -> bool (L, L)


def attend_packed(
    qkv: Tensor,
    layout: Layout,
    *,
    causal: bool,
    window: int | None = None,
    dropout: float = 0.0,
    path: str | None = None,
) -> Tensor:
    """`attend` for queries, keys and values as one projection leaves them, (N, 3, H, d): our own kernels take those."""
    if path is None and window is None and qkv.shape[0]:
        path = choose_kernel_path(qkv.device, qkv.dtype, qkv.shape[-1], layout.longest)
    if path not in KERNEL_PATHS:
        chosen = path or choose_path(qkv.device, qkv.dtype, qkv.shape[-1], window=window, equal=layout.equal)
        if chosen == "grouped":
            if layout.equal and window is None:
                _check(qkv, layout)
                return attend_equal_packed(qkv, layout.longest, causal, dropout)
            return _attend_grouped(qkv, layout, causal, window, dropout)
        query, key, value = qkv.unbind(1)
        return attend(query, key, value, layout, causal=causal, window=window, dropout=dropout, path=path)
    if window is not None:
        raise UserError(f"the {path} kernels know no windows: set path to 'varlen' or 'grouped'")
    # without dropout the seed is not read, and anything stands there
    seed = torch.randint(2**31, (1,), device=qkv.device) if dropout else layout.bounds
    mixed: Tensor
    if path == "short":
        mixed = kernel_module("short_attention").attend_short(qkv, layout.bounds, seed, layout.longest, causal, dropout)
    else:
        tiled = kernel_module("tiled_attention").attend_tiled
        mixed, _ = tiled(qkv, layout.bounds, seed, layout.longest, causal, dropout)
    return mixed


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    causal: bool,
    window: int | None = None,
    dropout: float = 0.0,
    path: str | None = None,
) -> Tensor:
    """Mixes values within each sequence. (N, H, d) each, and so the result."""
    _check(query, layout)
    if path is None:
        path = choose_path(query.device, query.dtype, query.shape[-1], window=window, equal=layout.equal)
    if path == "varlen":
        return attend_varlen(query, key, value, layout, causal=causal, window=window, dropout=dropout)
    if path == "grouped":
        if layout.equal and window is None:  # a reshape: static, so part of a graph
            return attend_equal(query, key, value, layout.longest, causal, dropout)
        return _attend_grouped(torch.stack([query, key, value], 1), layout, causal, window, dropout)
    if path in KERNEL_PATHS:
        qkv = torch.stack([query, key, value], 1)
        return attend_packed(qkv, layout, causal=causal, window=window, dropout=dropout, path=path)
    if path == "reference":
        return attend_reference(query, key, value, layout, causal=causal, window=window, dropout=dropout)[0]
    raise UserError(f"no attention path '{path}'. Known: varlen, grouped, short, tiled, reference.")


def _attend_grouped(qkv: Tensor, layout: Layout, causal: bool, window: int | None, dropout: float) -> Tensor:
    _check(qkv, layout)
    grouped = _grouped_outside_graph if torch.compiler.is_compiling() else attend_grouped
    result: Tensor = grouped(qkv, layout, causal=causal, window=window, dropout=dropout)
    return result


def _check(tokens: Tensor, layout: Layout) -> None:
    if not torch.compiler.is_compiling() and tokens.shape[0] != layout.total:
        raise ValueError(f"{tokens.shape[0]} tokens, yet the layout ends at {layout.total}")


def choose_path(
    device: torch.device | str,
    dtype: torch.dtype,
    head_size: int,
    *,
    window: int | None = None,
    equal: bool = False,
) -> Path:
    """The path `attend` takes when none is named. Never "reference": that one is asked for."""
    device = torch.device(device)
    fits_flash = head_size % 8 == 0 and head_size <= 256  # flash kernels
    if not supports_half_kernels(device, dtype) or not fits_flash or (equal and window is None):
        return "grouped"
    varlen = _varlen()
    is_usable = varlen.function is not None and (window is None or "window_size" in varlen.names)
    return "varlen" if is_usable else "grouped"


def choose_kernel_path(device: torch.device, dtype: torch.dtype, head_size: int, longest: int) -> Path | None:
    """Which of our own kernels serve best, if any does."""
    if not supports_half_kernels(device, dtype) or kernel_module("short_attention") is None:
        return None
    if kernel_module("short_attention").supports_shape(longest, head_size, dtype):
        return "short"
    is_hopper = compute_capability(device.index) >= (9, 0)  # before it, flash kernels are at home
    return "tiled" if is_hopper and kernel_module("tiled_attention").supports_shape(head_size, dtype) else None


def load_kernels(device: torch.device) -> None:
    """Does what is done once: a model that is compiled must not come upon an import (its graph would break there)."""
    if device.type == "cuda" and supports_flash(device.index):
        _varlen()
        for name in KERNEL_MODULES:
            kernel_module(name)


def _varlen() -> _Varlen:
    """Looked up once, and only where it may be used: importing it takes seconds, for it brings the compiler along."""
    if not _VARLEN:
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            _VARLEN.append(_Varlen(None, frozenset()))
        else:
            _VARLEN.append(_Varlen(varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)))
    return _VARLEN[0]


def varlen_arguments(names: frozenset[str], causal: bool, window: int | None) -> dict[str, Any]:
    """How one meaning is said to the torch at hand.

    Some versions say a mask with `is_causal`, later ones with `window_size=(back, ahead)` where -1 is no limit.
    """
    if "window_size" in names:
        back = -1 if window is None else window
        return {"window_size": (back, 0 if causal else back)}
    if window is not None:
        raise UserError(f"torch {torch.__version__} has no windows in varlen attention: set path to 'grouped'")
    return {"is_causal": causal}


def attend_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    causal: bool,
    window: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    function, names = _varlen()
    if function is None:
        raise UserError(f"torch {torch.__version__} has no varlen attention: set path to 'grouped'")
    if query.shape[0] == 0:
        return value.clone()  # no tokens, yet a part of the graph
    bounds, longest = layout.bounds, layout.longest
    if dropout:
        # torch's own function leaves dropout out; the kernel below it has it, with its derivative
        back = -1 if window is None else window
        flash = torch.ops.aten._flash_attention_forward
        window_sizes = {"window_size_left": back, "window_size_right": 0 if causal else back}
        dropped: Tensor = flash(
            query,
            key,
            value,
            bounds,
            bounds,
            longest,
            longest,
            dropout,
            causal and window is None,
            False,
            **window_sizes,
        )[0]
        return dropped
    arguments = varlen_arguments(names, causal, window)
    mixed: Tensor = function(query, key, value, bounds, bounds, longest, longest, **arguments)
    return mixed


def attend_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    causal: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
    allowed: PairMask | None = None,
    weights: bool = False,
) -> tuple[Tensor, list[Tensor] | None]:
    """One sequence after the other, with any mask; and the weights (H, L, L) of each sequence if asked.

    `allowed` narrows what `causal` and `window` leave: it gets the indices of queries (L, 1) and keys (1, L)
    within a sequence and answers with a bool for each pair. The weights are those before dropout.
    """
    scale = query.shape[-1] ** -0.5
    mixed, maps = [], []
    for start, stop in zip(layout.host[:-1].tolist(), layout.host[1:].tolist(), strict=True):
        queries, keys, values = (part[start:stop].transpose(0, 1) for part in (query, key, value))  # (H, L, d)
        index = torch.arange(stop - start, device=query.device)
        visible = visible_pairs(index[:, None], index[None, :], causal, window)
        if allowed is not None:
            visible = visible & allowed(index[:, None], index[None, :])
        scores = (queries @ keys.transpose(1, 2)) * scale  # (H, L, L)
        low = torch.finfo(scores.dtype).min
        probs = scores.masked_fill(~visible, low).softmax(-1).masked_fill(~visible, 0.0)
        maps.append(probs)
        mixed.append((F.dropout(probs, dropout) @ values).transpose(0, 1))  # (L, H, d)
    return torch.cat(mixed) if mixed else value.clone(), maps if weights else None


def visible_pairs(query: Tensor, key: Tensor, causal: bool, window: int | None) -> Tensor:
    """Which query sees which key, by their places in the sequence."""
    distance = query - key
    visible = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        visible = visible & (distance >= 0)
    if window is not None:
        visible = visible & (distance.abs() <= window)
    return visible
