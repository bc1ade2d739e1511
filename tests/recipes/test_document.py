"""YAML as recipes read it: types of plain words, places, layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from etude.errors import UserError
from etude.recipes.document import Document, find_recipe, parse, parse_overrides, parse_value, read_recipe
from etude.recipes.schema import Recipe


@pytest.mark.parametrize("text", ["한글 #1", "# all of it", "3\nlayers: 4"])
def test_nothing_of_a_value_is_left_out(text: str) -> None:
    """A label such as "한글 #1" was read as "한글", without a word."""
    with pytest.raises(UserError, match="Put the whole value in quotes"):
        parse_overrides([f"task.positive={text}"])
    assert parse_value(yaml.safe_dump(text, default_style='"', allow_unicode=True), "here") == text
    assert parse_value("C#", "here") == "C#"


def test_places_are_lines_of_the_file() -> None:
    document = parse("name: x\nmodel:\n  layers: 6\n  list: [1,\n    2]\n", "a.yaml")
    assert document.place(("name",)) == "a.yaml, line 1"
    assert document.place(("model", "layers")) == "a.yaml, line 3"
    assert document.place(("model", "list", "1")) == "a.yaml, line 5"
    assert document.place(("model", "unknown")) == "a.yaml, line 2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", r"line 2: 'a' stands here a second time"),
        ("a: [1\nb: 2\n", r"line 2: not valid YAML"),
        ("a: &x {b: 1}\nc: *x\n", r"line 2: not valid YAML: aliases"),
        ("a: &x [*x]\n", r"aliases"),
        ("a: !!python/object:os.system x\n", r"not valid YAML"),
        ("- 1\n", r"a list of keys and values"),
        ("[1]: 2\n", r"plain word"),
    ],
)
def test_bad_text_is_one_message_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text, "a.yaml")


def test_layers_join() -> None:
    base = parse("model: {kind: t, layers: 6, sizes: [1, 2]}\ntrain: {steps: 5, lr: 0.1}\n", "a")
    top = parse_overrides(["model.layers=2", "model.sizes=[3]", "model.new.deep=true"])
    joined = base.overlay(top)
    assert joined.values["model"] == {"kind": "t", "layers": 2, "sizes": [3], "new": {"deep": True}}
    assert joined.place(("model", "layers")) == "the override model.layers=2"
    assert joined.place(("model", "sizes", "1")) == "the override model.sizes=[3]"
    assert joined.place(("train", "lr")) == "a, line 2"
    assert base.values["model"]["layers"] == 6  # nothing shared with what it was made from


def test_a_budget_replaces_a_budget() -> None:
    base = parse("train: {steps: 5, lr: 0.1}", "a")
    assert base.overlay(parse_overrides(["train.tokens=1e6"])).values["train"] == {"lr": 0.1, "tokens": 1e6}
    assert base.overlay(parse_overrides(["train.lr=1"])).values["train"] == {"steps": 5, "lr": 1}
    both = base.overlay(parse_overrides(["train.tokens=7", "train.minutes=3"])).values["train"]
    assert both == {"lr": 0.1, "tokens": 7, "minutes": 3}  # one layer that says two is refused later


def test_another_kind_starts_empty() -> None:
    base = parse("objective: {kind: masked, rate: 0.15}", "a")
    assert base.overlay(parse_overrides(["objective.kind=causal"])).values["objective"] == {"kind": "causal"}
    assert base.overlay(parse_overrides(["objective.kind=masked"])).values["objective"]["rate"] == 0.15


def test_overrides_as_a_mapping_keep_their_values() -> None:
    document = parse_overrides({"train.steps": 10, "model": {"layers": 2}})
    assert Document().overlay(document).values == {"train": {"steps": 10}, "model": {"layers": 2}}


@pytest.mark.parametrize("override", ["model.layers", "=3", ".layers=3", "model.=3", "model..layers=3"])
def test_a_malformed_override_says_how_to_write_one(override: str) -> None:
    with pytest.raises(UserError, match=r"such as model.layers=6"):
        parse_overrides([override])


def test_extends_by_name_and_by_path(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("name: base\npaper: P\nmodel: {kind: t, layers: 6, width: 8}\n")
    (tmp_path / "top.yaml").write_text("extends: ./base.yaml\nname: top\nmodel: {layers: 2}\n")
    document = read_recipe(tmp_path / "top.yaml")
    assert document.values == {"name": "top", "paper": "P", "model": {"kind": "t", "layers": 2, "width": 8}}
    assert document.place(("model", "width")).endswith("base.yaml, line 3")
    (tmp_path / "nameless.yaml").write_text("extends: base.yaml\n")
    nameless = read_recipe(tmp_path / "nameless.yaml")
    assert "name" not in nameless.values and nameless.place(("name",)).endswith("nameless.yaml, line 1")
    with pytest.raises(UserError, match=r"nameless\.yaml, line 1: 'name' is missing"):
        Recipe.load(tmp_path / "nameless.yaml", ["model.layers=3"])


def test_a_circle_of_extends_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(UserError, match="circle"):
        read_recipe(tmp_path / "a.yaml")


def test_unknown_recipes_are_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'bert-base'"):
        find_recipe("bert-bse")
    with pytest.raises(UserError, match="no recipe file"):
        find_recipe("nowhere/x.yaml")


def test_what_is_parsed_again_was_not_changed_meanwhile() -> None:
    text = "name: x\nmodel: {layers: 2, list: [1, 2]}\n"
    first = parse(text, "a.yaml")
    first.put(("model", "layers"), 9, "elsewhere")
    first.values["model"]["list"].append(3)
    second = parse(text, "a.yaml")
    assert second.values == {"name": "x", "model": {"layers": 2, "list": [1, 2]}}
    assert second.place(("model", "layers")) == "a.yaml, line 2" and parse(text, "b.yaml").place(()) == "b.yaml, line 1"
    for _ in range(2):
        with pytest.raises(UserError, match="a second time"):
            parse("a: 1\na: 2\n", "a.yaml")


def test_a_corpus_in_place_of_a_recipe_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in (f"{tmp_path}/", "corpus"):  # with a path, or as a bare name beside the recipes'
        with pytest.raises(UserError, match=r"is a folder, not a recipe\. The recipe comes first, then the corpus"):
            find_recipe(name)
