"""Reference curves: what the loss of a toy recipe looks like on the built-in world, stored as data beside it.

A file `curves/<recipe>.json` holds two runs of the recipe, each with the text, the settings and the seed that make it:

    short   a few steps on a little text, a second on a CPU: repeated by every run of the tests
    whole   the recipe as it stands on some megabytes, minutes on a CPU: loss against tokens, and what it must beat

and how they were made (command, commit, versions, hardware, date). `Curve.find_deviations` lists where another run
leaves the stored one by more than its tolerance, downwards too: a loss that is far too low sees what it should predict.
Files are written by `benchmarks/reference_curves.py`, which also says where the tolerances come from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.errors import UserError, suggest_name
from etude.recipes.document import FOLDER
from etude.world import World

PLACE = FOLDER / "curves"
Values = dict[str, float]


@dataclass(frozen=True)
class Text:
    """A text about the town, or pairs of its sentences in English and Korean, and how much of it is held out."""

    megabytes: float
    seed: int = 0
    language: str = "en"
    valid: float = 0.02
    pairs: int = 0  # so many pairs in the place of the text, for translation

    def write(self, folder: Path) -> tuple[Path, str | None]:
        """Write the file; return it and the names of the two sides, where it holds pairs."""
        world = World(self.seed, self.language)
        if self.pairs:
            return world.write_pairs(folder / "pairs.tsv", self.pairs), "en,ko"
        file = folder / "text.txt"
        file.write_text("\n\n".join(world.text(self.megabytes)) + "\n", encoding="utf-8")
        return file, None


@dataclass(frozen=True)
class Curve:
    text: Text
    split: str  # of metrics.jsonl: train or valid
    settings: dict[str, Any]  # what is changed in the recipe
    tolerance: Values  # of each value at every point
    points: list[Values]  # step, tokens, and the values that have a tolerance
    baselines: Values  # what the held-out loss is compared with, by name

    def find_deviations(self, lines: Iterable[Mapping[str, Any]]) -> list[str]:
        """Where the metrics of a run leave this curve, in words; empty where they follow it."""
        lines_by_step = {line["step"]: line for line in lines if line["split"] == self.split}
        faults = []
        for point in self.points:
            line = lines_by_step.get(point["step"])
            if line is None or line["tokens"] != point["tokens"]:
                there = "no such line" if line is None else f"{line['tokens']} tokens"
                faults.append(f"step {point['step']:g}: {there} where {point['tokens']:g} tokens are expected")
                continue
            for name, by in self.tolerance.items():
                if not abs(line[name] - point[name]) <= by:  # so that nan is a fault
                    expected = f"{point[name]:.4f} is expected, give or take {by:g}"
                    faults.append(f"step {point['step']:g}: {name} {line[name]:.4f} where {expected}")
        return faults


@dataclass(frozen=True)
class Reference:
    recipe: str
    made: dict[str, str]  # command, commit, versions, hardware, date
    short: Curve
    whole: Curve | None  # None: not recorded yet

    def dump(self) -> str:
        """JSON with one point a line, so that a new curve reads as a change of points."""
        plain = asdict(self)
        lines = []
        for key, value in plain.items():
            if key not in ("short", "whole") or value is None:
                lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
                continue
            if not value["text"]["pairs"]:
                del value["text"]["pairs"]
            points = ",\n".join(f"   {json.dumps(point)}" for point in value.pop("points"))
            head = json.dumps(value, ensure_ascii=False)[1:-1]
            lines.append(f' {json.dumps(key)}: {{{head}, "points": [\n{points}\n ]}}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def recorded_recipes() -> list[str]:
    """The recipes that have a reference curve."""
    return sorted(file.stem for file in PLACE.glob("*.json"))


def load(recipe: str) -> Reference:
    file = PLACE / f"{recipe}.json"
    if not file.is_file():
        raise UserError(f"There is no reference curve of '{recipe}'.{suggest_name(recipe, recorded_recipes())}")
    values = json.loads(file.read_text(encoding="utf-8"))
    curves = {
        name: Curve(**{**values[name], "text": Text(**values[name]["text"])})  # strict: an unknown key is an error
        for name in ("short", "whole")
        if values[name] is not None
    }
    return Reference(**{**values, **curves})
