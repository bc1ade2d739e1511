"""What the heads of a Transformer look at in a text, and what each makes a habit of.

Weights are those of the softmax, before dropout, by the slow path that holds them all. A head's habits are means over
the tokens that look (Clark et al. 2019, "What does BERT look at?", section 3):

    entropy    of its weights, in nats: 0 where it looks at one token alone
    distance   in tokens, weighed
    markers    the share that goes to markers such as [CLS] and [SEP]
    itself, before, after    the shares of the token itself, of the one before it, of the one behind it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.nn.packed import pack

HABITS = ("entropy", "distance", "markers", "itself", "before", "after")
SHARES = HABITS[2:]


@dataclass(frozen=True)
class Attention:
    tokens: list[str]  # as they stand in the text; markers by their names
    markers: np.ndarray  # (L,) bool
    weights: np.ndarray  # (layers, heads, L, L) float32: who looks, at whom
    cut: bool  # whether the text was longer than the model sees

    def habits(self) -> dict[str, np.ndarray]:
        """(layers, heads) each."""
        weights = self.weights.astype(np.float64)
        place = np.arange(len(self.tokens))
        apart = np.abs(place[:, None] - place)
        logarithms = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
        beside = {"itself": 0, "before": -1, "after": 1}
        return {
            "entropy": -(weights * logarithms).sum(-1).mean(-1),
            "distance": (weights * apart).sum(-1).mean(-1),
            "markers": weights[..., self.markers].sum(-1).mean(-1),
            **{
                name: np.trace(weights, offset=offset, axis1=2, axis2=3) / len(self.tokens)
                for name, offset in beside.items()
            },
        }

    def most(self, layer: int, head: int, top: int = 3) -> list[list[tuple[str, float]]]:
        """Of each token, what this head looks at most, and how much."""
        rows = self.weights[self.number("layer", layer, 0), self.number("head", head, 1)]
        order = np.argsort(-rows, axis=-1, kind="stable")[:, :top]
        return [[(self.tokens[at], float(row[at])) for at in places] for row, places in zip(rows, order, strict=True)]

    def number(self, name: str, given: int, axis: int) -> int:
        """Of a layer (axis 0) or a head (axis 1), if there is one of this number."""
        count = self.weights.shape[axis]
        if not 0 <= given < count:
            raise UserError(f"{name} {given}: this model has {count} of them, from 0 to {count - 1}.")
        return given


def habit_of(habits: dict[str, np.ndarray], layer: int, head: int) -> str | None:
    """The share that is more than half of all, where there is one: what a head mostly does."""
    name = max(SHARES, key=lambda share: habits[share][layer, head])
    return name if habits[name][layer, head] > 0.5 else None


def table(attention: Attention, layer: int | None = None) -> str:
    """The habits of all heads, or of those of a layer, a line each."""
    habits = attention.habits()
    layers = range(attention.weights.shape[0]) if layer is None else [attention.number("layer", layer, 0)]
    lines = [f"{'layer':>5} {'head':>4} " + " ".join(f"{name:>8}" for name in HABITS) + "  mostly"]
    for number in layers:
        for head in range(attention.weights.shape[1]):
            values = (
                f"{habits[name][number, head]:8.1%}" if name in SHARES else f"{habits[name][number, head]:8.2f}"
                for name in HABITS
            )
            lines.append(f"{number:5} {head:4} {' '.join(values)}  {habit_of(habits, number, head) or ''}".rstrip())
    return "\n".join(lines)


def describe_head(attention: Attention, layer: int, head: int, top: int) -> str:
    """What one head looks at, a line a token."""
    width = max(len(token) for token in attention.tokens)
    return "\n".join(
        f"{token:>{width}}  " + "  ".join(f"{key} {share:.0%}" for key, share in keys)
        for token, keys in zip(attention.tokens, attention.most(layer, head, top), strict=True)
    )


@torch.no_grad()
def compute_attention(model: LoadedModel, text: str, second: str | None = None) -> Attention:
    """The attention weights of one text as in pre-training, or of two as a pair."""
    if not model.model.has_attention_weights:
        raise UserError(
            "This model has no attention heads to look at: take a Transformer (BERT, GPT, ALBERT, ELECTRA)."
        )
    tokenizer = model.tokenizer
    texts = [tokenizer.normalise(part) for part in (text, second) if part is not None]
    encodings = tokenizer.encode_batch(texts)
    if any(not len(encoding) for encoding in encodings):
        raise UserError("The tokenizer leaves nothing of this text: write another.")
    ids = [encoding.ids for encoding in encodings]
    framed = _frame_text(model, ids[0]) if second is None else _frame_pair(model, ids[0], ids[1])
    packed = pack([framed.tokens])
    if framed.segments is not None:
        packed.segments = torch.from_numpy(framed.segments).long()
    layers = model.model.attention_weights(packed.to(model.device))
    words = [tokenizer.token(int(token)) for token in framed.tokens]
    markers = np.ones(len(words), bool)
    for part, encoding, start, length in zip(texts, encodings, framed.starts, framed.lengths, strict=True):
        markers[start : start + length] = False
        for place, (begin, end) in enumerate(encoding.offsets[:length].tolist(), start):
            words[place] = part[begin:end].strip() or words[place]
    weights = torch.stack([layer[0] for layer in layers]).float().cpu().numpy()
    return Attention(words, markers, weights, sum(framed.lengths) < sum(map(len, ids)))


class _Framed(NamedTuple):
    tokens: np.ndarray  # (L,)
    segments: np.ndarray | None  # (L,)
    starts: list[int]  # where each text begins
    lengths: list[int]  # tokens of each text in the sequence


def _frame_text(model: LoadedModel, ids: np.ndarray) -> _Framed:
    """Between the markers of pre-training."""
    tokens, single = model.frame(ids), model.frame(ids[:1])
    start = int(np.flatnonzero(single == ids[0])[0])
    behind = len(single) - start - 1  # markers at the end
    return _Framed(tokens, None, [start], [min(len(ids), len(tokens) - start - behind)])


def _frame_pair(model: LoadedModel, first: np.ndarray, second: np.ndarray) -> _Framed:
    """As a task reads a pair (models/framing.py)."""
    framing = model.model.frame(model.tokenizer.special)
    framed = framing.join([first, second])
    lengths = framing.fit([len(first), len(second)])
    start = len(framing.before)
    return _Framed(framed.tokens, framed.segments, [start, start + lengths[0] + len(framing.between)], lengths)
