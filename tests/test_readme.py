"""The README's way, command by command, on a little text: what it shows must work as it is written."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import etude as package
from etude.cli.main import app, main

ROOT = Path(__file__).resolve().parents[1]
README, KOREAN = ROOT / "README.md", ROOT / "README.ko.md"


def etude(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command line."""
    monkeypatch.setattr(sys, "argv", ["etude", *shlex.split(line)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_every_command_of_the_readme_exists() -> None:
    shown = set(re.findall(r"^\s+etude (\w+)", README.read_text(encoding="utf-8"), re.MULTILINE))
    known = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
    assert shown and shown <= known | {str(group.name) for group in app.registered_groups}


def python_calls(text: str) -> Iterator[ast.Call]:
    """Every `etude.verb(...)` that a page shows, in a block or in a line."""
    for found in re.finditer(r"etude\.\w+\(", text):
        for end in range(found.end(), len(text)):
            if text[end] == ")":
                try:
                    call = ast.parse(text[found.start() : end + 1], mode="eval").body
                except SyntaxError:  # a bracket inside
                    continue
                assert isinstance(call, ast.Call)
                yield call
                break


@pytest.mark.parametrize("page", [README, KOREAN, *sorted(ROOT.glob("docs/**/*.md"))], ids=lambda page: page.name)
def test_python_calls_of_the_pages_fit_the_verbs(page: Path) -> None:
    calls = list(python_calls(page.read_text(encoding="utf-8")))
    assert calls or page not in (README, KOREAN)
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        verb = getattr(package, call.func.attr)
        inspect.signature(verb).bind(*call.args, **{keyword.arg or "": keyword.value for keyword in call.keywords})


def test_both_languages_say_the_same() -> None:
    """Commands, recipes, figures and links: what does not depend on a language."""
    found = []
    for file in (README, KOREAN):
        text = file.read_text(encoding="utf-8")
        shown = re.findall(r"^ +(etude|make) (\w+)", text, re.MULTILINE)
        recipes = re.findall(r"`([\w-]+)`", text)
        figures = re.findall(r"\d+\.\d+", text.partition("```")[0])
        links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("README")]
        assert links and all((ROOT / link.partition("#")[0]).exists() for link in links)
        found.append((shown, sorted(recipes), sorted(figures), set(links)))
    assert found[0] == found[1]


def test_from_a_folder_of_text_to_a_model(
    tmp_path: Path, world_text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("books").mkdir()
    Path("books/town.txt").write_bytes(world_text.read_bytes())
    small = "model.layers=1 model.width=32 model.heads=2 model.context=32 objective.length=32 train.batch_tokens=256"

    assert etude("prepare books/*.txt -o data/books --tokenizer wordpiece:600 --valid 0.05", monkeypatch) == 0
    assert etude(f"check bert-small data/books {small} train.steps=3", monkeypatch) == 0
    assert "loss to beat" in capsys.readouterr().out
    assert etude(f"pretrain bert-small data/books -o runs/bert {small} train.steps=3", monkeypatch) == 0
    assert {"recipe.yaml", "tokenizer.json", "metrics.jsonl", "model.safetensors", "config.json", "README.md"} <= {
        path.name for path in Path("runs/bert").iterdir()
    }
    assert etude("pretrain --resume runs/bert", monkeypatch) == 0  # already done: says so, changes nothing
    capsys.readouterr()
    assert etude('fill runs/bert "The [MASK] is here."', monkeypatch) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 5
    assert etude("export runs/bert -o hf/bert", monkeypatch) == 0
    assert etude("import hf/bert -o runs/imported", monkeypatch) == 0
    assert etude("recipes bert-small", monkeypatch) == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pretrain bert-smal data/books -o runs/x", "bert-small"),
        ("pretrain bert-small data/books -o runs/x model.widht=32", "width"),
        ("pretrain bert-small data/books -o runs/x model.heads=7", "heads"),
        ("pretrain bert-small nowhere -o runs/x", "nowhere is not a corpus"),
        ("pretrain bert-small", "Give a recipe and a corpus"),
        ("pretrain --resume runs/none", "is not a run"),
        ("pretrain bert-small data/books", "-o runs/NAME"),
        ("check bert-small nowhere", "nowhere is not a corpus"),
        ("fill runs/none x", "runs/none"),
        ("prepare nothing.txt -o data/x", "nothing.txt"),
    ],
)
def test_what_a_user_can_cause_is_one_message_and_code_2(
    tmp_path: Path, prepared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/books").symlink_to(prepared("wordpiece:600"))
    assert etude(line, monkeypatch) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert words in told
    assert "Traceback" not in told
    assert not Path("runs").exists() or not list(Path("runs").iterdir())
    assert not Path("data/x").exists()
