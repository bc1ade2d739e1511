"""How objects show themselves in a notebook: tables that close, and no text of a user's that becomes a tag."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.notebook import render_curve, render_facts, render_map, render_table
from etude.pick.pick import PickResult
from etude.runs.run import Run
from etude.study.runner import Report
from etude.view.attention import Attention
from tests.serve.toy_runs import ToyRuns

ATTACK = "<img src=x onerror=alert(1)>\"'&"
VOID = {"img"}


class Tags(HTMLParser):
    """The tags of a text, which must close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attributes
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):  # type: ignore[union-attr]
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def check(html: str, *texts: str) -> None:
    """Whole, without scripts and addresses, with the texts as they were written."""
    tags = Tags(html)
    assert not {"script", "iframe", "link"} & set(tags.names)
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    sources = [value or "" for name, value in tags.attributes if name in ("src", "href")]
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    plain = re.sub(r"<[^>]*>", "\n", html)
    for text in texts:
        assert (
            text.replace("&", "&amp;")
            .replace("<", "&lt;")
            .replace(">", "&gt;")
            .replace('"', "&quot;")
            .replace("'", "&#x27;")
            in plain
        ), text


def test_parts_escape_every_text() -> None:
    check(render_facts([(ATTACK, ATTACK), ("none", None), ("empty", "")]), ATTACK)
    assert "none" not in render_facts([("none", None)])
    check(render_table([ATTACK], [[ATTACK, ATTACK]], best=[0]), ATTACK)
    check(render_curve([3.0, 2.0, float("nan"), 1.0], ATTACK))
    assert render_curve([1.0], "loss") == ""


def test_a_map_is_a_picture_of_the_weights() -> None:
    html = render_map(np.array([[0.0, 1.0, 0.25]]), ATTACK, 30)
    check(html)
    data = base64.b64decode(re.search(r"base64,([^\"]+)", html)[1])  # type: ignore[index]
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) == (3, 1)
    length = struct.unpack(">I", data[33:37])[0]
    line = zlib.decompress(data[41 : 41 + length])
    assert list(line[4::4]) == [0, 255, 128]  # the alpha channel: the root of a share


def test_a_run_and_a_model(tmp_path: Path) -> None:
    runs = ToyRuns(tmp_path)
    folder = runs("bert-toy")
    (folder / "metrics.jsonl").write_text(
        "".join(
            f'{{"step": {step}, "tokens": {10 * step}, "split": "train", "loss": {5 - step / 10}}}\n'
            for step in (10, 20)
        )
        + f'{{"step": 20, "split": "valid", "loss": 3.1, "{"<b>"}": 0.5, "seconds": 2}}\n',
        encoding="utf-8",
    )
    html = Run.open(folder)._repr_html_()
    check(html, "<b> 0.5000")
    assert "finished" in html and "polyline" in html and "loss 3.1000" in html
    model = etude.load(folder)
    check(model._repr_html_())
    assert "Masked" in model._repr_html_()
    tuned = runs("tuned")
    check(etude.load(tuned)._repr_html_(), str(tuned))
    attention = etude.show.attention(model, "the <b>cat</b>")
    check(attention._repr_html_(), "cat")


def test_attention_shows_every_head_and_the_sharpest() -> None:
    weights = np.full((2, 3, 30, 30), 1 / 30, np.float32)
    weights[1, 2] = np.eye(30)
    tokens = [ATTACK, *(f"t{number}" for number in range(29))]
    html = Attention(tokens, np.zeros(30, bool), weights, cut=True)._repr_html_()
    check(html, ATTACK, "Layer 1, head 2, which looks at the fewest tokens:", "6 more tokens.")
    assert html.count("<img") == 6 and "was cut" in html


def row(label: str, mean: float) -> dict[str, Any]:
    return {
        "name": label, "label": label, "kind": "contender", "failed": [], "scores": {},
        "mean": {"mean": mean, "low": 0.1, "high": 0.9, "deviation": None}, "pretraining": None,
    }  # fmt: skip


def test_the_report_of_a_study() -> None:
    claims = [
        {"claim": ATTACK, "verdict": "holds", "mean": 0.1, "low": 0.05, "high": 0.15, "holm": 0.01},
        {"claim": "other", "verdict": "not tested", "untested": "missing"},
    ]
    rows = [row("low", 0.2), row(ATTACK, 0.5)]
    results = {"title": ATTACK, "rows": rows, "columns": [], "claims": claims, "cells": [], "rule": {"interval": 0.95}}
    html = Report(Path("folder"), results)._repr_html_()
    check(html, ATTACK, "+10.0", "not tested: not all of its cells are done")
    assert html.index("50.0") < html.index("20.0"), "best first"


@pytest.mark.parametrize("held_out", [None, {"value": 0.8, "low": 0.7, "high": 0.9, "examples": 100}])
def test_a_pick(held_out: dict[str, float] | None) -> None:
    contender = {"name": "a", "label": {"en": ATTACK, "ko": ATTACK}, "score": 0.8, "error": 0.01, "folds": 5,
                 "pretraining": None, "fit_seconds": 0.1, "is_selectable": True}  # fmt: skip
    results = {"task": ATTACK, "score": "accuracy", "winner": "a", "label": contender["label"], "rows": [contender],
               "untried": [], "notes": [], "held_out": held_out, "not_exported": None, "labels": {"refit_on": 5},
               "seconds": 30.0}  # fmt: skip
    html = PickResult(Path("picked"), results)._repr_html_()
    check(html, f"Best: {ATTACK}.")
    assert ("on 100 examples" in html) == (held_out is not None)
