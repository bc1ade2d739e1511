"""ERNIE (Zhang et al. 2019): a BERT whose upper layers read the entities of the text beside its tokens.

Tokens and entities are two packed streams. The list `layer_kinds` says of each layer what it does with them:

    sim    a layer of BERT; entities pass by (the paper's T-Encoder)
    mix    tokens attend to tokens; both streams are fused (nn/entity_fusion.py)
    norm   entities attend to entities, too, before both are fused (the paper's K-Encoder)

An entity attends to the other entities of its sequence and to the first position, whose entity is the zero vector
[code]. Entity vectors come from a graph embedding, row 0 of the table standing for "no entity"; they do not learn.
Only the token stream is read by heads, so that the last layer that fuses has no entity output; the released code has
one there, and leaves it out of its optimiser.

What differs from the released code: nothing in the values. There every position has an entity state; those that no
other position sees are not computed here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.errors import UserError
from etude.graph.entity_links import Alignment, EntityLinks
from etude.models import transformer
from etude.models.transformer import Transformer
from etude.nn import residual
from etude.nn.attention.kv_cache import KVCache
from etude.nn.block import AttentionBranch
from etude.nn.embedding import Embedding
from etude.nn.entity_fusion import FusionBranch
from etude.nn.entity_stream import first_tokens
from etude.nn.norm import Norm
from etude.nn.packed import EntityStream, Packed
from etude.nn.precision import to_autocast_dtype
from etude.nn.recompute import Recomputable
from etude.nn.states import States
from etude.settings import ReadsEntities

Kind = Literal["sim", "mix", "norm"]


class Settings(transformer.Settings, ReadsEntities):
    layer_kinds: tuple[Kind, ...] = Field(
        default=(), description="kind of each layer: sim, mix or norm (ERNIE); sim beyond the last one named"
    )
    entity_width: int = Field(default=100, ge=1, description="width of the entity vectors")
    entity_heads: int = Field(default=4, ge=1)
    alignment: Alignment = Field(
        default="first", description="which pieces of a mention carry its entity; paper: first, code: all"
    )

    @model_validator(mode="after")
    def _is_bert(self) -> Self:
        if self.direction != "both" or self.norm != "post" or self.share != "none" or self.gated:
            raise ValueError(
                "ERNIE's layers are BERT's: set direction=both, norm=post, share=none and gated=false in the model"
            )
        if len(self.layer_kinds) > self.layers:
            raise ValueError(
                f"layer_kinds names {len(self.layer_kinds)} layers, and the model has {self.layers}: drop some"
            )
        if self.entity_width % self.entity_heads:
            raise ValueError(f"entity_heads={self.entity_heads} do not divide entity_width={self.entity_width}")
        return self

    def kind_of(self, layer: int) -> Kind:
        """What a layer does with entities."""
        return self.layer_kinds[layer] if layer < len(self.layer_kinds) else "sim"

    @property
    def last_fused(self) -> int | None:
        """The last layer that reads entities: no state of them leaves it."""
        return max((layer for layer in range(self.layers) if self.kind_of(layer) != "sim"), default=None)


class Ernie(Transformer):
    settings: Settings
    entity_table: Tensor  # (1 + entities, E) float32, row 0 zeros

    def __init__(self, settings: Settings, tied: Collection[str] = ()) -> None:
        super().__init__(settings, tied)
        kinds = {layer: settings.kind_of(layer) for layer in range(settings.layers)}
        self.entity_attention = nn.ModuleList(
            self._make_attention() if kind == "norm" else nn.Identity() for kind in kinds.values()
        )
        for layer in (layer for layer, kind in kinds.items() if kind != "sim"):
            self.feedforward[layer] = FusionBranch(
                settings.width,
                self.inner,
                settings.entity_width,
                norm=self._norm(settings.width),
                entity_norm=None if layer == settings.last_fused else self._norm(settings.entity_width),
                activation=settings.activation,
                bias=settings.bias,
                dropout=settings.dropout,
            )
        self.register_buffer("entity_table", torch.zeros(1 + (settings.entities or 0), settings.entity_width))
        self.reset()

    def _make_attention(self) -> AttentionBranch:
        settings = self.settings
        return AttentionBranch(
            settings.entity_width,
            settings.entity_heads,
            placement="post",
            norm=Norm(settings.entity_width, settings.epsilon, settings.bias, settings.norm_kind),
            bias=settings.bias,
            dropout=settings.dropout,
            attention_dropout=settings.attention_dropout,
        )

    @property
    def reads_entities(self) -> bool:
        return True

    @property
    def entity_alignment(self) -> Alignment:
        return self.settings.alignment

    def attach_links(self, links: EntityLinks) -> None:
        if self.settings.graph is not None and links.graph != self.settings.graph:
            raise UserError(
                f"These are entities of another graph (fingerprint {links.graph[:16]}) than those of the model "
                f"({self.settings.graph[:16]}). Give the graph that its entity vectors were trained on."
            )
        self.links = links

    def set_entity_vectors(self, vectors: np.ndarray) -> None:
        """Fill the table with the vectors of all entities, (entities, E); row 0 before them stays zero."""
        expected = (self.settings.entities or 0, self.settings.entity_width)
        if vectors.shape != expected:
            raise UserError(
                f"The entity vectors have the shape {vectors.shape}, and the model has a table of {expected}."
            )
        self.entity_table[1:] = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))

    def forward(
        self,
        packed: Packed,
        layers: bool = False,
        weights: bool = False,
        tied_to: Embedding | None = None,
        cache: KVCache | None = None,
        only: Tensor | None = None,
        queries: bool = False,
    ) -> States:
        """As a Transformer's; `packed.entities` says which tokens carry which entity, None that none does."""
        if only is not None and (layers or queries):
            raise ValueError("`only` leaves out states of the last layer, and `layers` or `queries` ask for all")
        self._check(packed.layout, cache)
        last = self.settings.layers - 1
        x, table = self.embedding(packed.tokens, packed.positions, packed.segments, tied_to)  # (N, D)
        x = to_autocast_dtype(x)
        stream = first_tokens(packed) if packed.entities is None else packed.entities
        entities: Tensor | None = to_autocast_dtype(F.embedding(stream.tokens, self.entity_table))  # (M, E)
        rotations = self._rotations(packed.positions)
        hidden: list[Tensor] = [x]
        attention_weights: list[list[Tensor]] | None = [] if weights else None
        query_keys: list[Tensor] | None = [] if queries else None
        tokens: residual.Stream = x
        if not layers:
            tokens = residual.start_stream(x, self.feedforward[0].norm)  # type: ignore[arg-type]
        for layer in range(self.settings.layers):
            computed, window = only if layer == last else None, self.window_of(layer)
            tokens = self.attention[layer](
                tokens,
                packed.layout,
                causal=False,
                window=window,
                rotation=rotations[0 if window is None else 1],
                path=self.path,
                record_weights=attention_weights,
                only=computed,
                record_query_key=query_keys,
            )
            tokens, entities = self._fuse(layer, tokens, entities, stream, computed)
            if layers:
                assert isinstance(tokens, Tensor)
                hidden.append(tokens)
        hidden[-1] = residual.final_state(tokens, None)
        return States(
            last=hidden[-1],
            layers=hidden if layers else None,
            table=table,
            weights=attention_weights,
            queries=query_keys,
        )

    def _fuse(
        self, layer: int, tokens: residual.Stream, entities: Tensor | None, stream: EntityStream, only: Tensor | None
    ) -> tuple[residual.Stream, Tensor | None]:
        """What follows a layer's attention over tokens; entities None: no layer above reads them."""
        branch = self.feedforward[layer]
        if not isinstance(branch, FusionBranch):
            return branch(tokens), entities
        assert entities is not None
        if self.settings.kind_of(layer) == "norm":
            entities = self.entity_attention[layer](entities, stream.layout, causal=False, path=self.path)
        return branch.fuse(tokens, entities, stream, only)

    def flops(
        self,
        lengths: np.ndarray,
        pooled: bool = False,
        only: int | None = None,
        entity_lengths: np.ndarray | None = None,
    ) -> int:
        """As a Transformer's; `entity_lengths` are those of the entity stream, 1 a sequence where there is none."""
        settings = self.settings
        streams = np.minimum(np.asarray(lengths), 1) if entity_lengths is None else np.asarray(entity_lengths)
        streams = streams.astype(np.int64)
        entries, pairs, width = int(streams.sum()), int((streams * streams).sum()), settings.entity_width
        total = super().flops(lengths, pooled, only)
        for layer, branch in enumerate(self.feedforward):
            if not isinstance(branch, FusionBranch):
                continue
            if settings.kind_of(layer) == "norm":
                total += 8 * entries * width * width + 4 * pairs * width
            is_selected = only is not None and layer == settings.layers - 1
            reads = int(only or 0) if is_selected else entries
            total += 2 * reads * width * self.inner
            if branch.entity_down is not None:
                total += 2 * entries * width * self.inner
        return total

    def layer_modules(self) -> list[list[Recomputable]]:
        """Without what joins tokens and entities, which is not called alone."""
        return [[part for part in parts if not isinstance(part, FusionBranch)] for parts in super().layer_modules()]

    def parameter_depth(self, name: str) -> int:
        part, *words = name.split(".")
        return int(words[0]) + 1 if part == "entity_attention" else super().parameter_depth(name)


def build(settings: Settings) -> Ernie:
    return Ernie(settings)
