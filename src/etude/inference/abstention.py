"""Answers of "don't know": where a model is less sure than a threshold, its label is withheld.

The threshold is chosen on examples that the model did not learn from (`etude pick --accuracy`), and lies beside the
weights in `abstention.json`. Such an answer has the label null; what the model would have said is its `guess`.
Scores (`etude evaluate`) are those of all guesses.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from etude.errors import UserError
from etude.tasks.base import Answer, Answers
from etude.train import checkpoint

FILE = "abstention.json"


@dataclass(frozen=True)
class Abstention:
    threshold: float  # probability of the likeliest label below which there is no answer
    accuracy: float  # of the answers above it, as asked for

    def apply(self, answers: Answers) -> list[Answer]:
        """Return the answers, with the label of unsure ones withheld."""
        return [self._withhold(answer) if max(answer["scores"].values()) < self.threshold else answer
                for answer in answers]  # fmt: skip

    @staticmethod
    def _withhold(answer: Answer) -> Answer:
        return {"label": None, "guess": answer["label"]} | {key: answer[key] for key in answer if key != "label"}

    def write(self, folder: Path) -> None:
        checkpoint.write_text(folder / FILE, json.dumps(vars(self)))


def read_abstention(folder: Path) -> Abstention | None:
    """Return what lies beside a model; None where it always answers."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        abstention = Abstention(float(values["threshold"]), float(values["accuracy"]))
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
        raise UserError(f"{path} is damaged ({error}). Remove it: the model then always answers.") from None
    if not (math.isfinite(abstention.threshold) and 0 <= abstention.threshold <= 1):
        raise UserError(f"{path}: a threshold lies between 0 and 1, not {abstention.threshold:g}.")
    return abstention
