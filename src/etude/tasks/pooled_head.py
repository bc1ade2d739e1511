"""What tasks with one vector a sequence share: rows of framed texts, the vector, the head, the auxiliary loss.

`PooledHead` is a part of classification, sentence pairs, similarity and multiple choice, which differ in what they
make of its scores. An example is one or several sequences of one row:

    joint    one sequence of one or two texts
    apart    two texts alone, joined as [u; v; |u - v|; u * v] (Conneau et al. 2017), where a model cannot relate
             them itself (static, recurrent)
    both     a pair in both orders, the two vectors added (GPT-1, section 3.3: similarity has no order)

The auxiliary language-model loss is GPT-1's (section 3.2): L = L_task + weight * L_lm over the same sequences. It
is a mean over all predicted tokens of a step (GPT-1's code takes means of sequences first), through the tied table.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etude.errors import UserError
from etude.graph.entity_links import NamedMention
from etude.models.base import Model, require
from etude.models.depth import training_flops
from etude.models.framing import FramedText, Pooling, pool
from etude.models.transformer import Transformer
from etude.nn.entity_stream import build_stream, pad_stream
from etude.nn.losses import linear_cross_entropy
from etude.nn.packed import send_array
from etude.nn.precision import upcast
from etude.nn.states import States
from etude.objectives.base import IGNORE, Batch, Row, Term, join
from etude.objectives.parts.heads import CausalHead
from etude.settings import Strict
from etude.tasks.entity_text import EncodedText, EntityEncoder
from etude.tasks.published_head import EncoderFamily, PublishedHead, Readout, pass_through_gelu
from etude.text.tokenizer.tokenizer import Tokenizer

PairReading = Literal["joint", "apart", "both"]  # how the two texts of a pair become sequences

log = logging.getLogger("etude")


class Settings(Strict):
    texts: ClassVar[int] = 1  # of a sequence that a task reads as one: 2 for pairs
    pooling: Pooling | None = Field(default=None, description="one vector a text; what suits the model unless given")
    length: int | None = Field(default=None, ge=3, description="tokens of a sequence at most; the context if None")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="dropout on the pooled vector")
    deviation: float | None = Field(
        default=None,
        ge=0,
        description="standard deviation of the last layer's initial weights; 0.02 if None, 0 over two towers",
    )
    scale: float | None = Field(
        default=None, gt=0, description="what the vector is multiplied by: 1 if None, 16 over two towers (Baevski)"
    )
    head: Literal["linear", "mlp"] = "linear"
    hidden: int | None = Field(
        default=None, ge=1, description="hidden width of the MLP; the width of the vector if None"
    )
    language_model: float = Field(default=0.0, ge=0, description="weight of the auxiliary loss; 0.5 in GPT-1")

    def refuse_unused(self) -> None:
        """Raise UserError for a setting without effect; where a transfer starts, not where an older run is opened."""
        if self.hidden is not None and self.head != "mlp":
            raise UserError(
                f"task.hidden={self.hidden} is the width of the MLP of task.head=mlp, and task.head={self.head} has "
                "none: set task.head=mlp, or drop task.hidden."
            )


@dataclass
class ExampleRow(Row):
    label: int = IGNORE
    value: float = 0.0
    entities: np.ndarray | None = None  # (n,) int64, rows of the model's entity table


@dataclass
class ExampleRows:
    """Row i is example i; numbers at and beyond the last are later epochs."""

    framed: list[list[FramedText]]
    labels: np.ndarray | None = None  # (examples,)
    values: np.ndarray | None = None  # (examples,) targets of regression
    shuffle: bool = True
    row_tokens: int | None = None

    @property
    def cut(self) -> int:
        """How many examples were longer than the model can see."""
        return sum(any(part.cut for part in parts) for parts in self.framed)

    def part(self, numbers: Sequence[int]) -> ExampleRows:
        """Some of them, in the order given."""
        chosen = list(numbers)
        labels, values = (None if array is None else array[chosen] for array in (self.labels, self.values))
        return replace(self, framed=[self.framed[n] for n in chosen], labels=labels, values=values)

    def __len__(self) -> int:
        return len(self.framed)

    def __getitem__(self, index: int) -> ExampleRow:
        number = index % len(self)
        parts = self.framed[number]
        return ExampleRow(
            index,
            join_arrays([part.tokens for part in parts]),
            np.array([0, *accumulate(len(part.tokens) for part in parts)], np.int32),
            _join_known([part.segments for part in parts]),
            label=IGNORE if self.labels is None else int(self.labels[number]),
            value=0.0 if self.values is None else float(self.values[number]),
            entities=_join_known([part.entities for part in parts]),
        )


def join_arrays(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays end to end; one alone is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _join_known(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """(n,) what some sequences have beside their tokens, end to end; None where they have none."""
    known = [array for array in arrays if array is not None]
    return join_arrays(known) if len(known) == len(arrays) else None


@dataclass
class ExampleBatch(Batch):
    labels: Tensor | None = None  # (R,) int64
    values: Tensor | None = None  # (R,) float32
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # (R,) sequences of each row, on the host
    following: Tensor | None = None  # (N,) the next token of the same sequence, for the auxiliary loss
    separators: Tensor | None = None  # (S,) where the separator of a pair stands, where it is read

    def pad(self, sizes: Sequence[int], longest: int) -> Self:
        padded = super().pad(sizes, longest)
        if self.entities is not None:
            padded.entities = pad_stream(self.entities, sum(sizes))
        if self.following is not None:
            padded.following = F.pad(self.following, (0, sum(sizes)), value=IGNORE)
        return padded


class PooledHead(nn.Module):
    def __init__(
        self,
        settings: Settings,
        model: Model,
        tokenizer: Tokenizer,
        outputs: int,
        reading: PairReading = "joint",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.reads_entities, self.entity_encoder = model.base.reads_entities, EntityEncoder(model, tokenizer)
        self.settings, self.tokenizer, self.reading = settings, tokenizer, reading
        self.shared_dropout = False  # one draw of dropout for all sequences of an example (GPT-1's code: all answers)
        self.framing = model.frame(tokenizer.special).limit(settings.length)
        self.pooling: Pooling = settings.pooling or self.framing.pooling
        natural = self.pooling == self.framing.pooling
        self.scale = settings.scale or (self.framing.head_scale if natural else 1.0)
        self.reads_separator = self.pooling == "ends" and settings.texts == 2 and reading != "apart"
        states = 1 if self.pooling != "ends" else 3 if self.reads_separator else 2  # that make up the vector
        self.width = model.width * states * (4 if reading == "apart" else 1)
        self.hidden: nn.Linear | None = None
        if settings.head == "mlp":
            self.hidden = nn.Linear(self.width, settings.hidden or self.width)
        self.head = nn.Linear(self.hidden.out_features if self.hidden else self.width, outputs, bias=bias)
        std = self.framing.head_std if natural else 0.02
        nn.init.normal_(self.head.weight, std=std if settings.deviation is None else settings.deviation)
        if bias:
            nn.init.zeros_(self.head.bias)
        self.language_model: CausalHead | None = None
        if settings.language_model:
            if not model.causal:
                raise UserError(
                    "task.language_model adds a left-to-right language-model loss, and this model sees both sides: "
                    "every token would see the one it predicts. Set task.language_model=0."
                )
            message = "task.language_model predicts by the token table of a Transformer: set task.language_model=0."
            self.language_model = CausalHead(require(model.base, Transformer, message), bias=False)

    # --- texts to rows ------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text; encodings are large, so not all of them are held at once."""
        groups = (texts[start : start + 1000] for start in range(0, len(texts), 1000))
        return [ids for group in groups for ids in self.tokenizer.encode_ids(group)]

    def linked_mentions(self, text: str) -> list[NamedMention]:
        """What the model's linker finds in a text, by name; nothing where it has none."""
        return self.entity_encoder.find_mentions(text)

    def rows(
        self,
        texts: Sequence[Sequence[Sequence[str]]],
        places: Sequence[str],
        source: str,
        mentions: Sequence[Sequence[NamedMention] | None] | None = None,
    ) -> ExampleRows:
        """Rows of examples: each is a list of sequences, each sequence one text or two.

        `mentions`: of every text in turn, the entities it mentions, for a model that reads them; None: a linker's.
        """
        flat = [text for example in texts for sequence in example for text in sequence]
        if self.reads_entities:
            encoded = iter(self.entity_encoder.encode(flat, [None] * len(flat) if mentions is None else mentions))
        else:
            encoded = iter([EncodedText(ids, None) for ids in self.encode(flat)])
        framed = []
        for example, where in zip(texts, places, strict=True):
            parts = [[next(encoded) for _ in sequence] for sequence in example]
            if any(not len(text.ids) for part in parts for text in part):
                raise UserError(f"{where}: the tokenizer leaves nothing of a text of this example. Remove it.")
            framed.append([sequence for part in parts for sequence in self._frame(part)])
        rows = ExampleRows(framed)
        entities = [part.entities for row in framed for part in row if part.entities is not None]
        if self.reads_entities and not any(part.any() for part in entities):
            log.warning(
                "%s: no text has an entity that the model knows, so it reads plain text. Name a column of entities "
                "(-c entities=NAME), or a graph to find them by (transfer.link=GRAPH).",
                source,
            )
        if rows.cut:
            log.warning(
                "%s: %d of %d texts are longer than %d tokens and were cut.",
                source, rows.cut, len(rows), self.framing.length,
            )  # fmt: skip
        return rows

    def _frame(self, part: list[EncodedText]) -> list[FramedText]:
        if self.reading == "apart":
            return [self._join([text]) for text in part]
        if self.reading == "both":
            return [self._join(part), self._join(part[::-1])]
        return [self._join(part)]

    def _join(self, part: list[EncodedText]) -> FramedText:
        entities = [text.entities for text in part if text.entities is not None]
        return self.framing.join([text.ids for text in part], entities if self.reads_entities else None)

    # --- rows to scores -----------------------------------------------------------------------------

    def batch(self, rows: Sequence[ExampleRow]) -> ExampleBatch:
        longest = self.framing.length or max(int(np.diff(row.bounds).max()) for row in rows)
        packed = join(rows, 0, longest)
        batch = ExampleBatch(
            **packed,
            counts={"loss": len(rows)},
            labels=torch.tensor([row.label for row in rows]),
            values=torch.tensor([row.value for row in rows], dtype=torch.float32),
            sizes=np.array([len(row.bounds) - 1 for row in rows]),
        )
        entities = [row.entities for row in rows if row.entities is not None]
        if entities:
            batch.entities = build_stream(np.concatenate(entities), batch.layout)
        if self.reads_separator:
            host = batch.layout.host[:-1].astype(np.int64)
            marks = np.flatnonzero(batch.tokens.numpy() == self.framing.between[0])
            first = np.searchsorted(marks, host + 1)  # the first behind the start
            batch.separators = torch.from_numpy(marks[first])
        if self.settings.language_model:
            following = torch.roll(batch.tokens, -1)
            following[torch.from_numpy(batch.layout.host[1:].astype(np.int64)) - 1] = IGNORE
            batch.following = following
            batch.counts["language_model"] = batch.layout.total - len(batch.layout.lengths)
        return batch

    def forward(self, model: Model, batch: ExampleBatch) -> tuple[Tensor, States]:
        """(R or S, outputs) before any softmax: one a row where its sequences are joined, else one a sequence."""
        states = model(batch)
        return self.scores(model, states, batch), states

    def scores(self, model: Model, states: States, batch: ExampleBatch) -> Tensor:
        """The same from states that are there already."""
        vectors = self._dropout(self.features(model, states, batch), batch)
        if self.hidden is not None:
            vectors = F.dropout(F.relu(self.hidden(vectors)), self.settings.dropout, self.training)
        return upcast(self.head(vectors))

    def features(self, model: Model, states: States, batch: ExampleBatch) -> Tensor:
        """What the head reads, (R or S, width): one a row where its sequences are joined, else one a sequence."""
        vectors = self.scale * self.vectors(model, states.last, batch)  # (S, D)
        if self.reading == "apart":
            first, second = vectors[0::2], vectors[1::2]
            return torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
        return vectors[0::2] + vectors[1::2] if self.reading == "both" else vectors

    def feature_counts(self, batch: ExampleBatch) -> np.ndarray:
        """(R,) how many of these vectors each row has."""
        return batch.sizes if self.reading == "joint" else batch.sizes // 2

    @property
    def nonlinear_part(self) -> str | None:
        return None if self.hidden is None else f"task.head={self.settings.head}"

    def _dropout(self, vectors: Tensor, batch: ExampleBatch) -> Tensor:
        if not self.shared_dropout or not self.training:
            return F.dropout(vectors, self.settings.dropout, self.training)
        mask = F.dropout(vectors.new_ones(len(batch.sizes), vectors.shape[-1]), self.settings.dropout)  # (R, D)
        sizes = batch.sizes // (2 if self.reading == "apart" else 1)
        rows = send_array(np.repeat(np.arange(len(sizes)), sizes), vectors.device)  # of the vectors
        return vectors * mask.index_select(0, rows)

    def vectors(self, model: Model, last: Tensor, batch: ExampleBatch) -> Tensor:
        """(S, D) one vector a sequence; padding has none."""
        if self.pooling == "start" and model.pooler is not None:
            return model.pool(last, batch.layout)[: batch.sequences]
        vectors = pool(last, batch.layout, self.pooling)[: batch.sequences]
        return torch.cat([vectors, last[batch.separators]], dim=-1) if self.reads_separator else vectors

    def auxiliary(self, model: Model, states: States, batch: ExampleBatch) -> dict[str, Term]:
        """GPT-1's second loss; nothing where it is off."""
        if self.language_model is None:
            return {}
        assert batch.following is not None
        last, table = self.language_model(model.base, states)
        total = linear_cross_entropy(last, table, self.language_model.bias, batch.following)
        return {"language_model": Term(total, batch.counts["language_model"], self.settings.language_model)}

    def flops(self, model: Model, batch: ExampleBatch) -> int:
        return training_flops(model, batch.lengths) + 3 * self.head_flops(model, batch)

    def head_flops(self, model: Model, batch: ExampleBatch) -> int:
        """Of what stands above the model, forward."""
        lengths = batch.lengths
        outputs = len(lengths) if self.reading == "joint" else len(lengths) // 2
        layers = [self.head] if self.hidden is None else [self.hidden, self.head]
        forward = 2 * outputs * sum(layer.in_features * layer.out_features for layer in layers)
        if self.pooling == "start" and model.pooler is not None:
            forward += 2 * len(lengths) * model.width**2
        if self.language_model is not None:
            forward += self.language_model.flops(batch.counts["language_model"])
        return int(forward)

    def published_head(
        self,
        model: Model,
        family: EncoderFamily,
        ending: str,
        weights: Mapping[str, Tensor],
        config: Mapping[str, object],
    ) -> PublishedHead:
        """The head of a task whose part this is: `weights` are those of the task, where it is named `pooled`."""
        misfits = tuple(self._misfits(model, family))
        if self.scale != 1.0:  # no class has a factor before its head: the first layer of ours takes it in
            first = "pooled.head.weight" if self.hidden is None else "pooled.hidden.weight"
            weights = {**weights, first: weights[first] * self.scale}
        if family.vector == "last":
            return PublishedHead(ending, {"score": "pooled.head"}, weights, config, has_bias=False, misfits=misfits)
        if family.vector == "gelu" and not misfits:
            names = ("classifier.dense", "classifier.out_proj")
            if ending == "ForMultipleChoice":
                names = ("sequence_summary.summary", "classifier")
            parts = pass_through_gelu(weights["pooled.head.weight"], weights["pooled.head.bias"])
            keys = ("pooled.first.weight", "pooled.first.bias", "pooled.last.weight", "pooled.last.bias")
            layers = dict(zip(names, ("pooled.first", "pooled.last"), strict=True))
            return PublishedHead(ending, layers, dict(zip(keys, parts, strict=True)), config)
        layers = {"classifier": "pooled.head"}
        if family.vector == "mlp":
            layers = {"pre_classifier": "pooled.hidden", **layers}
        return PublishedHead(ending, layers, weights, config, reads_pooler=True, misfits=misfits)

    def readout(self, model: Model, weights: Mapping[str, Tensor], config: Mapping[str, object]) -> Readout:
        """The head over pooled states as it is; `weights` are those of the task, where this part is named `pooled`."""
        layers = {"classifier": "pooled.head"}
        if self.hidden is not None:
            layers["hidden"] = "pooled.hidden"
        misfits = [] if self.reading != "both" else ["texts read in both orders"]
        if self.reading == "apart" and not self.framing.segments:
            misfits.append("texts read apart, by a model that does not mark the second")
        if self.pooling == "ends":
            misfits.append("task.pooling=ends")
        if self.pooling == "start" and model.pooler is not None:
            misfits.append("a pooler")
        return Readout(
            "ForSequenceClassification", layers, weights, config, self.pooling, self.scale, self.reading, tuple(misfits)
        )

    def _misfits(self, model: Model, family: EncoderFamily) -> list[str]:
        """What of this head a class of the family has no place for."""
        if family.vector is None:
            return [f"a head over one vector: that of its {family.system} has a layer that ours has not"]
        misfits = []
        head = "mlp" if family.vector == "mlp" else "linear"
        if self.settings.head != head or (self.hidden is not None and self.hidden.out_features != self.width):
            misfits.append(
                f"task.head={self.settings.head} (its {family.system} has the head that is task.head={head} here)"
            )
        position = "last" if family.vector == "last" else "start"
        if self.pooling != position:
            state = {"start": "first", "last": "last"}[position]
            misfits.append(f"task.pooling={self.pooling} (it reads the {state} state)")
        if self.reading != "joint":
            misfits.append(f"texts read {self.reading}")
        if family.vector == "gelu" and 2 * self.head.out_features > model.width:
            misfits.append(f"{self.head.out_features} outputs (its {family.system} has room for {model.width // 2})")
        if family.vector == "pooler" and model.pooler is None:
            misfits.append("a model without a pooler")
        return misfits
