"""A command made of a sample verb: words, settings, options of every type, and what a presenter adds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from etude.cli.adapter import Call, Command, annotated_parameters, check_models, is_hook, members, parse_docstring
from etude.errors import UserError

if TYPE_CHECKING:
    from etude.text.corpus.corpus import Corpus


def train(
    recipe: str | Path,
    corpus: str | Path | Corpus,
    *,
    out: str | Path,
    settings: Mapping[str, object] | None = None,
    columns: Mapping[str, str] | None = None,
    vary: Mapping[str, Sequence[object]] | None = None,
    shots: Sequence[int] = (0, 4),
    lr: Sequence[float] | None = None,
    stop: Sequence[str] = (),
    mode: Literal["slow", "fast"] = "slow",
    skip_bad: bool = False,
    tasks: bool = True,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Train a sample.

    It goes on
    where it stopped.

    Args:
        recipe: A recipe.
        corpus: A corpus, with a
            help of two lines.
        out: A folder.
        settings: Settings: train.lr=3e-4
        columns: role=name
        vary: group.name=a,b
        shots: Numbers.
        lr: Rates.
        stop: Texts.
        mode: How.
        skip_bad: Skip.
        tasks: Tasks.
        seed: Seed.
        on_progress: Receives progress.
    """
    if on_progress is not None:
        on_progress("started")
    return {name: value for name, value in locals().items() if name != "on_progress"}


def join(words: str | Sequence[str], *, top: int | None = None) -> str:
    """Join words.

    Args:
        words: Words.
        top: How many.
    """
    return " ".join(words[:top])


RESULTS: list[dict[str, Any]] = []


def present(call: Call[dict[str, Any]], *, json: bool = False) -> None:
    """Keeps the result.

    Args:
        json: As JSON.
    """
    RESULTS.append(call(on_progress=typer.echo) | {"json": json})


def run(*words: str, **facts: Any) -> Any:
    app = typer.Typer()
    app.command("train")(Command(train, present, usage="A recipe and a corpus are wanted", **facts).function())
    app.command("join")(Command(join, lambda call: typer.echo(call())).function())
    return CliRunner().invoke(app, list(words))


def values(*words: str) -> dict[str, Any]:
    done = run(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert done.output == "started\n"
    return RESULTS.pop()


def test_defaults_are_the_verbs() -> None:
    assert values("train", "bert", "data/a=b", "-o", "x") == {
        "recipe": "bert", "corpus": "data/a=b", "out": Path("x"), "settings": {}, "columns": {}, "vary": {},
        "shots": [0, 4], "lr": None, "stop": [], "mode": "slow", "skip_bad": False, "tasks": True, "seed": 0,
        "json": False,
    }  # fmt: skip


def test_every_type_of_option() -> None:
    given = values(
        "train", "train.lr=3e-4", "bert", "--json", "data", "model.tied=false", "-o", "x", "-c", "text=review", "-c",
        "label=stars", "--vary", "task.pooling=start,mean", "--shots", "1,2", "--lr", "2e-5,5e-5", "--stop", "a,b",
        "--stop", "c", "--mode", "fast", "--skip-bad", "--no-tasks", "--seed", "3",
    )  # fmt: skip
    assert given == {
        "recipe": "bert", "corpus": "data", "out": Path("x"), "settings": {"train.lr": 3e-4, "model.tied": False},
        "columns": {"text": "review", "label": "stars"}, "vary": {"task.pooling": ["start", "mean"]}, "shots": [1, 2],
        "lr": [2e-5, 5e-5], "stop": ["a,b", "c"], "mode": "fast", "skip_bad": True, "tasks": False, "seed": 3,
        "json": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train bert -o x", "A recipe and a corpus are wanted; got: bert."),
        ("train -o x", "A recipe and a corpus are wanted; got: nothing."),
        ("train a b c -o x", "got: a b c."),
        ("train a b layers=4 -o x", "'layers=4' is no setting: its name lacks the group"),
        ("train a b -o x -c text", "'text' names no column"),
        ("train a b -o x --vary lr=1,2", "'lr=1,2' varies nothing"),
        ("train a b -o x --shots 1,a", "--shots 1,a: write whole numbers"),
        ("train a b -o x --lr fast", "--lr fast: write numbers"),
    ],
)
def test_a_mistake_is_a_user_error(words: str, message: str) -> None:
    done = run(*words.split())
    assert isinstance(done.exception, UserError) and message in str(done.exception)


def test_a_missing_option_and_a_wrong_choice_end_with_code_two() -> None:
    assert run("train", "a", "b").exit_code == 2
    assert run("train", "a", "b", "-o", "x", "--mode", "other").exit_code == 2
    done = run("train", "a", "b", missing="Say where: -o runs/NAME.")
    assert str(done.exception) == "Say where: -o runs/NAME."


def test_settings_without_a_group_where_they_have_none() -> None:
    done = run("train", "a", "b", "name=x", "-o", "x", grouped=False)
    assert done.exit_code == 0 and RESULTS.pop()["settings"] == {"name": "x"}


def test_a_sequence_is_all_words_that_are_left() -> None:
    assert run("join", "a", "b=1", "c.d=2", "--top", "2").output == "a b=1\n"
    assert run("join").exit_code == 2


def test_the_line_of_progress_names_words_and_no_list() -> None:
    """Of a place that takes many words as well: serve runs/a runs/b, not serve ['runs/a', 'runs/b']."""
    stages: list[str] = []
    app = typer.Typer()
    app.command("join")(Command(join, lambda call: stages.append(call.stage)).function())
    assert CliRunner().invoke(app, ["runs/a", "runs/b", "runs/c", "--top", "1"]).exit_code == 0
    assert stages == ["join runs/a runs/b"]


def test_help_is_the_docstring() -> None:
    summary, helps = parse_docstring(train)
    assert summary == "Train a sample.\n\nIt goes on where it stopped."  # a paragraph a line: the terminal wraps it
    assert helps["corpus"] == "A corpus, with a help of two lines." and helps["seed"] == "Seed."
    shown = run("train", "--help").output
    assert "Train a sample." in shown and "--no-tasks" in shown and "on-progress" not in shown and "Args" not in shown


def test_a_type_that_only_a_checker_imports_needs_no_import() -> None:
    annotations = {name: annotation for name, _, annotation in annotated_parameters(train)}
    assert [part.__name__ for part in members(annotations["corpus"])] == ["str", "Path", "Corpus"]
    assert is_hook(annotations["on_progress"]) and not is_hook(annotations["lr"])


def test_a_missing_folder_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    code = """
import sys
from etude.cli.main import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""
    for words, message in (
        ("serve nope", "There is no folder nope."),
        ("finetune nope tag --train a -o b", "There is no folder nope."),
        ("serve --board nope", "--board nope: there is no such folder."),
    ):
        command = [sys.executable, "-c", code, *words.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == "False\n"
        assert f"Error: {message}" in done.stderr
    (tmp_path / "vectors.txt").touch()
    check_models({"run": tmp_path / "vectors.txt", "runs": ["hf:org/name", str(tmp_path)]})
    with pytest.raises(UserError, match="no folder nope"):
        check_models({"runs": [str(tmp_path), "nope"]})


def test_a_task_before_its_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"There is no folder classify, and .* is one: the run comes first, then the task"
    ):
        check_models({"run": "classify", "task": str(tmp_path)})
    with pytest.raises(UserError, match=r"There is no folder gone\. Give a folder of a model"):
        check_models({"run": "gone", "task": "classify"})
