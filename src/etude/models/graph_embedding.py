"""Embeddings of a knowledge graph: one vector an entity, one a relation, and a score of triples made of them.

TransE, RotatE, DistMult and ComplEx are this model with another `score` (nn/triple_scores.py). It reads numbers of
entities where other models read tokens: `vocab` is the number of entities, and a "sequence" of entities gives their
vectors, so that a run of it can be looked into as one of word vectors can.

Initial values, `init`:

    transe    U(-6/sqrt(D), 6/sqrt(D)), relations then divided by their L2 norm  (Bordes et al. 2013, algorithm 1)
    range     U(-init_range, init_range): RotatE's code has (margin + 2) / D, D counting complex numbers. RotatE reads a
              number of a relation as a phase, init_range standing for pi
    normal    N(0, init_range^2): for the dot products of DistMult and ComplEx

With `unit_entities` every entity's vector has an L2 norm of 1 whenever it is read (Bordes et al., algorithm 1, line 5:
entities are divided by their norm before every batch). In training the table is divided in place, by the objective
before each step; elsewhere a vector is divided as it is read, and final weights are divided once more.
"""

from __future__ import annotations

import math
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.errors import UserError
from etude.models.base import Model, ModelSettings
from etude.models.framing import Framing
from etude.nn.gathered_distances import gathered_distances, has_kernels
from etude.nn.packed import Packed
from etude.nn.states import States
from etude.nn.triple_scores import ScoreName, TripleScore
from etude.text.tokenizer.special_tokens import Specials

TINY = 1e-12  # the least norm that a vector is divided by, as torch.nn.functional.normalize


class Settings(ModelSettings):
    width: int = Field(
        ge=1, description="width of an entity's vector; real and imaginary parts of a complex one together"
    )
    vocab: int | None = Field(default=None, ge=1, description="entities; filled from the graph")
    relations: int | None = Field(default=None, ge=1, description="filled from the graph")
    score: ScoreName = "transe"
    norm: Literal[1, 2] = Field(default=1, description="norm of TransE's distance: 1 or 2")
    unit_entities: bool = Field(default=False, description="entities have an L2 norm of 1 (TransE's paper)")
    init: Literal["transe", "range", "normal"] = "transe"
    init_range: float | None = Field(
        default=None, gt=0, description="bound of init=range, or standard deviation of init=normal"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.score in ("rotate", "complex") and self.width % 2:
            raise ValueError(f"width={self.width}: score={self.score} has complex vectors, whose width is even")
        if self.init != "transe" and self.init_range is None:
            raise ValueError(f"init={self.init} needs init_range, such as 0.01")
        if self.score == "rotate" and self.init != "range":
            raise ValueError("score=rotate reads phases, for which init_range stands for pi: set init to range")
        if self.norm == 2 and self.score != "transe":
            raise ValueError(f"norm=2 is of TransE's distance; score={self.score} has none: leave norm out")
        return self


class GraphEmbedding(Model):
    settings: Settings
    context = None  # an entity's vector sees no other

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if settings.relations is None:
            raise UserError("the number of relations is missing: set model.relations, or give a graph to take it from")
        self.width = settings.width
        self.entities = nn.Embedding(self.vocab, settings.width)
        relation_width = settings.width // 2 if settings.score == "rotate" else settings.width
        self.relations = nn.Embedding(settings.relations, relation_width)
        self.score = TripleScore(settings.score, settings.norm, settings.init_range or math.pi)
        self.reset()

    def reset(self) -> None:
        """Draws the vectors anew from `torch.manual_seed`."""
        settings = self.settings
        with torch.no_grad():
            for table in (self.entities.weight, self.relations.weight):
                if settings.init == "transe":
                    bound = 6.0 / math.sqrt(settings.width)
                    table.uniform_(-bound, bound)
                elif settings.init == "range":
                    assert settings.init_range is not None
                    table.uniform_(-settings.init_range, settings.init_range)
                else:
                    assert settings.init_range is not None
                    table.normal_(0.0, settings.init_range)
            if settings.init == "transe":
                self.relations.weight.div_(self.relations.weight.norm(dim=1, keepdim=True).clamp(min=TINY))
            self.normalize_entities()

    # --- vectors and scores -------------------------------------------------------------------------

    @torch.no_grad()
    def normalize_entities(self) -> None:
        """Divide every entity's vector by its L2 norm, in place, where the settings ask for unit vectors."""
        if self.settings.unit_entities:
            table = self.entities.weight
            table.div_(torch.linalg.vector_norm(table, dim=1, keepdim=True).clamp_(min=TINY))

    def finish_training(self) -> None:
        self.normalize_entities()

    def vectors(self, numbers: Tensor) -> Tensor:
        """Return the vectors (..., D) of entities by number."""
        x: Tensor = self.entities(numbers)
        if self.settings.unit_entities and not self.training:
            x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=TINY)
        return x

    def forward(self, packed: Packed, layers: bool = False) -> States:
        x = self.vectors(packed.tokens)  # (N, D)
        return States(last=x, layers=[x] if layers else None, table=self.entities.weight)

    def queries(self, known: Tensor, relations: Tensor, wants_head: Tensor) -> Tensor:
        """Return the queries (B, D) of numbers of entities (B,), relations (B,), and which side is wanted (B,)."""
        return self.score.queries(self.vectors(known), self.relations(relations), wants_head)

    def can_score_by_number(self) -> bool:
        """Whether `score_by_number` reads candidates from the table itself, without a copy of their vectors."""
        is_plain = self.training or not self.settings.unit_entities  # else vectors are divided as they are read
        return is_plain and self.score.distance is not None and has_kernels(self.entities.weight)

    def score_by_number(self, queries: Tensor, numbers: Tensor) -> Tensor:
        """Return the scores (B, n) of queries (B, D) with candidates of their own, by number (B, n)."""
        assert self.score.distance is not None
        return -gathered_distances(queries, self.entities.weight, numbers, self.score.distance)

    def score_triples(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the score of each triple (B,); greater is more plausible."""
        queries = self.queries(heads, relations, torch.zeros_like(heads, dtype=torch.bool))
        return self.score.score_rows(queries, self.vectors(tails))

    def flops(self, lengths: np.ndarray) -> int:
        """A look-up multiplies nothing."""
        return 0

    # --- what kind of model it is -------------------------------------------------------------------

    @property
    def layers(self) -> int:
        return 0

    def frame(self, special: Specials) -> Framing:
        """Entities alone: a graph has no markers."""
        return Framing([], [], [], pooling="mean", separate=True)

    def parameter_depth(self, name: str) -> None:
        return None


def build(settings: Settings) -> GraphEmbedding:
    return GraphEmbedding(settings)
