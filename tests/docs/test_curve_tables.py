"""Tables of toy recipes in the documentation say what the stored curves say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etude.recipes import curves

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORED = {name: reference.whole for name in curves.recorded_recipes() if (reference := curves.load(name)).whole}


def _table(file: str, columns: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Read the first table with these columns: its rows by their first cell."""
    lines = (DOCS / file).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if all(f"| {name} |" in line for name in columns))
    head = [cell.strip() for cell in lines[start].strip("|").split("|")]
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0]] = dict(zip(head, cells, strict=True))
    return rows


LEARNING = _table("results/learning.md", ("recipe", "steps", "held-out nats"))


def test_every_toy_with_a_whole_curve_is_in_the_table() -> None:
    assert set(LEARNING) == set(STORED)


@pytest.mark.parametrize("name", STORED)
def test_the_table_of_toys_is_that_of_the_stored_curves(name: str) -> None:
    curve, row = STORED[name], LEARNING[name]
    assert curve is not None
    last = curve.points[-1]
    assert row["steps"] == f"{last['step']:,}"
    assert row["tokens"] == f"{last['tokens'] / 1e6:.2f} M"
    losses = [float(value) for value in re.findall(r"\d+\.\d+", row["held-out nats"])]
    assert losses == [pytest.approx(last[value], abs=6e-4) for value in curve.tolerance]
    assert float(row["unigram"]) == pytest.approx(curve.baselines["unigram"], abs=6e-4)
    assert float(row["bigram"]) == pytest.approx(curve.baselines["bigram"], abs=6e-4)


def test_the_losses_of_bilms_are_those_of_the_stored_curve() -> None:
    row = _table("results/elmo.md", ("recipe", "text", "nats a token"))["bilm-toy"]
    curve = STORED["bilm-toy"]
    assert curve is not None and row["steps"] == str(curve.points[-1]["step"])
    assert float(row["nats a token"]) == pytest.approx(curve.points[-1]["loss"], abs=6e-3)


@pytest.mark.parametrize(("name", "step"), [("decoder-modern-toy", 200), ("gpt2-toy", 200)])
def test_losses_on_the_way_are_those_of_the_stored_curves(name: str, step: int) -> None:
    curve = STORED[name]
    assert curve is not None
    loss = next(point["loss"] for point in curve.points if point["step"] == step)
    sentence = next(
        line for line in (DOCS / "results/learning.md").read_text(encoding="utf-8").splitlines() if "pay early" in line
    )
    assert f"{name} is at {loss:.3f}" in sentence
