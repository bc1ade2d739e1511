"""Attention within packed sequences: several implementations, one meaning (design decision 4).

    varlen      torch's flash kernels over bounds: on a CUDA device, in half precision
    grouped     dense batches of similar length (nn/attention/grouped.py): CPU, float32; and equal lengths anywhere,
                because the batch is then dense already and dense kernels are faster
    short       our kernels for up to 128 tokens (nn/triton/short_attention.py), wherever varlen would apply; with
                rotary positions they rotate queries and keys as they read them, on Hopper or later
    tiled       our kernels for longer sequences (nn/triton/tiled_attention.py), on Hopper or later
    reference   one sequence after the other, any mask, weights on request: slow, and the reference for tests

A query sees the keys of its own sequence: all, or with `causal` those up to itself, and with `window` those at most
`window` tokens away. A query that sees nothing gives zeros. `choose_path` decides which implementation runs. Where
only some tokens' states are needed, a CPU computes only their queries (nn/attention/query_subset.py).

Scaled dot products: Vaswani et al. 2017, section 3.2.1. Local windows: Child et al. 2019 (Sparse Transformers), as
used by GPT-3.
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
from etude.nn.rotary import Rotation, rotate_packed
from etude.nn.triton.availability import (
    KERNEL_MODULES,
    compute_capability,
    kernel_module,
    supports_flash,
    supports_half_kernels,
)

# Shapes of the grouped path change with the lengths of every batch, so a compiled model leaves its graph for it.
# torch.compiler.disable would do the same, but costs every program the seconds of importing the compiler.
_grouped_outside_graph = _disable_dynamo(attend_grouped)

Path = Literal["varlen", "grouped", "short", "tiled", "reference"]
KERNEL_PATHS = ("short", "tiled")  # paths with kernels of our own
ROTATES_AS_IT_READS = True  # the short path; False only to compare (benchmarks/step_turns.py)


class _Varlen(NamedTuple):
    """torch's varlen function, if there is one, and its parameter names, which differ between versions."""

    function: Callable[..., Any] | None  # its signature differs between versions of torch
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
    rotation: Rotation | None = None,
) -> Tensor:
    """Attend with queries, keys and values in one tensor, (N, 3, H, d) -> (N, H, d).

    This is how a projection leaves them, and what our own kernels read. With a `rotation`, which needs a device that
    `rotary.supports_packed`, queries and keys are rotated first.
    """
    if path is None and window is None and qkv.shape[0]:
        path = choose_kernel_path(qkv.device, qkv.dtype, qkv.shape[-1], layout.longest)
    if rotation is not None and not (path == "short" and _rotates_as_it_reads(qkv, dropout)):
        qkv, rotation = rotate_packed(qkv, rotation), None
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
        raise UserError(f"the {path} kernels do not support windows: set path to 'varlen' or 'grouped'")
    # without dropout the seed is not read, so any tensor will do
    seed = torch.randint(2**31, (1,), device=qkv.device) if dropout else layout.bounds
    mixed: Tensor
    if path == "short":
        mixed = kernel_module("short_attention").attend_short(
            qkv, layout.bounds, seed, layout.longest, causal, dropout, *(rotation or ())
        )
    else:
        tiled = kernel_module("tiled_attention").attend_tiled
        mixed, _ = tiled(qkv, layout.bounds, seed, layout.longest, causal, dropout)
    return mixed


def _rotates_as_it_reads(qkv: Tensor, dropout: float) -> bool:
    """Whether the short kernels rotate: wider heads, or dropout, would not leave them the registers for it.

    Nor are there enough before Hopper, where the operands of a product lie in registers: compiled for Ampere, heads of
    64 spill up to 10 KB of each thread.
    """
    fits = qkv.shape[-1] <= 64 and not dropout and compute_capability(qkv.device.index) >= (9, 0)
    return ROTATES_AS_IT_READS and fits


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
    """Attend within each sequence: (N, H, d) each -> (N, H, d)."""
    _check(query, layout)
    if path is None:
        path = choose_path(query.device, query.dtype, query.shape[-1], window=window, equal=layout.equal)
    if path == "varlen":
        return attend_varlen(query, key, value, layout, causal=causal, window=window, dropout=dropout)
    if path == "grouped":
        if layout.equal and window is None:  # a reshape: static, so part of the graph
            return attend_equal(query, key, value, layout.longest, causal, dropout)
        return _attend_grouped(torch.stack([query, key, value], 1), layout, causal, window, dropout)
    if path in KERNEL_PATHS:
        qkv = torch.stack([query, key, value], 1)
        return attend_packed(qkv, layout, causal=causal, window=window, dropout=dropout, path=path)
    if path == "reference":
        return attend_reference(query, key, value, layout, causal=causal, window=window, dropout=dropout)[0]
    raise UserError(f"unknown attention path '{path}'. Known: varlen, grouped, short, tiled, reference.")


