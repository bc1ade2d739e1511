"""`etude study` and its kin from the command line: what they show, and what they say to a mistake."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.cli.main import main
from etude.errors import UserError
from etude.study.budget import parse_budget

STUDY = """
name: small
text: {world: 0.05, valid: 0.1}
budget: {flops: 1e8}
contenders:
  bert: {recipe: bert-toy, set: {model.layers: 1, model.width: 16, model.heads: 2, train.batch_tokens: 256}}
tasks:
  topic: {kind: classify, world: topic, labels: 16, dev_size: 8, test_size: 8}
"""


def typed(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["etude", *shlex.split(line)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("etude.study.budget.TRIAL_SECONDS", 0.02)
    path = tmp_path / "small.yaml"
    path.write_text(STUDY, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("a note", encoding="utf-8")
    return path


def test_a_dry_run_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    before = set(file.parent.iterdir())
    assert typed("study small.yaml --dry-run --budget 2e8 --device cpu", monkeypatch) == 0
    told = capsys.readouterr().out
    assert "2 × 10⁸ FLOPs for every contender" in told and "pre-training bert, seed 0" in told
    assert "random frozen on topic@16" in told and "majority on topic@16" in told
    assert re.search(r"6 cells, 0 of them cached; about [\d.e+]+ FLOPs and [\d.]+ minutes to go", told)
    assert set(file.parent.iterdir()) == before


def test_a_dry_run_tells_what_could_be_settled(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Of each of several studies; no folder of theirs is there yet."""
    claim = "claims: [{claim: It pays, better: bert, than: no pre-training}]\n"
    for name in ("first", "second"):
        Path(f"{name}.yaml").write_text(f"name: {name}\n{STUDY.split(maxsplit=2)[2]}{claim}", encoding="utf-8")
    assert typed("study first.yaml second.yaml --dry-run seeds.pretrain=3 --device cpu", monkeypatch) == 0
    told = capsys.readouterr().out
    assert told.count("Smallest difference on mean that is settled with 80 % chance") == 2
    assert "(a guess: rule.deviation)" in told and not Path("runs").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("study nowhere.yaml", "There is no study nowhere.yaml"),
        ("study . --dry-run", ". is no study: it is a folder. Name its .yaml file"),
        ("study notes.txt --dry-run", "notes.txt is no study: it is a file of another kind."),
        ("study small.yaml --on moon", "is not one of"),
        ("study small.yaml --budget soon", "write a time"),
        ("study small.yaml --language fr", "is not one of"),
        ("study small.yaml sedes.pretrain=2 --dry-run", "Did you mean 'seeds'"),
        ("study small.yaml nonsense --dry-run", "There is no study nonsense.yaml"),
        ("study small.yaml --gpu --dry-run", "no section 'gpu'"),
        ("study small.yaml --cell zzzz --dry-run", "--cell zzzz: no cell of this study begins like this."),
        ("study small.yaml --text nothing.txt --dry-run", "nothing.txt"),
        ("demo --language fr", "is not one of"),
        ("pick town.txt --task classify --train nothing.csv -o out", "There is no file nothing.csv"),
        ("pick town.txt --task clasify --train nothing.csv -o out", "Did you mean 'classify'"),
    ],
)
def test_a_mistake_is_one_message(
    line: str, words: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert typed(line, monkeypatch) == 2
    told = capsys.readouterr().err
    assert words in " ".join(told.split()) and "Traceback" not in told


def test_budgets_as_people_say_them() -> None:
    assert (
        parse_budget("90s") == {"minutes": 1.5}
        and parse_budget("10m") == {"minutes": 10}
        and parse_budget("2h") == {"minutes": 120}
    )
    assert parse_budget("1e12") == parse_budget("1e12 FLOPs") == {"flops": 1e12} and parse_budget("5e6tokens") == {
        "tokens": 5e6
    }
    with pytest.raises(UserError):
        parse_budget("10 parsecs")


def test_the_package_is_the_verb(file: Path) -> None:
    with pytest.raises(UserError, match="There is no study"):
        etude.study("nowhere.yaml", budget="1m")
