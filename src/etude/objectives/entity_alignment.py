"""ERNIE's objective (Zhang et al. 2019, section 3.5): masked tokens, the next sentence, and the entities of the text.

BERT's two terms (objectives/masked.py) and denoising entity alignment, dEA, a plain sum of the three:

    alignment   at every token that carries an entity: which of the entities of this batch is it? The state of the
                token, through a layer of its own, is multiplied by their frozen vectors

Some entities were replaced or dropped before the model read them (parts/entity_noise.py): without that the answer
would stand beside the question.

The candidates, and the entities that replace others, are those of one micro-batch. So this loss couples its rows: other
micro-batches give other losses, by more than rounding (`couples_rows`). The released code counts "no entity" among the
candidates and may replace an entity by itself; here it may not, as the paper has it.

A sequence with fewer than `min_entities` of them is read, but nothing of it is predicted: the paper drops sequences of
fewer than 3, the code of fewer than 5. Rows keep their fixed size that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError
from etude.graph.entity_links import Alignment
from etude.models.base import Model, require
from etude.models.ernie import Ernie
from etude.models.transformer import Transformer
from etude.nn.activations import ACTIVATIONS
from etude.nn.entity_stream import build_stream
from etude.nn.initialization import draw_key, init_weights
from etude.nn.losses import linear_cross_entropy, linear_losses_and_argmax
from etude.nn.norm import Norm
from etude.nn.states import States
from etude.objectives import masked
from etude.objectives.base import IGNORE, Stat, Term
from etude.objectives.batch_view import BatchView, TokenView
from etude.objectives.masked import Masked, MaskedBatch
from etude.objectives.parts.entity_noise import Noise, aligned_entities, alignment_slots, limit_entities
from etude.objectives.parts.masking import Places
from etude.objectives.rows.masked_rows import GRAIN
from etude.objectives.rows.segments import Rules, SegmentRow, SegmentRows
from etude.objectives.rows.sizes import corpus_name
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials

SAMPLE = 32  # rows whose entities are counted to know how many a row may have
HIDDEN = -1e4  # the bias of slots that hold no candidate; within the range of half precision


class Settings(masked.Settings):
    replace_share: float = Field(
        default=0.05, ge=0, le=1, description="share of the entities that are replaced by another of the batch"
    )
    drop_share: float = Field(
        default=0.15, ge=0, le=1, description="share of the entities that are dropped; the others stay as they are"
    )
    min_entities: int = Field(default=0, ge=0, description="sequences with fewer predict nothing; paper: 3, code: 5")

    @model_validator(mode="after")
    def _entity_shares_fit(self) -> Self:
        if self.replace_share + self.drop_share > 1 + 1e-9:
            raise ValueError(
                f"replace_share={self.replace_share} and drop_share={self.drop_share} are together more than 1: "
                "lower one; what they leave is kept"
            )
        if not self.markers:
            raise ValueError("entities attend to the first token of a sequence, [CLS]: set markers=true")
        return self


@dataclass
class EntityRow(SegmentRow):
    entity_slots: int = 0  # no row of this corpus has more entities, or they are left out


class EntityRows(SegmentRows):
    """Rows with the entities of their tokens; how many a row can have is known from a sample of rows."""

    def __init__(self, corpus: Corpus, seed: int, rules: Rules, words: bool, alignment: Alignment) -> None:
        super().__init__(corpus, seed, rules, words, entities=True)
        self.alignment = alignment
        sample = super().many(np.unique(np.linspace(0, len(self) - 1, SAMPLE).astype(np.int64)))
        counts = [int((self._entities(row) >= 0).sum()) for row in sample]
        most = max(counts) + max(counts) // 4 + 8
        self.entity_slots = min(rules.row_tokens, -(-most // 8) * 8)

    def _entities(self, row: SegmentRow) -> np.ndarray:
        assert row.entities is not None
        return aligned_entities(row.entities, self.alignment)

    def many(self, numbers: np.ndarray) -> list[SegmentRow]:
        return [
            EntityRow(**{**vars(row), "entities": self._entities(row)}, entity_slots=self.entity_slots)
            for row in super().many(numbers)
        ]


@dataclass(kw_only=True)
class EntityBatch(MaskedBatch):
    """`entities` has noise; the true ones are targets of further slots."""

    aligned: Tensor  # (A,) int64, tokens that carry an entity; 0 in unused slots
    entity_targets: Tensor  # (A,) int64, the place of the true entity among the candidates, or IGNORE
    candidates: Tensor  # (C,) int64, rows of the entity table; 0 in unused slots
    distinct: np.ndarray  # the entities that are candidates, on the host

    def compact(self) -> Self:
        """With fewer unused slots, and an entity stream without padding."""
        batch = super().compact()
        assert batch.entities is not None
        used, known = int((self.entity_targets != IGNORE).sum()), len(self.distinct)
        slots, rows = (max(1, -(-count // GRAIN)) * GRAIN for count in (used, known))
        sequences = len(self.layout.host)  # with the end of the last
        entities = batch.entities
        size = int(entities.layout.host[sequences - 1])
        layout = replace(
            entities.layout, bounds=entities.layout.bounds[:sequences], host=entities.layout.host[:sequences]
        )
        stream = replace(entities, tokens=entities.tokens[:size], positions=entities.positions[:size], layout=layout)
        return replace(
            batch,
            aligned=self.aligned[:slots],
            entity_targets=self.entity_targets[:slots],
            candidates=self.candidates[:rows],
            entities=stream,
        )


class EntityHead(nn.Module):
    """A layer from hidden states to the width of entity vectors: dense, activation, norm."""

    def __init__(self, model: Ernie) -> None:
        super().__init__()
        settings = model.settings
        self.activation = ACTIVATIONS[settings.activation]
        self.dense = nn.Linear(settings.width, settings.entity_width, bias=settings.bias)
        self.norm = Norm(settings.entity_width, settings.epsilon, settings.bias, settings.norm_kind)
        init_weights(self, key=draw_key(), deviation=settings.init_deviation, truncated=settings.init_truncated)

    def forward(self, last: Tensor) -> Tensor:
        """(A, D) -> (A, E)."""
        return self.norm(self.activation(self.dense(last)))


class EntityAlignment(Masked):
    settings: Settings
    couples_rows = True

    def __init__(self, settings: Settings, model: Ernie, special: Specials) -> None:
        super().__init__(settings, model, special)
        self.entity_head = EntityHead(model)
        self.noise = Noise(settings.replace_share, settings.drop_share)
        self.alignment = model.entity_alignment
        self.graph, self.table_size = model.settings.graph, model.settings.entities

    def rows(self, corpus: Corpus, seed: int) -> SegmentRows:
        where = corpus_name(corpus)
        if self.table_size is None:
            raise UserError("The model has no entity vectors: give a run of a graph embedding with --entities RUN.")
        rows = EntityRows(corpus, seed, self.row_rules, self.settings.whole_word, self.alignment)
        if self.graph is not None and corpus.graph != self.graph:
            raise UserError(
                f"{where} is linked to another graph (fingerprint {str(corpus.graph)[:16]}) than the entity vectors "
                f"belong to ({self.graph[:16]}). Link the text to the graph of the vectors, or train others."
            )
        return rows

    def find_problems(self, corpus: Corpus) -> list[str]:
        if corpus.graph is None or self.table_size is None:
            return []
        column = corpus.entities(0, min(corpus.total, 1_000_000))
        share = float((aligned_entities(column, self.alignment) >= 0).mean())
        return [] if share >= 0.01 else [f"Only {share:.2%} of the tokens carry an entity: there is little to align."]

    def batch(self, rows: Sequence[SegmentRow], chance: Chance) -> EntityBatch:
        batch, first = super().batch(rows, chance), rows[0]
        assert isinstance(first, EntityRow)
        places = Places(chance, batch.rows, [len(row.tokens) for row in rows])
        entities = np.concatenate([row.entities for row in rows if row.entities is not None])
        entities = limit_entities(entities, places.row, first.entity_slots)
        self._skip_poor_sequences(batch, entities)
        aligned = np.flatnonzero(entities >= 0)
        if self.settings.min_entities:
            aligned = aligned[self._is_rich(batch, entities)[aligned]]
        candidates = np.unique(entities[aligned])
        slots = len(rows) * first.entity_slots
        index, targets, table_rows = alignment_slots(entities, aligned, candidates, slots)
        noisy = self.noise.apply(entities, aligned, candidates, places)
        stream = build_stream(noisy + 1, batch.layout, slots + len(rows) * first.most)
        known = {entry.name: getattr(batch, entry.name) for entry in fields(batch) if entry.name != "entities"}
        known["counts"] = batch.counts | {"alignment": len(aligned)}
        return EntityBatch(
            **known,
            entities=stream,
            aligned=torch.from_numpy(index),
            entity_targets=torch.from_numpy(targets),
            candidates=torch.from_numpy(table_rows),
            distinct=candidates,
        )

    def view_batch(self, model: Transformer, batch: MaskedBatch) -> BatchView:
        assert isinstance(batch, EntityBatch)
        view, used = super().view_batch(model, batch), batch.entity_targets != IGNORE
        entities = batch.distinct[batch.entity_targets[used].numpy()]
        at = dict(zip(batch.aligned[used].tolist(), entities.tolist(), strict=True))
        starts = np.cumsum([0, *(len(sequence.tokens) for sequence in view.sequences)])

        def add(token: TokenView, place: int) -> TokenView:
            return replace(token, entity=at[place]) if place in at else token

        sequences = [
            replace(sequence, tokens=[add(token, start + number) for number, token in enumerate(sequence.tokens)])
            for sequence, start in zip(view.sequences, starts.tolist(), strict=False)
        ]
        asks = (f"{view.asks[0]}; and the entity of every mention", f"{view.asks[1]}, 그리고 언급된 개체")
        return replace(view, asks=asks, sequences=sequences)

    def _is_rich(self, batch: MaskedBatch, entities: np.ndarray) -> np.ndarray:
        """(N,) whether a token's sequence has the entities it needs to be learnt from."""
        bounds = batch.layout.host.astype(np.int64)
        before = np.concatenate([[0], np.cumsum(entities >= 0)])
        return np.repeat(np.diff(before[bounds]) >= self.settings.min_entities, np.diff(bounds))

    def _skip_poor_sequences(self, batch: MaskedBatch, entities: np.ndarray) -> None:
        """Removes the targets of sequences with too few entities, in place."""
        if not self.settings.min_entities:
            return
        rich = self._is_rich(batch, entities)
        batch.targets[torch.from_numpy(~rich[batch.index.numpy()])] = IGNORE
        batch.counts["mlm"] = int((batch.targets != IGNORE).sum())
        if self.sentence is not None:
            first = np.minimum(batch.layout.host[:-1], len(rich) - 1)
            batch.labels[torch.from_numpy(~rich[first])] = IGNORE
            batch.counts["sentence"] = int((batch.labels != IGNORE).sum())

    # --- loss ---------------------------------------------------------------------------------------

    def _places(self, batch: MaskedBatch) -> Tensor:
        assert isinstance(batch, EntityBatch)
        return torch.cat([super()._places(batch), batch.aligned])

    def _alignment(self, model: Transformer, states: States, batch: EntityBatch) -> tuple[Tensor, Tensor, Tensor]:
        """(A, E), (C, E) and (C,): their product, and a bias that hides empty slots, are the logits of alignment."""
        assert isinstance(model, Ernie)
        hidden = self.entity_head(states.last[len(states.last) - len(batch.aligned) :])
        vectors = model.entity_table.index_select(0, batch.candidates)
        return hidden, vectors, (batch.candidates == 0).to(vectors.dtype) * HIDDEN

    def _terms(self, model: Transformer, states: States, batch: MaskedBatch) -> dict[str, Term]:
        assert isinstance(batch, EntityBatch)
        total = linear_cross_entropy(*self._alignment(model, states, batch), batch.entity_targets)
        return {**super()._terms(model, states, batch), "alignment": Term(total, batch.counts["alignment"])}

    def _stats(self, model: Transformer, states: States, batch: MaskedBatch) -> dict[str, Stat]:
        assert isinstance(batch, EntityBatch)
        losses, likeliest = linear_losses_and_argmax(*self._alignment(model, states, batch), batch.entity_targets)
        count = batch.counts["alignment"]
        return {
            **super()._stats(model, states, batch),
            "alignment": Stat(losses.sum(), count, 1.0),
            "alignment_accuracy": Stat((likeliest == batch.entity_targets).sum(), count),
        }

    def flops(self, model: Transformer, batch: MaskedBatch) -> int:
        assert isinstance(model, Ernie) and isinstance(batch, EntityBatch) and batch.entities is not None
        slots, aligned = batch.counts["mlm"], batch.counts["alignment"]
        labelled = 0 if self.sentence is None else batch.counts["sentence"]
        lengths = batch.layout.lengths
        entity_lengths = batch.entities.layout.lengths[: len(lengths)]
        forward = model.flops(lengths, only=slots + labelled + aligned, entity_lengths=entity_lengths)
        forward += self.head.flops(slots) + 2 * labelled * model.width * (model.width + 2)
        width = model.settings.entity_width
        # the vectors of candidates do not learn: their product has one derivative, not two
        return 3 * (forward + 2 * aligned * width * model.width) + 2 * 2 * aligned * width * len(batch.distinct)


def build(settings: Settings, model: Model, special: Specials) -> EntityAlignment:
    message = f"objective entity_alignment trains an ERNIE, not {model.kind}. Set model.kind: ernie."
    return EntityAlignment(settings, require(model, Ernie, message), special)
