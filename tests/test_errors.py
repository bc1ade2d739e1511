"""Hints for mistyped names: the nearest, all that are equally near, or everything there is, where that is not much."""

from __future__ import annotations

import ast
import errno
import os
import pickle
import re
import shlex
from pathlib import Path

import pytest

from etude.errors import UserError, explain_os_error, quote_path, suggest_name


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("widht", ["width", "heads"], " Did you mean 'width'?"),
        ("rate", ["short_rate", "pair_rate", "mask_rate"], " Did you mean 'pair_rate' or 'mask_rate'?"),
        ("q", ["width", "heads"], " Known: heads, width."),
        ("q", [], ""),
        ("q", [f"name-{number}" for number in range(1000)], ""),
    ],
)
def test_hints(name: str, known: list[str], hint: str) -> None:
    assert suggest_name(name, known) == hint


def test_advice_for_the_command_line_is_a_part_of_the_message() -> None:
    error = UserError("The text is empty.", "Leave it out with --skip-bad.")
    assert str(error) == "The text is empty. Leave it out with --skip-bad." and error.message == "The text is empty."
    assert str(UserError("No file.")) == UserError("No file.").message == "No file."
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.message, copy.advice) == (str(error), error.message, error.advice)


def test_a_path_in_a_command_is_one_word() -> None:
    assert quote_path("runs/bert") == "runs/bert"
    assert shlex.split(f"etude predict {quote_path(Path('p 2/best'))}") == ["etude", "predict", "p 2/best"]


BARE = {"folder", "run", "path", "url", "out", "model", "corpus", "base"}  # what a path is called here
BEGUN = re.compile(r"\b(?:etude [a-z]+|-o|--resume|--tokenizer)(?: [A-Z]+| -{1,2}[a-z]+| \.\.\.)* $")


NAMED = re.compile(rf"\{{[^{{}}]*\b(?:{'|'.join(BARE)})\s*[!:}}]")


def find_unquoted(tree: ast.AST) -> list[int]:
    """Lines of f-strings whose commands name a folder as it is, so that one with a space is two words."""
    lines = []
    for string in ast.walk(tree):
        if isinstance(string, ast.JoinedStr):
            text = ""
            for part in string.values:
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                elif isinstance(part, ast.FormattedValue):
                    value = part.value
                    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
                    if name in BARE and BEGUN.search(text) and "etude" in text:
                        lines.append(part.lineno)
                    text += "X"
    return lines


def test_commands_to_copy_quote_the_folders_in_them() -> None:
    assert find_unquoted(ast.parse('f"Go on with: etude finetune --resume {folder}"')) == [1]
    assert find_unquoted(ast.parse('f"Use it: etude predict {picked.model} < lines.txt"')) == [1]
    assert not find_unquoted(
        ast.parse("f\"{folder} is not a run. 'etude pretrain -o {quote_path(folder)}' makes one\"")
    )
    assert NAMED.search('f"Use it: etude predict {picked.model} < lines.txt"') and NAMED.search("{folder!r}")
    source = Path(__file__).parents[1] / "src" / "etude"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))}
    found = {
        str(path.relative_to(source)): lines
        for path, text in texts.items()
        if "etude" in text and NAMED.search(text)  # walking through a whole file takes long
        if (lines := find_unquoted(ast.parse(text)))
    }
    assert found == {}


def test_a_file_that_may_not_be_read_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root all files can be read, so the answer of the system is set here."""
    file = tmp_path / "model.safetensors"
    file.touch()
    denied = PermissionError(errno.EACCES, "Permission denied", str(file))
    assert "may write to" in str(explain_os_error(denied))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said = str(explain_os_error(denied))
    assert said == f"{file} cannot be read: Permission denied. Its owner can allow it: chmod a+r {file}"
    file.unlink()
    assert "may write to" in str(explain_os_error(denied))
