"""Masked rows of text: what BERT's objective and ELECTRA's generator both read.

Rows of [CLS] A [SEP] B [SEP] come from `segments.py`, the choice and corruption of tokens from `masking.py`; here
the two are joined under one group of settings. Masks are drawn anew in every step, in a fixed number of slots a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models.transformer import Transformer
from etude.objectives.base import IGNORE, Batch, join
from etude.objectives.parts import masking
from etude.objectives.rows import segments
from etude.objectives.rows.sizes import sequence_length, whole_rows
from etude.settings import Strict
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials

ROW = 8  # sequences of full length a row: one in eight is cut short to fit
GRAIN = 32  # compact slots are a multiple of this: few shapes, for oneDNN writes a program for every new one


class Masking(Strict):
    """The settings that every masked objective has; the defaults are BERT's."""

    length: int | None = Field(default=None, ge=8, description="tokens of a sequence; the model's context unless given")
    row_tokens: int | None = Field(default=None, ge=8, description="a multiple of length; 8 of them if None")

    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    mask_share: float = Field(default=0.8, ge=0, le=1, description="share of the chosen tokens that become [MASK]")
    random_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of the chosen tokens that become a random token; the others stay as they are",
    )
    max_predictions: int | None = Field(
        default=None, ge=1, description="most predictions in a sequence; BERT: 20 at 128 tokens, 77 at 512"
    )
    whole_word: bool = False
    ngram: int = Field(default=1, ge=1, description="the longest run that is masked together; ALBERT: 3")

    short_rate: float = Field(
        default=0.1, ge=0, le=1, description="share of passes over a document whose sequences are made shorter"
    )
    pair_rate: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of sequences with two segments where there is no sentence task; ELECTRA: 0.9",
    )
    truncation: Literal["random", "end"] = Field(
        default="random",
        description="where tokens beyond the length are dropped; BERT: front or back, ELECTRA: the end",
    )
    markers: bool = Field(default=True, description="False: [CLS] and [SEP] are met only in fine-tuning")

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(
                f"mask_share={self.mask_share} and random_share={self.random_share} are together more than 1: "
                "lower one; what they leave stays unchanged"
            )
        return self


@dataclass(kw_only=True)
class SlotBatch(Batch):
    """`tokens` are corrupted; what stood there is the target of a slot."""

    index: Tensor  # (M,) int64, where something is predicted; 0 in unused slots
    targets: Tensor  # (M,) int64, the true token, or IGNORE

    slotted: ClassVar[tuple[str, ...]] = ("index", "targets")  # the fields that have one entry a slot

    def compact(self) -> Self:
        """With fewer unused slots: one in eight is there so that no row runs out of them."""
        used = self.targets != IGNORE
        size = max(1, -(-int(used.sum()) // GRAIN)) * GRAIN
        if size >= len(used):
            return self
        order = torch.argsort(~used, stable=True)[:size]  # those in use, as they come, then others
        return replace(self, **{name: getattr(self, name)[order] for name in self.slotted})


class Corruption:
    """From rows of a corpus to the fields of a SlotBatch."""

    def __init__(
        self,
        settings: Masking,
        model: Transformer,
        special: Specials,
        *,
        kind: str,
        sentence: segments.Sentence = "none",
        lone: Literal["random", "unlabelled"] = "random",
    ) -> None:
        _check(settings, special, kind)
        if (sentence != "none" or settings.pair_rate) and model.settings.segments == 1:
            raise UserError("two segments need two kinds of segment: set model.segments to 2 (as BERT) or 0 (none).")
        self.settings, self.special, self.vocab = settings, special, model.vocab
        length = sequence_length(settings.length, model.context)
        row_tokens = whole_rows(settings.row_tokens, length, ROW * length)
        self.row_rules = segments.Rules(
            length=length,
            row_tokens=row_tokens,
            places=row_tokens // length,
            sentence=sentence,
            short_rate=settings.short_rate,
            pair_rate=settings.pair_rate,
            truncation=settings.truncation,
            lone=lone,
            markers=_markers(special) if settings.markers else None,
        )
        self.mask_rules = masking.Rules(
            settings.mask_rate, settings.max_predictions, settings.whole_word, settings.ngram
        )
        self.slots = self.mask_rules.slots(self.row_rules.row_tokens, length)  # of each row: shapes are static
        self.fixed = masking.table_of([special.pad, special.start, special.separator, special.mask], model.vocab)

    def rows(self, corpus: Corpus, seed: int) -> segments.SegmentRows:
        return segments.SegmentRows(corpus, seed, self.row_rules, words=self.settings.whole_word)

    def fields(self, rows: Sequence[segments.SegmentRow], chance: Chance) -> tuple[dict[str, Any], masking.Places, int]:
        """The fields of a SlotBatch but its counts; the places of its tokens, for further draws; the slots in use."""
        settings = self.settings
        fields = join(rows, rows[0].most, self.row_rules.length)
        tokens, bounds = fields["tokens"].numpy(), fields["layout"].host
        words = np.concatenate([row.word_starts for row in rows]) if settings.whole_word else None
        places = masking.Places(chance, fields["rows"], [len(row.tokens) for row in rows])
        chosen = masking.choose(~self.fixed[tokens], bounds, words, self.mask_rules, places)
        chosen = masking.within(chosen, places, self.slots)
        index, targets = masking.into_slots(tokens, chosen, places, self.slots)
        corrupted = masking.replace(
            tokens,
            chosen,
            places,
            mask=self.special.mask or 0,  # read only where mask_share is above 0, and _check has seen it
            vocab=self.vocab,
            mask_share=settings.mask_share,
            random_share=settings.random_share,
        )
        slots = {"index": torch.from_numpy(index), "targets": torch.from_numpy(targets)}
        return {**fields, **slots, "tokens": torch.from_numpy(corrupted)}, places, len(chosen)

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        """One text as a sequence of its own, cut to the context: [CLS] ids [SEP]."""
        if self.row_rules.markers is None:
            return ids[:context]
        room = None if context is None else max(0, context - 2)
        start, separator = self.row_rules.markers
        return np.concatenate([[start], ids[:room], [separator]]).astype(ids.dtype)


def _markers(special: Specials) -> tuple[int, int]:
    """[CLS] and [SEP]."""
    assert special.start is not None and special.separator is not None, "_check comes first"
    return special.start, special.separator


def _check(settings: Masking, special: Specials, kind: str) -> None:
    """Raise UserError with the special tokens that these settings need and the tokenizer lacks."""
    required = {"mask": settings.mask_share > 0, "start": settings.markers, "separator": settings.markers}
    missing = [name for name, needed in required.items() if needed and getattr(special, name) is None]
    if missing:
        raise UserError(
            f"objective.kind={kind}: the tokenizer has no {' and no '.join(missing)} token. "
            "Take a tokenizer that has all of its special tokens, such as `wordpiece:8000` trained by `etude prepare`"
            + ("." if "mask" in missing else ", or set objective.markers=false.")
        )
