"""The typed schema: what is refused, with which words; what is filled in; what reads back."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.errors import UserError
from etude.recipes.document import parse_overrides, recipe_names
from etude.recipes.schema import Recipe, kinds, validate_settings
from etude.tasks import classify
from etude.text.tokenizer.special_tokens import Specials

MINE = """\
name: mine
tokenizer: wordpiece:500
model:
  kind: transformer
  layers: 2
  width: 16
  heads: 2
  context: 32
objective:
  kind: masked
  length: 16
train:
  steps: 4
  lr: 3e-4
"""


def refused(text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        Recipe.parse(text, "mine.yaml").with_settings(overrides).resolve()
    return str(caught.value)


def changed(old: str, new: str) -> str:
    assert old in MINE
    return MINE.replace(old, new)


def test_a_recipe_is_typed() -> None:
    recipe = Recipe.parse(MINE)
    assert recipe.model.width == 16 and recipe.model_kind == "transformer"
    assert recipe.train.lr == 3e-4 and isinstance(recipe.train.lr, float)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  layers: 2", "  layrs: 2", ["mine.yaml, line 5", "no setting 'model.layrs'", "Did you mean 'layers'?"]),
        ("  steps: 4", "  stpes: 4", ["mine.yaml, line 13", "'train.stpes'", "'steps'"]),
        ("  length: 16", "  lenght: 16", ["mine.yaml, line 11", "'objective.lenght'", "'length'"]),
        ("tokenizer:", "tokeniser:", ["mine.yaml, line 2", "'tokeniser' is not a part", "'tokenizer'"]),
        (
            "  lr: 3e-4",
            "  batch_ramp: {form_tokens: 1, over_tokens: 9}",
            ["line 14", "batch_ramp.form_tokens", "from_"],
        ),
        ("kind: transformer", "kind: transformr", ["line 4", "not a kind of model", "'transformer'"]),
        ("kind: masked", "kind: base", ["line 10", "'base' is not a kind of objective"]),
        ("  kind: masked\n", "", ["line 9", "'objective' names no kind", "causal"]),
        ("wordpiece:500", "wrdpiece:500", ["line 2", "wrdpiece", "'wordpiece'"]),
        ("wordpiece:500", "wordpiece:4", ["line 2", "special tokens"]),
        ("heads: 2", "heads: 3", ["line 7", "heads=3 do not divide width=16"]),
        ("layers: 2", "layers: true", ["line 5", "'model.layers' cannot be true", "integer"]),
        ("layers: 2", "layers: '2'", ["line 5", 'cannot be "2"']),
        ("layers: 2", "layers: 2.5", ["line 5", "cannot be 2.5"]),
        ("layers: 2", "layers: 0", ["line 5", "greater than or equal to 1"]),
        ("  layers: 2\n", "", ["mine.yaml, line 3", "'model.layers' is missing"]),
        ("name: mine\n", "", ["'name' is missing"]),
        ("name: mine", "name: 7", ["line 1", "'name' is text"]),
        ("  steps: 4\n", "", ["line 12", "exactly one budget"]),
        ("steps: 4", "steps: 4\n  tokens: 9", ["line 13; mine.yaml, line 14", "train.steps and train.tokens"]),
        ("length: 16", "length: 64", ["mine.yaml, line 11", "line 8", "more than model.context=32"]),
        ("length: 16", "length: 16\n  row_tokens: 24", ["mine.yaml, line 12", "not a multiple"]),
        ("steps: 4", "steps: 4\n  batch_tokens: 64", ["mine.yaml, line 14", "less than one row of 128"]),
        ("steps: 4", "steps: 4\n  micro_tokens: 64", ["mine.yaml, line 14", "train.micro_tokens to at least 128"]),
        ("length: 16", "length: 16\n  sentence: next", ["line 12", "model.pooler=true"]),
        ("width: 16", "width: 16\n  vocab: 6", ["line 7", "6 special ones"]),
        ("width: 16", "width: 16\n  activation: gleu", ["line 7", "'model.activation' cannot be \"gleu\"", "'gelu'"]),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(old: str, new: str, words: list[str]) -> None:
    message = refused(changed(old, new))
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("word", ["1", "true"])
def test_a_number_in_the_place_of_a_text_is_quoted(word: str) -> None:
    """Labels are often numbers, and task.positive=1 is one, too."""
    document = parse_overrides([f"task.positive={word}"])
    with pytest.raises(UserError) as error:
        validate_settings(classify.Settings, document.values["task"], document, "task")
    assert f"""task.positive='"{word}"' on a command line""" in str(error.value)
    document = parse_overrides([f"""task.positive="{word}\""""])
    assert validate_settings(classify.Settings, document.values["task"], document, "task").positive == word


def test_every_fault_of_a_group_is_named_at_once() -> None:
    message = refused(changed("  layers: 2\n  width: 16\n", "  layrs: 2\n  width: none\n"))
    assert (
        "layrs" in message and "'model.width' cannot be \"none\"" in message and "'model.layers' is missing" in message
    )


def test_an_override_is_its_own_place() -> None:
    assert "the override model.heads=5" in refused(MINE, "model.heads=5")
    assert "the override model.layrs=5: there is no setting" in refused(MINE, "model.layrs=5")
    assert "the override mdoel.layers=5" in refused(MINE, "mdoel.layers=5")
    assert "is a group of settings" in refused(MINE, "model=5")


