"""Attention of a step: one new token of every sequence attends to the cached ones, in static memory.

Nothing here depends on values that only the device knows, so a step can be recorded (nn/cuda_graphs.py): the place of
each new token lies on the device, and what stands behind it in the buffers is not looked at.

A sequence may continue another's past (beam search): `origins` says in which row each of its tokens was stored, so
that hypotheses are reordered by reordering a table of numbers instead of all keys and values.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn.triton import availability


def attend_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    origins: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Store new keys and values in the cache and attend to all tokens up to them: (S, H, d) -> (S, H, d).

    `keys`, `values` (S, room, H, d) are the cache. `places` (S,), or (1,) for all, are those of the new tokens in it.
    `origins` (S, room), of sequences of one length: the row in which each token of a sequence is stored; its own, if
    None. `window`: how far back a token sees.
    """
    kernel = _find_kernel(query)
    if kernel is not None:
        return cast(Tensor, kernel.attend_step(query, key, value, keys, values, places, origins, window))
    rows, room = torch.arange(len(query), device=query.device), torch.arange(keys.shape[1], device=query.device)
    places = places.expand(len(query))
    keys.index_put_((rows, places), key.to(keys.dtype))
    values.index_put_((rows, places), value.to(values.dtype))
    if origins is not None:
        # what a table says about tokens that are not there yet is not looked at
        sources = torch.where(room < places[:, None], origins, rows[:, None])
        keys, values = keys[sources, room], values[sources, room]
    visible = room <= places[:, None]
    if window is not None:
        visible &= room >= places[:, None] - window
    return F.scaled_dot_product_attention(
        query[:, :, None].to(keys.dtype), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=visible[:, None, None]
    )[:, :, 0].to(query.dtype)  # fmt: skip


def _find_kernel(query: Tensor) -> Any:  # ModuleType | None
    """The kernel's module on a GPU that runs it; None elsewhere."""
    if query.device.type != "cuda" or not availability.supports_flash(query.device.index):
        return None
    return availability.kernel_module("step_attention")
