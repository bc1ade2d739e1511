"""Attention maps as one self-contained HTML file, in English and Korean (view/attention.html)."""

from __future__ import annotations

import base64
import html
import json

import numpy as np

from etude.errors import UserError
from etude.view.attention import Attention
from etude.view.page_template import fill_template

LARGEST = 2**23  # weights in one page, a byte each: 12 layers of 12 heads over 240 tokens
WIDEST = 384  # pixels of all small maps of a layer


def render_page(attention: Attention, title: str, model: str, layer: int | None = None) -> str:
    """Return the page of all layers, or of one; raise UserError where it would be too large."""
    habits = {name: np.round(means, 4) for name, means in attention.habits().items()}
    weights, first = attention.weights, 0
    if layer is not None:
        layer = attention.check_number("layer", layer, 0)
        weights, first = weights[layer : layer + 1], layer
        habits = {name: means[layer : layer + 1] for name, means in habits.items()}
    if weights.size > LARGEST:
        raise UserError(
            f"The maps of {len(attention.tokens)} tokens would be a page of {weights.size >> 20} MB: take a shorter "
            "text, or one layer with --layer."
        )
    data: dict[str, object] = {
        "tokens": attention.tokens,
        "markers": attention.markers.tolist(),
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "first": first,
        "start": np.argwhere(habits["entropy"] == habits["entropy"].min())[
            0
        ].tolist(),  # the head of the lowest entropy
        "habits": {name: means.tolist() for name, means in habits.items()},
        "keys": attention.columns,
        "key_markers": (attention.markers if attention.key_markers is None else attention.key_markers).tolist(),
        "weights": base64.b64encode(np.rint(weights * 255).astype(np.uint8).tobytes()).decode(),
    }
    values = {
        "title": html.escape(title),
        "model": html.escape(model),
        "cut_en": " The text was longer than the model's context and was cut." if attention.cut else "",
        "cut_ko": " 글이 모형의 문맥보다 길어 잘렸습니다." if attention.cut else "",
        "thumb": str(max(20, min(64, WIDEST // weights.shape[1]))),
        "data": json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),  # no tag can begin in a script
    }
    return fill_template("etude.view", "attention.html", values)
