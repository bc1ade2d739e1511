"""References that are generated from the code: complete, and with a meaning for every name."""

from __future__ import annotations

import pytest
from docs.generator import commands, recipe_list, settings

from etude.cli.main import ORDER
from etude.kinds import list_kinds


def test_every_command_and_option_is_there() -> None:
    page = commands.page()
    assert all(f"## etude {name}\n" in page for name in ORDER)
    assert "`--dry-run`" in page and "`SOURCES...`" in page and "`--out`, `-o`" in page
    assert not [line for line in page.splitlines() if line.startswith("| `") and line.endswith("|  |")]


@pytest.fixture(scope="module")
def page() -> str:
    """The page of settings."""
    return settings.page()


def test_every_setting_has_a_meaning(page: str) -> None:
    for group, name in (("models", "model"), ("objectives", "objective"), ("tasks", "task")):
        assert all(f"## {name}: {kind}\n" in page for kind in list_kinds(group))
    assert "| `train.lr` | float | `0.0005` |" in page
    assert "| `distill.hard_weight` | float | `0.0` | of the true labels |" in page  # of `etude finetune --teacher`
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 500
    assert not [line for line in rows if line.endswith("|  |")], "write them into docs/generator/meanings.yaml"


def test_written_meanings_are_all_in_use(page: str) -> None:
    assert not [name for name, text in settings.written_meanings().items() if f"| {text} |" not in page]


@pytest.mark.slow  # reads and checks a hundred recipes; tests/recipes does so too
def test_every_recipe_is_listed() -> None:
    page = recipe_list.page()
    assert all(f"[`{file.stem}`]" in page for file in recipe_list.FOLDER.glob("*.yaml"))
