"""An exported baseline predicts the same without Etude on the path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from etude.baselines.labels import read_texts
from etude.baselines.registry import fit
from etude.errors import UserError
from etude.inference.baseline_model import BaselineModel
from etude.tasks import relation
from etude.tasks.data.examples import Examples
from tests.baselines.test_labels import reviews
from tests.tasks.labelled_records import records


def run_standalone(folder: Path, lines: list[str]) -> list[dict[str, object]]:
    """What the exported script answers, in a process that cannot import etude."""
    guard = "import sys; sys.modules['etude'] = None; sys.modules['torch'] = None; sys.modules['scipy'] = None\n"
    code = f"{guard}import runpy; sys.path.insert(0, {str(folder)!r})\n"
    code += f"runpy.run_path({str(folder / 'predict.py')!r}, run_name='__main__')"
    command = [sys.executable, "-I", "-X", "utf8", "-c", code]
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("typed", "signs"), [(False, "punct"), (True, "punct"), (True, "ernie")])
def test_relations_are_read_from_the_same_records(
    typed: bool, signs: Literal["punct", "ernie"], tmp_path: Path
) -> None:
    """The export took the JSON of a record for the text itself, without the signs around its entities."""
    rows = records("relation", 40, 0)
    for row in rows:
        row["subject_entity"]["type"] = "THING"
    examples = Examples([relation.parse(row, {}, "") for row in rows], "rows", ["row"] * len(rows))
    fit("tfidf", "relation", relation.Settings(typed=typed, signs=signs), examples).save(tmp_path / "best")
    model = BaselineModel.open(tmp_path / "best")
    korean = {"sentence": "봉준호가 찍은 기생충.", "object_entity": {"start_idx": 8, "end_idx": 10, "type": "POH"},
              "subject_entity": {"start_idx": 0, "end_idx": 2, "type": "PER"}}  # fmt: skip
    unseen = [*records("relation", 6, 1), korean]
    read = read_texts(model.baseline.task, relation.parse(korean, {}, "", labelled=False))
    subject, thing = relation.SIGNS[signs]["subject"][0], relation.SIGNS[signs]["object"][0]
    assert read[0].startswith(f"{subject} ") and read[0].endswith(f" {thing} .")
    lines = [json.dumps(row, ensure_ascii=False) for row in unseen]
    assert run_standalone(model.export(tmp_path / "out"), lines) == model.predict(unseen)


def test_labels_are_the_same_without_etude(tmp_path: Path) -> None:
    fit("tfidf", "classify", None, reviews()).save(tmp_path / "best")
    model = BaselineModel.open(tmp_path / "best")
    lines = ["재밌었어요", "a dull film!", "???"]
    assert run_standalone(model.export(tmp_path / "out"), lines) == model.predict(lines)
    with pytest.raises(UserError, match="exists already"):
        model.export(tmp_path / "out")