def _attend_grouped(qkv: Tensor, layout: Layout, causal: bool, window: int | None, dropout: float) -> Tensor:
    """Run the grouped path, outside the graph where a model is compiled."""
    _check(qkv, layout)
    grouped = _grouped_outside_graph if torch.compiler.is_compiling() else attend_grouped
    result: Tensor = grouped(qkv, layout, causal=causal, window=window, dropout=dropout)
    return result


def _check(tokens: Tensor, layout: Layout) -> None:
    """Raise if the number of tokens is not that of the layout."""
    if not torch.compiler.is_compiling() and tokens.shape[0] != layout.total:
        raise ValueError(f"got {tokens.shape[0]} tokens, but the layout ends at {layout.total}")


def choose_path(
    device: torch.device | str,
    dtype: torch.dtype,
    head_size: int,
    *,
    window: int | None = None,
    equal: bool = False,
) -> Path:
    """Return the path that `attend` takes by default. Never "reference": that one must be requested."""
    device = torch.device(device)
    fits_flash = head_size % 8 == 0 and head_size <= 256  # flash kernels
    if not supports_half_kernels(device, dtype) or not fits_flash or (equal and window is None):
        return "grouped"
    varlen = _varlen()
    is_usable = varlen.function is not None and (window is None or "window_size" in varlen.names)
    return "varlen" if is_usable else "grouped"


def choose_kernel_path(device: torch.device, dtype: torch.dtype, head_size: int, longest: int) -> Path | None:
    """Return the path of our own kernels that fits best, or None."""
    if not supports_half_kernels(device, dtype) or kernel_module("short_attention") is None:
        return None
    if kernel_module("short_attention").supports_shape(longest, head_size, dtype):
        return "short"
    is_hopper = compute_capability(device.index) >= (9, 0)  # before Hopper, torch's flash kernels are fast
    return "tiled" if is_hopper and kernel_module("tiled_attention").supports_shape(head_size, dtype) else None


def load_kernels(device: torch.device) -> None:
    """Import all kernels now: an import while a model is compiled would break its graph."""
    if device.type == "cuda" and supports_flash(device.index):
        _varlen()
        for name in KERNEL_MODULES:
            kernel_module(name)


def _varlen() -> _Varlen:
    """Look up torch's varlen function once, and only where it is used: importing it loads the compiler."""
    if not _VARLEN:
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            _VARLEN.append(_Varlen(None, frozenset()))
        else:
            _VARLEN.append(_Varlen(varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)))
    return _VARLEN[0]


def varlen_arguments(names: frozenset[str], causal: bool, window: int | None) -> dict[str, bool | tuple[int, int]]:
    """Translate `causal` and `window` into the arguments of the installed torch.

    Some versions have `is_causal`, later ones `window_size=(left, right)`, where -1 is no limit.
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
    keys: Layout | None = None,
) -> Tensor:
    """Attend by torch's flash kernels over bounds; `keys` is the layout of keys and values where it is another."""
    function, names = _varlen()
    if function is None:
        raise UserError(f"torch {torch.__version__} has no varlen attention: set path to 'grouped'")
    if query.shape[0] == 0:
        return query + 0 * value.sum() if keys is not None else value.clone()  # no tokens, but part of the graph
    keys = layout if keys is None else keys
    if dropout:
        # torch's function has no dropout; the kernel below it does, with its derivative
        back = -1 if window is None else window
        flash = torch.ops.aten._flash_attention_forward
        window_sizes = {"window_size_left": back, "window_size_right": 0 if causal else back}
        dropped: Tensor = flash(
            query,
            key,
            value,
            layout.bounds,
            keys.bounds,
            layout.longest,
            keys.longest,
            dropout,
            causal and window is None,
            False,
            **window_sizes,
        )[0]
        return dropped
    arguments = varlen_arguments(names, causal, window)
    mixed: Tensor = function(query, key, value, layout.bounds, keys.bounds, layout.longest, keys.longest, **arguments)
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
    """Attend one sequence after the other, with any mask; with `weights` return those (H, L, L) too.

    `allowed` restricts what `causal` and `window` leave: it gets the indices of queries (L, 1) and keys (1, L) within a
    sequence and returns a bool for each pair. The weights are those before dropout.
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
    """Return which query sees which key, by their positions in the sequence."""
    distance = query - key
    visible = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        visible = visible & (distance >= 0)
    if window is not None:
        visible = visible & (distance.abs() <= window)
    return visible
