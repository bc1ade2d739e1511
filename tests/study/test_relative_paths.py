"""Relative paths of a study: its copy in its folder is run from anywhere, and names the same cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.study import planner
from etude.study.relative_paths import locate_files, locate_settings, map_settings, save_paths
from etude.study.runner import run
from etude.study.settings import Study
from etude.verbs.comparison import read_study
from etude.world import World
from tests.study.tiny_study import TINY


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study of files, and the command running in it."""
    monkeypatch.chdir(tmp_path)
    town = World(0)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text.txt").write_text("\n\n".join(town.text(0.05)), encoding="utf-8")
    lines = [json.dumps(record, ensure_ascii=False) for record in town.task("topic", "train", 120)]
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "topic.jsonl").write_text("\n".join(lines), encoding="utf-8")
    world = "kind: classify, world: topic, labels: [16], columns: {text: text}, dev_size: 16, test_size: 40"
    text = TINY.replace("text: {world: 0.05,", "text: {files: [data/text.txt],")
    text = text.replace(world, "kind: classify, train: topic.jsonl, labels: [16]")
    text = text.replace("recipe: bert-toy", "recipe: data/mine.yaml") + "# a comment\n"
    assert "world:" not in text
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "data" / "mine.yaml").write_text("extends: bert-toy\nname: mine\n", encoding="utf-8")
    return tmp_path


def test_a_saved_study_runs_in_its_folder_and_from_anywhere(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / "runs" / "tiny"
    run(read_study("mine.yaml", data="labels"), "runs/tiny", work=False)
    saved = (folder / "study.yaml").read_bytes()
    cells = list(planner.make_plan(read_study("mine.yaml", data="labels"), folder, dry=True).cells)
    for place, file, out in ((folder, "study.yaml", "."), (project, "runs/tiny/study.yaml", "runs/tiny")):
        monkeypatch.chdir(place)
        again = Study.load(file)
        plan = planner.make_plan(again, Path(out), dry=True)
        assert plan.exact and list(plan.cells) == cells, "the corpus is found, and every cell"
        run(again, out, work=False)
        assert (folder / "study.yaml").read_bytes() == saved


def test_data_of_the_command_counts_before_that_of_a_saved_study(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project / "runs" / "tiny"
    run(read_study("mine.yaml", data="labels"), "runs/tiny", work=False)
    assert Study.load(folder / "study.yaml").data == "labels"
    cells = list(planner.make_plan(read_study("mine.yaml", data="labels"), folder, dry=True).cells)
    (project / "labels").rename(project / "moved")
    for place, out, data in (
        (project, "runs/tiny", "moved"),
        (folder, ".", "../../moved"),
        (folder, ".", project / "moved"),
    ):
        monkeypatch.chdir(place)
        again = read_study(Path(out) / "study.yaml", data=data)
        assert list(planner.make_plan(again, Path(out), dry=True).cells) == cells
    with pytest.raises(UserError, match=r"There is no file \.\./\.\./labels/topic\.jsonl\. .* say --data FOLDER"):
        planner.make_plan(Study.load("study.yaml"), Path(), dry=True)


def test_data_beside_paths_that_are_seen_from_a_root(project: Path) -> None:
    """A copy that an earlier version saved: its paths name the folder of the data, too."""
    text = (
        (project / "mine.yaml").read_text(encoding="utf-8").replace("train: topic.jsonl", "train: labels/topic.jsonl")
    )
    (project / "runs").mkdir()
    (project / "runs" / "study.yaml").write_text(text + "root: ..\n", encoding="utf-8")
    assert planner.make_plan(Study.load("runs/study.yaml"), Path("runs"), dry=True).cells
    assert planner.make_plan(read_study("runs/study.yaml", data="."), Path("runs"), dry=True).cells
    message = r"There is no file labels/labels/topic\.jsonl\. Without --data it is runs/\.\./labels/topic\.jsonl\."
    with pytest.raises(UserError, match=message):
        planner.make_plan(read_study("runs/study.yaml", data="labels"), Path("runs"), dry=True)


def test_a_study_written_in_its_folder_keeps_its_comments(project: Path) -> None:
    (project / "study.yaml").write_bytes((project / "mine.yaml").read_bytes())
    (project / "topic.jsonl").write_bytes((project / "labels" / "topic.jsonl").read_bytes())
    run(Study.load("study.yaml"), ".", work=False)
    assert (project / "study.yaml").read_bytes() == (project / "mine.yaml").read_bytes()
    run(Study.load("study.yaml", changes={"seeds.transfer": 1}), ".", work=False)
    assert Study.load("study.yaml").seeds.transfer == 1, "another study is saved"


def test_only_relative_paths_are_seen_from_elsewhere() -> None:
    values: dict[str, Any] = {
        "text": {"files": ["a.txt", "/b.txt", "s3://c", "hub:d"]},
        "contenders": {
            "x": "bert-toy",
            "y": {"recipe": "my/y.yaml", "start": "runs/y", "set": {"tokenizer": "bpe:99"}},
        },
        "tasks": {"t": {"kind": "classify", "train": "t.jsonl"}, "w": {"world": "topic"}},
    }
    found = locate_files(values, "up")
    assert found["text"]["files"] == ["up/a.txt", "/b.txt", "s3://c", "hub:d"]
    assert found["contenders"]["x"] == "bert-toy"
    assert found["contenders"]["y"] == {"recipe": "up/my/y.yaml", "start": "up/runs/y", "set": {"tokenizer": "bpe:99"}}
    assert found["tasks"]["t"]["train"] == "up/t.jsonl" and found["tasks"]["w"] == {"world": "topic"}
    saved = save_paths(found, "up", Path("up/runs/z"))
    assert saved == {**values, "root": "../.."}
    data = {**values, "data": "labels"}
    located = locate_files(data, "up")
    assert located["tasks"] == values["tasks"] and located["data"] == "up/labels", "tasks are seen from there"
    assert save_paths(located, "up", Path("up/runs/z")) == {**data, "root": "../.."}
    assert save_paths(data, None, Path()) == data, "seen from where it lies"
    world = {"text": {"world": 1}, "contenders": {"x": {"recipe": "bert-toy"}}, "tasks": {}}
    assert save_paths(world, None, Path("out")) == world, "there is no path in it"


def test_settings_that_name_files_are_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "graph").mkdir(parents=True)
    (tmp_path / "linear").mkdir()
    settings = {"task.graph": "data/graph", "task.cache": "data/new", "task.head": "linear", "task.nothing": "no/thing",
                "task.network": {"vectors": "data/words", "cells": 8}}  # fmt: skip
    values = {"transfer": settings}
    assert save_paths(values, None, tmp_path / "runs" / "x") == {**values, "root": "../.."}, "part of keys"
    inside = tmp_path / "runs" / "x"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    found = locate_settings(settings, "../..")
    assert found == {
        "task.graph": "../../data/graph", "task.cache": "../../data/new", "task.head": "linear",
        "task.nothing": "no/thing", "task.network": {"vectors": "../../data/words", "cells": 8},
    }  # fmt: skip
    assert map_settings(found, Path(), lambda path: Path(path).name)["task.graph"] == "graph"