def test_overrides_are_typed_by_yaml() -> None:
    recipe = Recipe.parse(MINE).with_settings(
        ["train.lr=1e-3", "train.tokens=1e6", "model.pooler=true", "model.window=null", "train.betas=[0.9, 0.98]"]
    )
    assert recipe.train.lr == 1e-3
    assert recipe.train.tokens == 1_000_000 and recipe.train.steps is None  # the budget took the other's place
    assert recipe.model.pooler is True and recipe.model.window is None
    assert recipe.train.betas == (0.9, 0.98)


def test_another_objective_starts_from_its_defaults() -> None:
    recipe = Recipe.parse(MINE).with_settings(["objective.kind=causal", "model.direction=causal"]).resolve()
    assert recipe.objective_kind == "causal"
    assert recipe.objective.length == 32


def test_resolving_fills_what_follows() -> None:
    resolved = Recipe.parse(MINE).resolve()
    assert resolved.model.vocab == 500
    assert resolved.model.feedforward == 64 and resolved.model.embedding_width == 16
    assert resolved.objective.length == 16 and resolved.objective.row_tokens == 128
    assert resolved.objective.activation == resolved.model.activation
    assert resolved.resolve() == resolved
    assert Recipe.parse(MINE).resolve(vocab=321).model.vocab == 321


def test_a_model_without_an_activation_is_left_to_the_objective_to_refuse() -> None:
    with pytest.raises(UserError, match=r"objective masked trains a Transformer, not recurrent"):
        Recipe.load("elmo-toy").with_settings(["objective.kind=masked", "model.vocab=50"]).resolve()


def test_what_is_filled_in_is_what_is_built() -> None:
    """A recipe and its resolved form make the same model and the same rows."""
    special = Specials(0, 1, 2, 3, 4, 5)
    loaded = Recipe.parse(MINE).with_settings(["model.vocab=500"])
    for recipe in (loaded, loaded.with_settings(["model.embedding_width=8", "model.feedforward=24"])):
        resolved = recipe.resolve()
        plain, full = recipe.build_model(), resolved.build_model()
        assert {n: p.shape for n, p in plain.named_parameters()} == {n: p.shape for n, p in full.named_parameters()}
        objectives = [r.build_objective(m, special) for r, m in ((recipe, plain), (resolved, full))]
        assert objectives[0].row_rules == objectives[1].row_rules  # type: ignore[union-attr]


def test_a_vocabulary_must_hold_the_corpus() -> None:
    recipe = Recipe.parse(MINE).with_settings(["model.vocab=512"])
    assert recipe.resolve(vocab=500).model.vocab == 512  # padded: rows of the table that nothing uses
    with pytest.raises(UserError, match=r"the override model.vocab=512: .*has 600 tokens"):
        recipe.resolve(vocab=600)


def test_special_tokens_must_lie_in_the_vocabulary() -> None:
    recipe = Recipe.parse(MINE).resolve()
    with pytest.raises(UserError, match="special token 900"):
        recipe.build_objective(recipe.build_model(), Specials(0, 1, 2, 3, 900, 5))


def test_what_is_dumped_loads_back_equal(tmp_path: Path) -> None:
    recipe = Recipe.parse(changed("name: mine", "name: mine\nnote: 'yes: 3e-4, 한국어 # no comment'"))
    for one in (recipe, recipe.resolve()):
        file = tmp_path / "recipe.yaml"
        file.write_text(one.dump(), encoding="utf-8")
        assert Recipe.load(file) == one
        assert "extends" not in one.dump()


def test_a_tokenizer_may_be_a_folder(tmp_path: Path) -> None:
    recipe = Recipe.parse(changed("wordpiece:500", str(tmp_path)))
    assert recipe.resolve().model.vocab is None  # nobody knows it before the corpus
    assert recipe.resolve(vocab=99).model.vocab == 99


def test_kinds_are_the_modules_there_are() -> None:
    assert "transformer" in kinds("model")
    assert {"masked", "causal"} <= set(kinds("objective"))
    assert not {"base", "heads", "segments"} & set(kinds("objective"))


def test_distill_at_the_top_is_short_for_the_group_of_the_objective() -> None:
    """As on command lines, and as older recipes have it."""
    recipe = Recipe.load("tinybert", {"distill.mlm_weight": 1.0})
    assert recipe.objective_kind == "distill"
    assert (recipe.objective.distill.mlm_weight, recipe.objective.distill.hidden_weight) == (1.0, 1.0)
    assert recipe.has_objective("masked") and not recipe.has_objective("replaced")
    older = Recipe.load("bert-toy").dump() + "distill: {temperature: 4.0}\n"
    recipe = Recipe.parse(older, "older.yaml")
    assert recipe.objective_kind == "distill" and recipe.objective.distill.temperature == 4.0
    assert Recipe.parse(recipe.dump()) == recipe
    with pytest.raises(UserError, match=r"older\.yaml, line \d+: there is no setting .*Did you mean 'temperature'"):
        Recipe.parse(older.replace("temperature", "temperatur"), "older.yaml")
    with pytest.raises(UserError, match=r"there is no setting 'objective\.distill'"):
        Recipe.load("gpt2-toy", {"distill.temperature": 4.0})


@pytest.mark.parametrize("name", recipe_names())
def test_changed_settings_are_those_of_a_recipe_written_and_read_again(name: str) -> None:
    recipe = Recipe.load(name)
    again = Recipe.parse(recipe.dump(), "again")
    changes = {"train.seed": 7, "train.lr": 1e-05}
    assert recipe.with_settings(changes).dump() == again.with_settings(changes).dump()
    assert recipe.with_settings({}).dump() == recipe.dump() == again.dump()
