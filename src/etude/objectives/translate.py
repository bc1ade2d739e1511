"""Translation: every token of a target from its source and the tokens before it.

The loss is cross-entropy with label smoothing (Vaswani et al. 2017, section 5.4; Szegedy et al. 2016): the target
distribution is (1 - e) on the right token and e spread evenly over the vocabulary. Of logits z it is

    logsumexp(z) - (1 - e) z_y - e mean(z) = cross-entropy + e (z_y - mean(z)),

and the mean over the vocabulary is one product with the mean of the table, so nothing of the size of the logits is
kept for it. Held-out loss and perplexity are without smoothing: the likelihood of the reference.

A source stands before its end token; a target is read behind a start token, and its end is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.seq2seq import Seq2Seq
from etude.nn.initialization import draw_key, fill_normal
from etude.nn.losses import linear_cross_entropy, linear_losses_and_argmax
from etude.nn.packed import HOST_VALUE, Layout, Packed, positions_from_bounds
from etude.nn.precision import upcast
from etude.nn.states import States
from etude.objectives.base import IGNORE, Batch, PretrainingObjective, Stat, Term
from etude.objectives.batch_view import BatchView, SequenceView, TokenView, spans, view_aligned
from etude.objectives.rows.pairs import GRAINS, PairRow, PairRows, row_size
from etude.objectives.rows.sizes import grain_of, next_power, sequence_length
from etude.settings import Strict
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials

RECTANGLE = (16, 4, 8)  # sequences, steps of targets and steps of sources of a rectangle are multiples of these


class Settings(Strict):
    length: int | None = Field(default=None, ge=2, description="tokens of a side at most; the model's context if None")
    row_tokens: int | None = Field(
        default=None, ge=1, description="tokens of a row, of both sides; 6 * length, at least 1024, if None"
    )
    bucketed: bool = Field(
        default=False, description="rows hold pairs of similar length, which suits recurrent decoders"
    )
    smoothing: float = Field(default=0.1, ge=0, lt=1, description="share of the labels spread over the vocabulary")
    tied: bool = Field(default=True, description="the output layer is the table of target vectors")
    bias: bool = Field(default=False, description="one bias for each token on the logits")
    start: Literal["start", "end", "pad"] | None = Field(
        default=None, description="token before a target; start if None, or end where the tokenizer has no start"
    )


@dataclass(kw_only=True)
class TranslationBatch(Batch):
    """Its own tokens are those of the targets, each behind a start token."""

    source: Packed
    targets: Tensor  # (N,) int64, the token after each
    padding: int = field(default=0, metadata=HOST_VALUE)  # no computation depends on it: its targets are ignored
    # source tokens, target tokens and pairs of the static shape of such batches; None where they differ by design
    room: tuple[int, int, int] | None = field(default=None, metadata=HOST_VALUE)
    rectangular: bool = False  # whether a static shape has room for the longest of all sequences

    @property
    def size(self) -> int:
        return int(self.lengths.sum() + self.source_lengths.sum())

    @property
    def source_lengths(self) -> np.ndarray:
        """The lengths of its sources without padding, on the host."""
        return np.diff(self.source.layout.host[: len(self.source.layout.host) - self.padding])

    def pad(self, sizes: Sequence[int], longest: int) -> Self:
        """Fill both sides up to the static shape with pairs of padding, and with empty pairs behind them.

        A batch that exceeds the shape of its kind, or has none, takes the next of a few sizes. The longest length stays
        what it is: it bounds both sides.
        """
        if self.rectangular:
            return self._pad_to_rectangles()
        longest, source, target = self.layout.longest, self.source.layout, self.layout
        count = len(self.lengths)
        room = self.room or (0, 0, 0)
        totals = [_fit(layout.total, size) for layout, size in ((source, room[0]), (target, room[1]))]
        extras = [total - layout.total for total, layout in zip(totals, (source, target), strict=True)]
        filled = max(-(-extra // longest) for extra in extras)  # pairs of padding that have tokens
        if extras[0] < filled:
            totals[0] += GRAINS[0]
            extras[0] += GRAINS[0]
        pairs = room[2] if room[2] >= count + filled else _round_up(count + filled, max(8, next_power(count) // 4))
        empty = [0] * (pairs - count - filled)
        padded = super().pad(_spread(extras[1], filled) + empty, longest)
        sizes = _spread(extras[0], filled) + empty
        bounds = np.concatenate([source.host, source.total + np.cumsum(sizes)])
        positions = torch.cat([self.source.positions, *(torch.arange(size) for size in sizes)])
        layout = replace(Layout.from_bounds(bounds, longest), equal=False)
        sources = Packed(F.pad(self.source.tokens, (0, extras[0])), positions, None, layout)
        return replace(padded, source=sources, targets=F.pad(self.targets, (0, extras[1]), value=IGNORE))

    def _pad_to_rectangles(self) -> Self:
        """Fill both sides up to sequences of one length each, for a model that goes token by token."""
        sequences = _round_up(len(self.lengths), RECTANGLE[0])
        target = _make_rectangle(self, sequences, _round_up(int(self.lengths.max()), RECTANGLE[1]))
        source = _make_rectangle(self.source, sequences, _round_up(int(self.source_lengths.max()), RECTANGLE[2]))
        return replace(
            self,
            tokens=target.tokens,
            positions=target.positions,
            layout=target.layout,
            source=source,
            targets=F.pad(self.targets, (0, len(target.tokens) - len(self.targets)), value=IGNORE),
            padding=sequences - len(self.lengths),
        )


class Translate(PretrainingObjective[Seq2Seq, PairRow, TranslationBatch]):
    pads_batches = True
    length: int
    row_tokens: int
    target_limit: int | None = None  # tokens that a target may have when it is written, its end among them

    def __init__(self, settings: Settings, model: Seq2Seq, special: Specials) -> None:
        super().__init__()
        if special.end is None:
            raise UserError("Translation needs an end token, and this tokenizer has none.")
        self.end = int(special.end)
        self.pad = special.pad  # never a word of a translation
        self.start_token = find_start(settings.start, special)
        self.length = sequence_length(settings.length, model.context)
        self.row_tokens = row_size(settings.row_tokens, self.length)
        self.smoothing, self.bucketed = settings.smoothing, settings.bucketed
        self.rectangular = model.is_stepwise
        if settings.tied and model.target_table.shape[1] != model.target_width:
            raise UserError(
                f"objective.tied=true: vectors of {model.target_table.shape[1]} numbers are no output layer over "
                f"states of {model.target_width}: set objective.tied=false."
            )
        shape = (model.target_vocab, model.target_width)
        self.output = None if settings.tied else nn.Parameter(torch.empty(shape))
        if self.output is not None:
            fill_normal(self.output, draw_key(), self.output.shape[1] ** -0.5, truncated=False)
        self.bias = nn.Parameter(torch.zeros(model.target_vocab)) if settings.bias else None

    def rows(self, corpus: Corpus, seed: int) -> PairRows:
        return PairRows(corpus, seed, self.row_tokens, self.length, self.end, self.bucketed)

    def view_batch(self, model: Seq2Seq, batch: TranslationBatch) -> BatchView:
        """A source, and under it its target, which begins behind a start token."""
        ids, padding = batch.source.tokens.tolist(), batch.padding
        targets = view_aligned(batch, [batch.targets], name="target", padding=padding)
        sources = [
            SequenceView([TokenView(token) for token in ids[start:stop]], name="source")
            for start, stop in spans(batch.source, padding)
        ]
        pairs = [part for pair in zip(sources, targets, strict=True) for part in pair]
        return BatchView(("the next token of the target, from source and target so far", "번역문의 다음 토큰"), pairs)

    def find_problems(self, corpus: Corpus) -> list[str]:
        rows = self.rows(corpus, seed=0)
        if not rows.left_out:
            return []
        share = rows.left_out / (rows.left_out + len(rows.pairs))
        return [
            f"{rows.left_out:,} pairs ({share:.1%}) have a side of more than {self.length} tokens and are left out: "
            "raise objective.length (and model.context), or split them."
        ]

    def batch(self, rows: Sequence[PairRow], chance: Chance) -> TranslationBatch:
        bounds = np.concatenate(
            [[0], *(row.bounds[1:] + start for row, start in zip(rows, _starts(rows), strict=True))]
        )
        tokens = np.concatenate([row.tokens for row in rows]).astype(np.int64)
        side = np.repeat(np.arange(len(bounds) - 1) % 2, np.diff(bounds))  # 0 in a source, 1 in a target
        source, targets = tokens[side == 0], tokens[side == 1]
        source_bounds, target_bounds = (np.append(0, np.cumsum(np.diff(bounds)[place::2])) for place in (0, 1))
        inputs = np.roll(targets, 1)
        inputs[target_bounds[:-1]] = self.start_token
        target = _pack(inputs, target_bounds, self.length)
        return TranslationBatch(
            tokens=target.tokens,
            positions=target.positions,
            segments=None,
            layout=target.layout,
            source=_pack(source, source_bounds, self.length),
            targets=torch.from_numpy(targets),
            rows=np.array([row.index for row in rows]),
            slots=np.array([row.slot for row in rows]),
            counts={"loss": len(targets)},
            room=None if rows[0].sizes is None else rows[0].sizes.bound(len(rows)),
            rectangular=self.rectangular,
        )

    def output_table(self, model: Seq2Seq) -> Tensor:
        """(V, D) the output layer."""
        return model.target_table if self.output is None else self.output

    def loss(self, model: Seq2Seq, batch: TranslationBatch) -> dict[str, Term]:
        last, table = model(batch, source=batch.source).last, self.output_table(model)
        total = linear_cross_entropy(last, table, self.bias, batch.targets)
        if self.smoothing:
            total = total + self.smoothing * self._sum_logit_gaps(upcast(last), table, batch.targets)
        return {"loss": Term(total, batch.counts["loss"])}

    def _sum_logit_gaps(self, last: Tensor, table: Tensor, targets: Tensor) -> Tensor:
        """The sum over all tokens of z_y - mean(z), for logits z."""
        is_used = (targets != IGNORE).to(last.dtype)
        words = targets.clamp(min=0)
        gap = (last * (F.embedding(words, table) - table.mean(0)) * is_used[:, None]).sum()
        return gap if self.bias is None else gap + ((self.bias[words] - self.bias.mean()) * is_used).sum()

    def metrics(self, model: Seq2Seq, batch: TranslationBatch) -> dict[str, Stat]:
        last = model(batch, source=batch.source).last
        losses, likeliest = linear_losses_and_argmax(last, self.output_table(model), self.bias, batch.targets)
        count = batch.counts["loss"]
        return {"loss": Stat(losses.sum(), count, 1.0), "accuracy": Stat((likeliest == batch.targets).sum(), count)}

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        """A source: the text and its end."""
        return np.append(ids[: None if context is None else context - 1], self.end).astype(ids.dtype)

    def decoder_logits(self, model: Seq2Seq, last: Tensor) -> Tensor:
        """(S, D) states of the decoder -> (S, V) logits of the token after each."""
        return F.linear(last, self.output_table(model), self.bias)

    def logits(self, model: Seq2Seq, states: States) -> Tensor:
        raise UserError("A translation model has logits of targets given a source, not of a text alone: use translate.")

    def flops(self, model: Seq2Seq, batch: TranslationBatch) -> int:
        head = 2 * batch.counts["loss"] * model.target_width * model.target_vocab
        return 3 * (model.pair_flops(batch.source_lengths, batch.lengths) + head)


def find_start(role: str | None, special: Specials) -> int:
    """The token before a target; without a start token it is the end, as in fairseq, and in Marian it is padding."""
    token = {"start": special.start, "end": special.end, "pad": special.pad}[role or "start"]
    if token is None and role is None:
        token = special.end
    if token is None:
        raise UserError(f"objective.start={role}: this tokenizer has no such token.")
    return int(token)


def _starts(rows: Sequence[PairRow]) -> np.ndarray:
    """Where each row begins among the tokens of all."""
    sizes = np.array([len(row.tokens) for row in rows])
    return np.cumsum(sizes) - sizes


def _make_rectangle(packed: Packed, sequences: int, steps: int) -> Packed:
    """With empty sequences behind its own, and room for so many steps of each."""
    bounds = np.pad(packed.layout.host, (0, sequences + 1 - len(packed.layout.host)), mode="edge")
    extra = sequences * steps - len(packed.tokens)
    layout = replace(Layout.from_bounds(bounds, steps), equal=False, rectangular=True)
    return Packed(F.pad(packed.tokens, (0, extra)), F.pad(packed.positions, (0, extra)), None, layout)


def _round_up(value: int, grain: int) -> int:
    return -(-value // grain) * grain


def _fit(tokens: int, room: int) -> int:
    """The size of a side with room for some padding: that of all such batches, or the next of a few."""
    return room if tokens < room else _round_up(tokens + 1, grain_of(tokens))


def _spread(total: int, parts: int) -> list[int]:
    """Divide a number as evenly as it goes."""
    base, extra = divmod(total, parts)
    return [base + (number < extra) for number in range(parts)]


def _pack(tokens: np.ndarray, bounds: np.ndarray, longest: int) -> Packed:
    positions = torch.from_numpy(positions_from_bounds(bounds))
    return Packed(torch.from_numpy(tokens), positions, None, Layout.from_bounds(bounds, longest))


def build(settings: Settings, model: Model, special: Specials) -> Translate:
    message = f"objective translate trains an encoder-decoder, not {model.kind}: model.kind: encoder_decoder."
    return Translate(settings, require(model, Seq2Seq, message), special)  # type: ignore[type-abstract]
