"""The masked language model, with or without a sentence task (BERT, section 3.1; ALBERT, sections 3.1 and 4.1).

Rows of [CLS] A [SEP] B [SEP] come from `segments.py`, the choice and corruption of tokens from `masking.py`.
Masks are drawn anew in every step (BERT's data held ten fixed copies). Two terms, each a mean over the step,
added with equal weight:

    mlm        the true token at every chosen place, whatever stands there now
    sentence   next: does B follow A in the text (0) or come from elsewhere (1)?  (BERT)
               order: do A and B stand in their order (0) or are they swapped (1)?  (ALBERT)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError
from etude.nn.block import Activation
from etude.nn.initial import fresh_key, initialise
from etude.nn.losses import cross_entropy_sum, linear_cross_entropy, linear_scores
from etude.nn.states import States
from etude.objectives import masking, segments
from etude.objectives.base import IGNORE, Batch, Objective, Stat, Term, join
from etude.objectives.heads import MaskedHead, token_table
from etude.objectives.sizes import sequence_length, whole_rows
from etude.settings import Strict

ROW = 8  # sequences of full length a row: one in eight is cut short to fit


class Settings(Strict):
    length: int | None = Field(default=None, ge=8, description="tokens of a sequence; the model's context unless given")
    row_tokens: int | None = Field(default=None, ge=8, description="a multiple of length; 8 of them if None")

    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    mask_share: float = Field(default=0.8, ge=0, le=1, description="of the chosen tokens: become [MASK]")
    random_share: float = Field(default=0.1, ge=0, le=1, description="become a random token; the rest stays")
    max_predictions: int | None = Field(default=None, ge=1, description="a sequence; BERT: 20 at 128, 77 at 512")
    whole_word: bool = False
    ngram: int = Field(default=1, ge=1, description="the longest run that is masked together; ALBERT: 3")

    sentence: segments.Sentence = "none"
    lone: Literal["random", "unlabelled"] = Field(
        default="random", description="a lone sentence under order: ALBERT's code draws a B elsewhere, label 1"
    )
    short_rate: float = Field(default=0.1, ge=0, le=1, description="passes over a document with a shorter target")
    pair_rate: float = Field(default=0.0, ge=0, le=1, description="two segments without a sentence task; ELECTRA: .9")
    truncation: Literal["random", "end"] = Field(
        default="random", description="where a token too much is dropped; BERT: front or back, ELECTRA: the end"
    )
    markers: bool = Field(default=True, description="False: [CLS] and [SEP] are met only in fine-tuning")
    activation: Activation | None = Field(default=None, description="of the head; the model's unless given")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(
                f"mask_share={self.mask_share} and random_share={self.random_share} are together more than 1: "
                "lower one; what they leave stays unchanged"
            )
        if self.sentence != "none" and not self.markers:
            raise ValueError(
                f"sentence={self.sentence} is told from [CLS], and markers=false leaves it out: "
                "set markers=true, or sentence=none"
            )
        return self


@dataclass
class MaskedBatch(Batch):
    index: Tensor | None = None  # (M,) int64, where something is predicted; 0 in unused slots
    targets: Tensor | None = None  # (M,) int64, the true token, or IGNORE
    labels: Tensor | None = None  # (S,) int64, of the sentence task, or IGNORE


class Masked(Objective):
    def __init__(self, settings: Settings, model: Any, special: Any) -> None:
        super().__init__()
        _check(settings, model, special)
        self.settings, self.special, self.vocab = settings, special, model.vocab
        length = sequence_length(settings.length, model)
        self.making = segments.Rules(
            length=length,
            row_tokens=whole_rows(settings.row_tokens, length, ROW * length),
            sentence=settings.sentence,
            short_rate=settings.short_rate,
            pair_rate=settings.pair_rate,
            truncation=settings.truncation,
            lone=settings.lone,
            markers=(special.start, special.separator) if settings.markers else None,
        )
        self.choosing = masking.Rules(settings.mask_rate, settings.max_predictions, settings.whole_word, settings.ngram)
        self.slots = self.choosing.slots(self.making.row_tokens, length)  # of each row: shapes are static
        self.fixed = masking.table_of([special.pad, special.start, special.separator, special.mask], model.vocab)
        self.head = MaskedHead(model, settings.activation or model.settings.activation)
        self.sentence = None
        if settings.sentence != "none":
            self.sentence = nn.Linear(model.width, 2)
            sizes = model.settings
            initialise(self.sentence, key=fresh_key(), deviation=sizes.init_deviation, truncated=sizes.init_truncated)

    def rows(self, corpus: Any, seed: int) -> segments.SegmentRows:
        return segments.SegmentRows(corpus, seed, self.making, words=self.settings.whole_word)

    def batch(self, rows: Sequence[Any], chance: Chance) -> MaskedBatch:
        settings = self.settings
        fields = join(rows, rows[0].most, self.making.length)
        tokens, layout = fields["tokens"].numpy(), fields["layout"]
        words = np.concatenate([row.word_starts for row in rows]) if settings.whole_word else None
        places = masking.Places(chance, fields["rows"], [len(row.tokens) for row in rows])
        chosen = masking.choose(~self.fixed[tokens], layout.host, words, self.choosing, places)
        chosen = masking.within(chosen, places, self.slots)
        index, targets = masking.into_slots(tokens, chosen, places, self.slots)
        corrupted = masking.replace(
            tokens,
            chosen,
            places,
            mask=self.special.mask if settings.mask_share else 0,
            vocab=self.vocab,
            mask_share=settings.mask_share,
            random_share=settings.random_share,
        )
        labels = np.full(len(layout.host) - 1, IGNORE, np.int64)
        told = np.concatenate([row.labels for row in rows])
        labels[: len(told)] = told
        counts = {"mlm": len(chosen)}
        if self.sentence is not None:
            counts["sentence"] = int((told != IGNORE).sum())
        fields["tokens"] = torch.from_numpy(corrupted)
        return MaskedBatch(
            **fields,
            counts=counts,
            index=torch.from_numpy(index),
            targets=torch.from_numpy(targets),
            labels=torch.from_numpy(labels),
        )

    def loss(self, model: Any, batch: Any) -> dict[str, Term]:
        states = model(batch)
        hidden, table = self._hidden(model, states, batch)
        terms = {"mlm": Term(linear_cross_entropy(hidden, table, self.head.bias, batch.targets), batch.counts["mlm"])}
        if self.sentence is not None:
            total = cross_entropy_sum(self._sentence(model, states, batch), batch.labels)
            terms["sentence"] = Term(total, batch.counts["sentence"])
        return terms

    def metrics(self, model: Any, batch: Any) -> dict[str, Stat]:
        states = model(batch)
        hidden, table = self._hidden(model, states, batch)
        losses, likeliest = linear_scores(hidden, table, self.head.bias, batch.targets)
        count = batch.counts["mlm"]
        stats = {
            "mlm": Stat(losses.sum(), count, 1.0),
            "accuracy": Stat((likeliest == batch.targets).sum(), count),
        }
        if self.sentence is not None:
            logits, count = self._sentence(model, states, batch), batch.counts["sentence"]
            stats["sentence"] = Stat(cross_entropy_sum(logits, batch.labels).detach(), count, 1.0)
            stats["sentence_accuracy"] = Stat((logits.argmax(-1) == batch.labels).sum(), count)
        return stats

    def _hidden(self, model: Any, states: States, batch: Any) -> tuple[Tensor, Tensor]:
        """(M, E) and (V, E): their product, and a bias, are the logits of the slots."""
        return self.head(states.last.index_select(0, batch.index)), token_table(model, states)

    def _sentence(self, model: Any, states: States, batch: Any) -> Tensor:
        assert self.sentence is not None
        return self.sentence(model.pool(states.last, batch.layout))  # (S, 2)

    def flops(self, model: Any, batch: Any) -> int:
        forward = model.flops(batch.layout.lengths) + self.head.flops(model, batch.counts["mlm"])
        if self.sentence is not None:  # the pooler and the two-way layer, once a labelled sequence
            forward += 2 * batch.counts["sentence"] * model.width * (model.width + 2)
        return 3 * forward


def _check(settings: Settings, model: Any, special: Any) -> None:
    """What the model or the tokenizer lacks for these settings, said by name."""
    wanted = {"mask": settings.mask_share > 0, "start": settings.markers, "separator": settings.markers}
    missing = [name for name, needed in wanted.items() if needed and getattr(special, name) is None]
    if missing:
        raise UserError(
            f"objective.kind=masked: the tokenizer has no {' and no '.join(missing)} token. "
            "Take a tokenizer that has all of its special tokens, such as `wordpiece:8000` trained by `etude prepare`"
            + ("." if "mask" in missing else ", or set objective.markers=false.")
        )
    if settings.sentence != "none" and model.pooler is None:
        raise UserError(
            f"objective.sentence={settings.sentence} is read from the pooled [CLS]: set model.pooler=true, "
            "or objective.sentence=none."
        )
    if (settings.sentence != "none" or settings.pair_rate) and model.settings.segments == 1:
        raise UserError("two segments need two kinds of segment: set model.segments to 2 (as BERT) or 0 (none).")


def build(settings: Settings, model: Any, special: Any) -> Masked:
    return Masked(settings, model, special)
