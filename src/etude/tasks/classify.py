"""Classification of single texts, over any model: its states, pooled to one vector, and a linear layer.

How a text becomes a sequence and a vector follows the model's paper:

    both directions   [CLS] text [SEP], the first state, through the pooler where there is one (BERT, section 3.2)
    causal            start text end, the last state (GPT-1, section 3.3: start and extract)
    recurrent         a marker on each side as in pre-training, the mean of all states
    static            the words alone, their mean

`pooling` chooses another vector. Rows are examples, each as long as it is; a text that is longer than the model
can see is cut at its end, counted and told. The official score is accuracy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError
from etude.models.recurrent import Recurrent
from etude.models.static import Static
from etude.nn.packed import Layout, Packed, pack
from etude.nn.precision import wide
from etude.objectives.base import IGNORE, Batch, Objective, Row, Stat, Term, join
from etude.settings import Strict
from etude.tasks.metrics import Confusion
from etude.tasks.reading import Examples
from etude.text.tokenizer import Specials, Tokenizer

Pooling = Literal["start", "mean", "last", "max"]
TOKENS = 16_384  # of one forward pass in prediction; bounds memory, never changes a result

log = logging.getLogger("etude")


class Settings(Strict):
    pooling: Pooling | None = Field(default=None, description="one vector a text; what suits the model unless given")
    length: int | None = Field(
        default=None, ge=3, description="tokens of a sequence at most; the model's context if None"
    )
    dropout: float = Field(default=0.1, ge=0, lt=1, description="on the pooled vector")
    deviation: float = Field(default=0.02, gt=0, description="of the first values of the linear layer")


@dataclass
class ExampleRow(Row):
    label: int = IGNORE


@dataclass
class ExampleRows:
    """Row i is example i; numbers at and beyond the last are later epochs."""

    sequences: list[np.ndarray]
    labels: np.ndarray  # (examples,)
    cut: int  # how many were longer than the model can see
    shuffle: bool = True
    row_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> ExampleRow:
        tokens = self.sequences[index % len(self)]
        bounds = np.array([0, len(tokens)], dtype=np.int32)
        return ExampleRow(index, tokens, bounds, label=int(self.labels[index % len(self)]))


@dataclass
class ExampleBatch(Batch):
    labels: Tensor | None = None  # (S,) int64


class Classify(Objective):
    score = "accuracy"

    def __init__(self, settings: Settings, model: Any, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
        super().__init__()
        if len(labels) < 2:
            raise UserError(f"A classifier tells labels apart, and there is only {list(labels)}. Give two or more.")
        self.settings, self.tokenizer, self.labels = settings, tokenizer, list(labels)
        self.before, self.after, usual = framing(model, tokenizer.special)
        self.pooling: Pooling = settings.pooling or usual
        limits = [limit for limit in (settings.length, model.context) if limit is not None]
        self.length = min(limits) if limits else None
        if self.length is not None and self.length <= len(self.before) + len(self.after):
            raise UserError(f"Sequences of {self.length} tokens have no room for text beside their markers.")
        self.head = nn.Linear(model.width, len(self.labels))
        nn.init.normal_(self.head.weight, std=settings.deviation)
        nn.init.zeros_(self.head.bias)

    # --- texts to sequences -------------------------------------------------------------------------

    def sequences(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int]:
        """Framed ids of each text, and how many had to be cut."""
        found, cut = [], 0
        room = None if self.length is None else self.length - len(self.before) - len(self.after)
        for start in range(0, len(texts), 1000):  # encodings are large: not all at once
            for encoding in self.tokenizer.encode_batch(texts[start : start + 1000]):
                ids = encoding.ids[:room]
                cut += len(ids) < len(encoding.ids)
                found.append(np.concatenate([self.before, ids, self.after]).astype(np.int32))
        return found, cut

    def rows(self, corpus: Examples, seed: int) -> ExampleRows:
        labels = corpus.numbers(self.labels)
        sequences, cut = self.sequences(corpus.texts)
        for number, sequence in enumerate(sequences):
            if not len(sequence):
                raise UserError(f"{corpus.place(number)}: the tokenizer leaves nothing of this text. Remove the line.")
        self._tell(cut, len(sequences), corpus.source)
        return ExampleRows(sequences, labels, cut)

    def _tell(self, cut: int, total: int, where: str) -> None:
        if cut:
            log.warning("%s: %d of %d texts are longer than %d tokens and were cut.", where, cut, total, self.length)

    # --- training -----------------------------------------------------------------------------------

    def batch(self, rows: Sequence[Row], chance: Chance) -> ExampleBatch:
        longest = self.length or max(len(row.tokens) for row in rows)
        labels = [row.label for row in rows if isinstance(row, ExampleRow)]
        return ExampleBatch(**join(rows, 1, longest), counts={"loss": len(labels)}, labels=torch.tensor(labels))

    def scores(self, model: Any, packed: Packed) -> Tensor:
        """(S, labels) before the softmax."""
        pooled = self.vectors(model, packed)
        return wide(self.head(F.dropout(pooled, self.settings.dropout, self.training)))

    def vectors(self, model: Any, packed: Packed) -> Tensor:
        """(S, D) one vector a sequence."""
        last = model(packed).last
        if self.pooling == "start" and getattr(model, "pooler", None) is not None:
            return model.pool(last, packed.layout)
        return pool(last, packed.layout, self.pooling)

    def loss(self, model: nn.Module, batch: ExampleBatch) -> dict[str, Term]:
        assert batch.labels is not None
        total = F.cross_entropy(self.scores(model, batch), batch.labels, reduction="sum")
        return {"loss": Term(total, batch.counts["loss"])}

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: ExampleBatch) -> dict[str, Stat]:
        assert batch.labels is not None
        scores, count = self.scores(model, batch), batch.counts["loss"]
        right = (scores.argmax(-1) == batch.labels).sum()
        return {
            "loss": Stat(F.cross_entropy(scores, batch.labels, reduction="sum"), count, weight=1.0),
            "accuracy": Stat(right, count),
        }

    def flops(self, model: Any, batch: ExampleBatch) -> int:
        lengths = batch.layout.lengths
        forward = model.flops(lengths) + 2 * len(lengths) * self.head.in_features * self.head.out_features
        if self.pooling == "start" and getattr(model, "pooler", None) is not None:
            forward += 2 * len(lengths) * model.width**2
        return 3 * int(forward)

    # --- use ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, model: Any, texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
        """The likeliest label of each text, and the probability of every label (texts, labels), in their order."""
        sequences, cut = self.sequences(texts)
        for number, (text, sequence) in enumerate(zip(texts, sequences, strict=True)):
            if not text.strip() or not len(sequence):
                raise UserError(f"Text {number + 1} of {len(texts)} is empty: there is nothing to classify.")
        self._tell(cut, len(texts), "prediction")
        device = self.head.weight.device
        training = model.training, self.training
        model.eval()
        self.eval()
        found = np.zeros((len(texts), len(self.labels)), dtype=np.float32)
        try:
            for group in by_length(sequences):
                packed = pack([sequences[number] for number in group], self.length)
                found[group] = self.scores(model, packed.to(device)).softmax(-1).float().cpu().numpy()
        finally:
            model.train(training[0])
            self.train(training[1])
        return [self.labels[number] for number in found.argmax(-1)], found

    def evaluate(self, model: Any, examples: Examples) -> dict[str, float]:
        """The official score, and others that the same counts give."""
        gold = examples.numbers(self.labels)
        _, scores = self.predict(model, examples.texts)
        counts = Confusion(len(self.labels))
        counts.add(gold, scores.argmax(-1))
        return {"accuracy": counts.accuracy, "macro_f1": counts.macro_f1, "mcc": counts.mcc}


def framing(model: Any, special: Specials) -> tuple[list[int], list[int], Pooling]:
    """What stands before and after a text, and which vector speaks for it, as the model's family has it."""
    if isinstance(model, Static):
        return [], [], "mean"
    if isinstance(model, Recurrent):
        marker = special.end if special.end is not None else special.separator
        return ([], [], "mean") if marker is None else ([marker], [marker], "mean")
    start = [] if special.start is None else [special.start]
    if model.settings.direction == "causal":
        if special.end is None:
            raise UserError("A causal model is read out at an end token, and this tokenizer has none.")
        return start, [special.end], "last"  # GPT-2's tokenizer has no start token: the text itself starts
    if special.start is None or special.separator is None:
        raise UserError("An encoder reads [CLS] text [SEP], and this tokenizer lacks a start token or a separator.")
    return start, [special.separator], "start"


def pool(last: Tensor, layout: Layout, how: Pooling) -> Tensor:
    """(N, D) -> (S, D); no sequence may be empty. Each is reduced alone, so its company changes nothing."""
    bounds = layout.bounds.long()
    if how == "start":
        return last[bounds[:-1]]
    if how == "last":
        return last[bounds[1:] - 1]
    return torch.segment_reduce(wide(last), how, lengths=bounds.diff(), unsafe=True)  # unsafe: no check that would wait


def by_length(sequences: Sequence[np.ndarray]) -> Iterator[list[int]]:
    """Groups of sequence numbers of like lengths, each of at most TOKENS tokens (at least one sequence)."""
    group: list[int] = []
    tokens = 0
    for number in sorted(range(len(sequences)), key=lambda number: len(sequences[number])):
        if group and tokens + len(sequences[number]) > TOKENS:
            yield group
            group, tokens = [], 0
        group.append(number)
        tokens += len(sequences[number])
    if group:
        yield group


def build(settings: Settings, model: nn.Module, tokenizer: Tokenizer, labels: Sequence[str]) -> Classify:
    return Classify(settings, model, tokenizer, labels)
