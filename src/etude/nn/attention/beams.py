"""Attention of the hypotheses of each source to it: a step of a beam search has one query for each hypothesis.

Those of a source are the rows of one product with its keys: nothing is copied for single hypotheses.
"""

from __future__ import annotations

from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor

from etude.nn.triton import availability


def attend_beams(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, beams: int) -> Tensor:
    """(S, H, d) -> (S, H, d), with `beams` rows for each of the G sources.

    `keys`, `values` (G, H, longest, d); `mask` (G, 1, 1, longest) is added to scores, and finite.
    """
    kernel = _find_kernel(query, beams)
    if kernel is not None:
        return cast(Tensor, kernel.attend_beams(query, keys, values, mask, beams))
    queries = query.unflatten(0, (-1, beams)).transpose(1, 2)  # (G, H, beams, d)
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return mixed.transpose(1, 2).flatten(0, 1)


def _find_kernel(query: Tensor, beams: int) -> Any:  # ModuleType | None
    """The kernel's module on a GPU that runs it, in half precision, for as many beams as it takes; None elsewhere."""
    if not availability.supports_half_kernels(query.device, query.dtype):
        return None
    module = availability.kernel_module("beam_attention")
    return module if module is not None and beams <= module.ROWS else None
