"""Picking: halves until two, chosen on dev, told on examples nobody saw before, the winner in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.inference.task_model import TaskModel
from etude.study import pick as picking
from etude.study.pick import _PickLog, _plan_rounds, _split_files, pick
from etude.study.report.page import render_page
from etude.study.runner import Report
from etude.world import World

SMALL = {"model.layers": 1, "model.width": 16, "model.heads": 2, "train.batch_tokens": 512}
CANDIDATES = {
    "bert": {"recipe": "bert-toy", "set": SMALL},
    "gpt": {"recipe": "gpt1-toy", "set": SMALL},
    "cold": {"recipe": "bert-toy", "set": {**SMALL, "train.lr": 1e-9}},
}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labels") / "topics.jsonl"
    examples = World().task("topic", "train", 160)
    path.write_text("".join(json.dumps(one) + "\n" for one in examples), encoding="utf-8")
    return path


def test_rounds() -> None:
    assert _plan_rounds(7) == [4, 2, 1] and _plan_rounds(3) == [2, 1] and _plan_rounds(2) == [1]


def test_parts_share_nothing(labelled: Path, tmp_path: Path) -> None:
    parts = {name: Path(path).read_text().splitlines() for name, path in
             _split_files(tmp_path / "parts", "classify", labelled, None, None).items()}  # fmt: skip
    assert sum(map(len, parts.values())) == 160 and len(set().union(*map(set, parts.values()))) == len(
        set(labelled.read_text().splitlines())
    )
    assert not set(parts["train"]) & set(parts["test"]) and not set(parts["dev"]) & set(parts["test"])
    assert len(parts["train"]) > len(parts["dev"]) > 10 and len(parts["test"]) > 10
    few = tmp_path / "few.jsonl"
    few.write_text(labelled.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match="too few examples"):
        _split_files(tmp_path / "none", "classify", few, None, None)


def test_what_was_decided_is_remembered(tmp_path: Path) -> None:
    log = _PickLog(tmp_path / "pick.json", {"task": "classify"})
    log.begin(0, ["a", "b"], 0.5)
    log.end(0, {"a": 0.1, "b": 0.2}, ["b"])
    again = _PickLog(tmp_path / "pick.json", {"task": "classify"})
    assert again.round(0) == {"names": ["a", "b"], "minutes": 0.5, "dev": {"a": 0.1, "b": 0.2}, "kept": ["b"]}
    assert again.round(1) is None
    with pytest.raises(UserError, match="another pick"):
        _PickLog(tmp_path / "pick.json", {"task": "tag"})


@pytest.mark.slow
def test_the_best_is_taken_home(
    labelled: Path, world_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    real = picking.running.run

    def watched(study: Any, *rest: Any, **more: Any) -> Report:
        read.append(Path(study.tasks["task"].test).name)
        return real(study, *rest, **more)

    monkeypatch.setattr(picking.running, "run", watched)
    found = pick(
        [str(world_text)], "classify", labelled, tmp_path / "picked", 0.2, candidates=CANDIDATES,
        settings={"train.epochs": 1}, device="cpu",
    )  # fmt: skip
    assert read == ["dev.jsonl", "test.jsonl"], "the test part is read in the last round only"
    rounds = json.loads((tmp_path / "picked" / "pick.json").read_text())["rounds"]
    assert len(rounds) == 2 and len(rounds[0]["kept"]) == 2 and len(rounds[1]["kept"]) == 1
    assert set(rounds[1]["names"]) == set(rounds[0]["kept"])
    tuned = TaskModel.open(found.model)
    assert tuned.predict(["Anna baked bread."])[0]["label"]
    if found.pays:
        assert found.winner in CANDIDATES and (tmp_path / "picked" / "exported" / "config.json").is_file()
    else:
        assert found.winner == "no pre-training"
    assert "How it was chosen" in found.report.page.read_text(encoding="utf-8")
    again = pick(
        [str(world_text)], "classify", labelled, tmp_path / "picked", 0.2, candidates=CANDIDATES,
        settings={"train.epochs": 1}, device="cpu",
    )  # fmt: skip
    assert again.winner == found.winner

    # where not pre-training is best on dev, that is what is said and taken home
    scores = {"bert": 0.2, "gpt": 0.1, "no pre-training": 0.3}
    beaten = picking._write_result(
        tmp_path / "picked", found.report, scores, _PickLog(tmp_path / "picked" / "pick.json", {})
    )
    assert not beaten.pays and beaten.winner == "no pre-training" and TaskModel.open(beaten.model)
    assert json.loads((tmp_path / "picked" / "results.json").read_text())["pays"] is False
    assert render_page(beaten.report.results)
