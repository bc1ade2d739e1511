"""One reader of YAML: whatever stands in a file, the answer is its values or one message with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.plain_yaml import MAX_DEPTH
from etude.recipes.document import parse
from etude.runs.task_plan import Plan

SOURCE = Path(__file__).resolve().parents[2] / "src" / "etude"

HOSTILE = {
    "aliases": ("a: &x [1]\nb: *x", 2),
    "bomb": ("a: &a [x, x]\nb: &b [*a, *a]", 2),
    "deep": ("a:\n" + "[" * 5000, 2),
    "deep mapping": ("\n".join(" " * n + "k:" for n in range(3000)), MAX_DEPTH),
    "control character": ("a: 1\nb: \x07", 2),
    "null byte": ("a: 1\nb: 2\nc: \0", 3),
    "digits": ("a: 1\nb: " + "9" * 5000, 2),
    "python object": ("a: !!python/object/apply:os.system [ls]", 1),
    "date": ("a: !!timestamp 2001-99-99", 1),
    "word as number": ("a: 1\nb: !!int word", 2),
    "word as truth": ("a: !!bool maybe", 1),
    "set": ("a: !!set {x}", 1),
    "binary": ("a: !!binary '%%%'", 1),
    "own tag": ("a: !mine x", 1),
    "escape": ('a: "\\UFFFFFFFF"', 1),
    "two documents": ("a: 1\n---\nb: 2", 2),
    "merge": ("a: 1\n<<: {b: 1, <<: [}", 2),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_one_message_with_file_and_line(name: str) -> None:
    text, line = HOSTILE[name]
    with pytest.raises(UserError) as error:
        parse(text, "x.yaml")
    assert str(error.value).startswith(f"x.yaml, line {line}: "), error.value
    assert len(str(error.value)) < 300 and str(error.value).isprintable()


def test_no_other_reader_of_yaml_is_used() -> None:
    calls = re.compile(r"yaml\.(safe_load|load|full_load|unsafe_load)\b|CSafeLoader")
    assert not [str(file) for file in SOURCE.rglob("*.py") if calls.search(file.read_text(encoding="utf-8"))]


PLANS = ["", "a: 1", "kind: 5\nsettings: {}", "kind: classify\nsettings: []", "a: &x 1\nb: *x"]


@pytest.mark.parametrize("text", PLANS)
def test_a_damaged_plan_is_one_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "task.yaml").write_text(text)
    with pytest.raises(UserError, match=r"task\.yaml"):
        Plan.read(tmp_path)
