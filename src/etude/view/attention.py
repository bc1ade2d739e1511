"""Attention weights of a text, and statistics of each head.

Weights are those of the softmax, before dropout, by the slow path that holds them all. A head's habits are means over
the queries (Clark et al. 2019, "What does BERT look at?", section 3):

    entropy    of its weights, in nats: 0 where all weight is on one token
    distance   in tokens, weighted
    markers    the weight on markers such as [CLS] and [SEP]
    itself, before, after    the weights on the token itself, the previous and the next one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from rich.cells import cell_len

from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.nn.packed import pack
from etude.notebook import render_card, render_map, render_note, render_table

HABITS = ("entropy", "distance", "markers", "itself", "before", "after")
SHARES = HABITS[2:]
NOTEBOOK_ROWS = 24  # tokens of one head that a notebook shows


@dataclass(frozen=True)
class Attention:
    """The attention weights of all heads over one text or pair."""

    tokens: list[str]  # as they stand in the text; markers by their names
    markers: np.ndarray  # (L,) bool
    weights: np.ndarray  # (layers, heads, L, L) float32: queries in rows, keys in columns
    cut: bool  # whether the text was longer than the model sees
    keys: list[str] | None = None  # of an alignment: the tokens of the source; else tokens look at each other
    key_markers: np.ndarray | None = None  # (columns,) bool, of an alignment

    @property
    def columns(self) -> list[str]:
        """The tokens that are looked at."""
        return self.tokens if self.keys is None else self.keys

    def habits(self) -> dict[str, np.ndarray]:
        """Return the habits of all heads by name, (layers, heads) each; of an alignment entropy and markers alone."""
        weights = self.weights.astype(np.float64)
        logarithms = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
        beside = {"itself": 0, "before": -1, "after": 1}
        entropy = -(weights * logarithms).sum(-1).mean(-1)
        if self.key_markers is not None:
            return {"entropy": entropy, "markers": weights[..., self.key_markers].sum(-1).mean(-1)}
        place = np.arange(len(self.tokens))
        distance = np.abs(place[:, None] - place)
        return {
            "entropy": entropy,
            "distance": (weights * distance).sum(-1).mean(-1),
            "markers": weights[..., self.markers].sum(-1).mean(-1),
            **{
                name: np.trace(weights, offset=offset, axis1=2, axis2=3) / len(self.tokens)
                for name, offset in beside.items()
            },
        }

    def top_keys(self, layer: int, head: int, top: int = 3) -> list[list[tuple[str, float]]]:
        """Return the `top` keys of each token in a head, with their weights."""
        rows = self.weights[self.check_number("layer", layer, 0), self.check_number("head", head, 1)]
        order = np.argsort(-rows, axis=-1, kind="stable")[:, :top]
        return [[(self.columns[at], float(row[at])) for at in places] for row, places in zip(rows, order, strict=True)]

    def _repr_html_(self) -> str:
        """All heads in a notebook, and the head of the lowest entropy with its tokens."""
        entropy = self.habits()["entropy"]
        layers, heads = entropy.shape
        pixels = max(20, min(64, 640 // heads))
        maps = "".join(
            '<div style="white-space:nowrap">'
            + " ".join(render_map(self.weights[at, head], f"layer {at}, head {head}", pixels) for head in range(heads))
            + "</div>"
            for at in range(layers)
        )
        layer, head = (int(number) for number in np.argwhere(entropy == entropy.min())[0])
        rows = [
            (token, *(f"{key} {100 * share:.0f} %" for key, share in keys))
            for token, keys in zip(self.tokens, self.top_keys(layer, head), strict=True)
        ]
        return render_card(
            f"Attention: {layers} layers of {heads} heads",
            f'<div style="overflow-x:auto;line-height:1">{maps}</div>',
            render_note("A row of the maps is a layer. In a map a row is a token that looks, a column one looked at."),
            render_note(f"Layer {layer}, head {head}, which looks at the fewest tokens:"),
            render_table((), rows[:NOTEBOOK_ROWS], numbers=False),
            render_note(f"{len(rows) - NOTEBOOK_ROWS} more tokens." if len(rows) > NOTEBOOK_ROWS else ""),
            render_note("The text was longer than the model sees, and was cut." if self.cut else ""),
        )

    def check_number(self, name: str, number: int, axis: int) -> int:
        """Return the number of a layer (axis 0) or a head (axis 1); raise UserError where there is none."""
        count = self.weights.shape[axis]
        if not 0 <= number < count:
            raise UserError(f"{name} {number}: this model has {count} of them, from 0 to {count - 1}.")
        return number


def dominant_habit(habits: dict[str, np.ndarray], layer: int, head: int) -> str | None:
    """Return the habit that has more than half of a head's weight; None where there is none."""
    name = max((share for share in SHARES if share in habits), key=lambda share: habits[share][layer, head])
    return name if habits[name][layer, head] > 0.5 else None


def format_habits(attention: Attention, layer: int | None = None) -> str:
    """Format the habits of all heads, or of those of a layer, a line each."""
    habits = attention.habits()
    layers = range(attention.weights.shape[0]) if layer is None else [attention.check_number("layer", layer, 0)]
    names = [name for name in HABITS if name in habits]
    lines = [f"{'layer':>5} {'head':>4} " + " ".join(f"{name:>8}" for name in names) + "  mostly"]
    for number in layers:
        for head in range(attention.weights.shape[1]):
            values = (
                f"{habits[name][number, head]:8.1%}" if name in SHARES else f"{habits[name][number, head]:8.2f}"
                for name in names
            )
            lines.append(
                f"{number:5} {head:4} {' '.join(values)}  {dominant_habit(habits, number, head) or ''}".rstrip()
            )
    return "\n".join(lines)


def describe_head(attention: Attention, layer: int, head: int, top: int) -> str:
    """Format the top keys of each token in a head, a line a token."""
    width = max(cell_len(token) for token in attention.tokens)  # columns of a terminal: a Korean letter takes two
    return "\n".join(
        f"{' ' * (width - cell_len(token))}{token}  " + "  ".join(f"{key} {share:.0%}" for key, share in keys)
        for token, keys in zip(attention.tokens, attention.top_keys(layer, head, top), strict=True)
    )


@torch.no_grad()
def compute_attention(model: LoadedModel, text: str, second: str | None = None) -> Attention:
    """Compute the attention weights of one text as in pre-training, or of two as a pair."""
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
    """One or two texts between their markers."""

    tokens: np.ndarray  # (L,)
    segments: np.ndarray | None  # (L,)
    starts: list[int]  # where each text begins
    lengths: list[int]  # tokens of each text in the sequence


def _frame_text(model: LoadedModel, ids: np.ndarray) -> _Framed:
    """Frame a text by the markers of pre-training."""
    tokens, single = model.frame(ids), model.frame(ids[:1])
    start = int(np.flatnonzero(single == ids[0])[0])
    behind = len(single) - start - 1  # markers at the end
    return _Framed(tokens, None, [start], [min(len(ids), len(tokens) - start - behind)])


def _frame_pair(model: LoadedModel, first: np.ndarray, second: np.ndarray) -> _Framed:
    """Frame two texts as a task reads a pair (models/framing.py)."""
    framing = model.model.frame(model.tokenizer.special)
    framed = framing.join([first, second])
    lengths = framing.fit([len(first), len(second)])
    start = len(framing.before)
    return _Framed(framed.tokens, framed.segments, [start, start + lengths[0] + len(framing.between)], lengths)
