"""The command line: one message for what a user can cause, exit code 2, a traceback only on request."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version

import pytest

from etude.cli import main as cli
from etude.cli import show
from etude.cli.adapter import Command
from etude.errors import UserError


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["etude", *words])
    with pytest.raises(SystemExit) as done:
        cli.main()
    return int(done.value.code or 0)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"etude {version('etude')}\n"


def test_help_lists_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    known = [command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback]
    assert {"recipes", "pretrain", "import", "generate"} < set(known)
    for name in known:
        assert name in shown
    for panel in cli.PANELS:
        assert f"─ {panel} ─" in shown
    assert sorted(cli.ORDER) == sorted(known)  # each command stands in one panel


VERBS = {
    "Answer", "Check", "Compare", "Continue", "Describe", "Estimate", "Explain", "Fill", "Find", "Fine-tune", "List",
    "Measure", "Pre-train", "Score", "Serve", "Show", "Train", "Translate", "Turn", "Write",
}  # fmt: skip


@pytest.mark.parametrize("command", [*cli.COMMANDS, *show.COMMANDS], ids=lambda command: command.called)
def test_a_summary_is_one_line_that_begins_with_a_verb(command: Command) -> None:
    summary, _, rest = inspect.cleandoc(command.function().__doc__ or "").partition("\n")
    assert summary.split()[0] in VERBS  # the imperative, as in "Write ..."; a new one may join them
    assert summary.endswith(".") and len(summary) <= 115
    assert not rest or rest.startswith("\n")


def test_an_unknown_command_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "recipe") == 2
    assert "recipe" in capsys.readouterr().err


def test_a_view_asked_for_as_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "neighbours", "runs/vectors", "cat") == 2
    assert "Type: etude show neighbours runs/vectors cat" in capsys.readouterr().err
    assert not {command.called for command in show.COMMANDS} & set(cli.ORDER), "no view has the name of a command"


def test_a_users_error_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "recipes", "bert-base", "model.heads=7") == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("Error: ")
    assert "bert-base.yaml, line" in error and "the override model.heads=7" in error
    assert "heads=7 do not divide width=768" in error
    assert "Traceback" not in error


def test_square_brackets_in_a_message_stay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "recipes", "bert-base", "model.layers=[red]") == 2
    assert '["red"]' in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--debug", "recipes", "nothing"), ("recipes", "nothing", "--debug")])
def test_debug_shows_where_it_arose(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setattr(sys, "argv", ["etude", *words])
    with pytest.raises(UserError, match="no recipe named 'nothing'"):
        cli.main()


def test_the_installed_command_ends_with_code_two() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "etude.cli.main", "recipes", "bert-bas"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "Did you mean 'bert-base'?" in done.stderr and "Traceback" not in done.stderr


def test_the_package_itself_can_be_run() -> None:
    found = subprocess.run([sys.executable, "-m", "etude", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout == f"etude {version('etude')}\n"
