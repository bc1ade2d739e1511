"""ERNIE as its specification says it, in plain padded torch: every position has an entity state, masks hide most.

It shares no code with the package and reads tensors by their published names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-12


class Reference:
    def __init__(self, tensors: Mapping[str, Tensor], kinds: Sequence[str], heads: int, entity_heads: int) -> None:
        self.tensors, self.kinds, self.heads, self.entity_heads = tensors, kinds, heads, entity_heads

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        return scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def attend(self, name: str, x: Tensor, visible: Tensor, heads: int) -> Tensor:
        """(B, L, D) with the keys `visible` (B, L)."""
        batch, length, width = x.shape
        query, key, value = (
            self.linear(f"{name}.{part}", x).view(batch, length, heads, width // heads).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(width // heads)
        scores = scores + (1.0 - visible[:, None, None, :].to(x.dtype)) * -10000.0
        return (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)

    def states(
        self, tokens: Tensor, segments: Tensor, present: Tensor, vectors: Tensor, entity_mask: Tensor
    ) -> list[Tensor]:
        """Hidden states of all layers, (B, L, D); `vectors` (B, L, E), `present` and `entity_mask` (B, L)."""
        tables = (
            self.tensors[f"bert.embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
        )
        word, position, segment = tables
        w = word[tokens] + position[torch.arange(tokens.shape[1])] + segment[segments]
        w, e = self.norm("bert.embeddings.LayerNorm", w), vectors
        mask, hidden = entity_mask[..., None].to(vectors.dtype), []
        hidden.append(w)
        for number, kind in enumerate(self.kinds):
            layer = f"bert.encoder.layer.{number}"
            mixed = self.attend(f"{layer}.attention.self", w, present, self.heads)
            w = self.norm(
                f"{layer}.attention.output.LayerNorm", w + self.linear(f"{layer}.attention.output.dense", mixed)
            )
            if kind == "norm":
                mixed = self.attend(f"{layer}.attention.self_ent", e, entity_mask, self.entity_heads)
                mixed = self.linear(f"{layer}.attention.output_ent.dense", mixed)
                e = self.norm(f"{layer}.attention.output_ent.LayerNorm", e + mixed)
            inner = self.linear(f"{layer}.intermediate.dense", w)
            if kind != "sim":
                e = e * mask
                inner = inner + self.linear(f"{layer}.intermediate.dense_ent", e)
            inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
            w = self.norm(f"{layer}.output.LayerNorm", w + self.linear(f"{layer}.output.dense", inner))
            if kind != "sim":
                e = self.norm(f"{layer}.output.LayerNorm_ent", e + self.linear(f"{layer}.output.dense_ent", inner))
            hidden.append(w)
        return hidden

    def alignment_logits(self, last: Tensor, candidates: Tensor) -> Tensor:
        """(K, D), (C, E) -> (K, C)."""
        inner = self.linear("cls.predictions_ent.transform.dense", last)
        inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
        return self.norm("cls.predictions_ent.transform.LayerNorm", inner) @ candidates.t()
