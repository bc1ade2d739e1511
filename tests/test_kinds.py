"""Kinds by name: ours, dotted modules, entry points; and what is said of those that are not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude import kinds
from etude.errors import UserError
from etude.recipes.document import find_recipe, recipe_names

ENTRY_POINTS = """\
[etude.objectives]
plugged = plugin_package.good
masked = plugin_package.good
broken = plugin_package.absent

[etude.recipes]
extra = plugin_package.recipes
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with entry points, installed by hand."""
    package = tmp_path / "plugin_package"
    (package / "recipes").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "good.py").write_text("class Settings: ...\ndef build(settings, model, special): ...\n")
    (package / "bad.py").write_text("def build(settings, model, special): ...\n")
    (package / "recipes" / "plugged-bert.yaml").write_text("extends: bert-toy\nname: plugged-bert\n")
    about = tmp_path / "plugin_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugin_package"]:
        del sys.modules[name]


def test_our_own_kinds_are_modules_that_meet_the_contract() -> None:
    assert {"masked", "causal", "skipgram"} <= set(kinds.list_kinds("objectives"))
    assert {"classify", "tag", "span"} <= set(kinds.list_kinds("tasks"))
    assert "base" not in kinds.list_kinds("objectives")
    assert kinds.find_kind("models", "transformer").__name__ == "etude.models.transformer"


def test_an_entry_point_and_a_dotted_name_give_the_same_module(plugin: Path) -> None:
    module = kinds.find_kind("objectives", "plugged")
    assert module.__name__ == "plugin_package.good"
    assert kinds.find_kind("objectives", "plugin_package.good") is module


def test_a_plug_in_cannot_replace_a_kind_of_ours(plugin: Path) -> None:
    assert kinds.find_kind("objectives", "masked").__name__ == "etude.objectives.masked"


def test_a_broken_plug_in_does_not_hide_the_others(plugin: Path) -> None:
    with pytest.warns(UserWarning, match=r"plugin_package\.absent .*'broken' of plugin-package"):
        known = kinds.list_kinds("objectives")
    assert "plugged" in known and "broken" not in known


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("maskd", "'maskd' is not a kind of objective. Did you mean 'masked'?"),
        ("base", "'base' is not a kind of objective"),
        ("nowhere.at_all", "nowhere.at_all cannot be imported"),
        ("plugin_package.absent", "plugin_package.absent cannot be imported"),
        ("plugin_package.bad", "plugin_package.bad is not a kind of objective, because it does not define Settings"),
        ("broken", "Install the package it belongs to"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_name_that_is_no_kind(plugin: Path, name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        kinds.find_kind("objectives", name)
    assert message in str(error.value)


def test_recipes_of_other_packages(plugin: Path) -> None:
    assert {"plugged-bert", "bert-toy"} <= set(recipe_names())
    assert find_recipe("plugged-bert") == plugin / "plugin_package" / "recipes" / "plugged-bert.yaml"


def test_names_are_found_without_torch() -> None:
    code = "import sys; from etude.kinds import find_module; find_module('models', 'transformer'); "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)
