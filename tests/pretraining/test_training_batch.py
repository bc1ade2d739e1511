"""The batch that is shown is the batch that is trained on; every objective has something to say of its own."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import etude
from etude.chance import Chance
from etude.cli.main import app
from etude.errors import UserError
from etude.hub.run_weights import save_final
from etude.kinds import list_kinds
from etude.objectives.base import Batch, Objective, Row, join
from etude.pretraining.training_batch import TrainingBatch, build_training_batch
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.recipes.size import MADE_UP, synthetic_corpus, synthetic_graph
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import schedule
from etude.train.loader import Loader
from etude.view.batch import format_view, name_tokens
from etude.view.batch_page import render_batch_page

RECIPES = {
    "causal": "gpt2-toy", "masked": "bert-toy", "replaced": "electra-toy", "bilm": "bilm-toy", "cloze": "two-tower-toy",
    "skipgram": "skipgram-toy", "cbow": "cbow-toy", "cooccurrence": "glove-toy", "ranking": "collobert-toy",
    "translate": "transformer-toy", "triples": "transe-toy", "entity_alignment": "ernie-toy", "distill": "tinybert",
}  # fmt: skip


def built(name: str, step: int = 0, sequences: int = 3, **settings: object) -> TrainingBatch:
    recipe = Recipe.load(name, settings)
    if recipe.reads_entities:
        recipe = recipe.with_settings({"model.entities": 4000, "model.graph": MADE_UP})
    corpus = synthetic_graph() if recipe.reads_graph else synthetic_corpus(2_000, 394, recipe.reads_entities)
    return build_training_batch(recipe, corpus, step=step, sequences=sequences)


def test_every_objective_is_looked_at() -> None:
    assert set(RECIPES) == set(list_kinds("objectives"))


def test_a_random_token_that_the_tokenizer_lacks_is_shown_by_its_number() -> None:
    """model.vocab may be larger than the tokenizer, and what replaces a token is any of it."""
    batch = built("bert-toy", **{"model.vocab": 9_999, "objective.mask_share": 0.0, "objective.random_share": 1.0})
    text = "\n".join(line.plain for line in format_view(batch.view, batch.names, width=80, tokens=300))
    shown = [token.token for sequence in batch.view.sequences for token in sequence.tokens if token.token >= 394]
    assert shown and f"#{shown[0]}" in text


@pytest.mark.parametrize("kind", RECIPES)
def test_every_objective_says_what_it_asks(kind: str) -> None:
    batch = built(RECIPES[kind], sequences=2)
    view = batch.view
    assert view.sequences and not view.fields  # more than tokens and the shapes of tensors
    assert any(token.targets for sequence in view.sequences for token in sequence.tokens)
    text = "\n".join(line.plain for line in format_view(view, batch.names, width=80, tokens=60))
    assert (view.asks[0] in text and "… " in text) or all(len(s.tokens) <= 60 for s in view.sequences)
    # no line of a block is longer than the terminal; a list has one item a line
    lines = [] if view.sequences[0].form == "list" else text.partition("\n\n")[2].split("\n")
    assert all(len(line) <= 80 for line in lines if not line.startswith("["))
    page = render_batch_page(view, batch.names, "a <title>", batch.describe())
    assert f"Predicted: {escape(view.asks[0])}." in page and "sequence 1<" in page
    assert "navigator.language" in page, "begins in the reader's own language"
    assert "a &lt;title&gt;" in page and page.count("<section>") == len(view.sequences)


@pytest.mark.parametrize("step", [0, 3])
def test_masks_are_those_of_the_step(step: int) -> None:
    """Against the loader's own batch: what is read, where is asked, what was there."""
    batch = built("bert-toy", step, sequences=16)
    recipe, corpus = batch.recipe, synthetic_corpus(2_000, 394, False)
    _, objective = build_learner(recipe, corpus.tokenizer)
    rows = objective.rows(corpus, recipe.train.seed)
    loader = Loader(
        objective, rows, seed=recipe.train.seed, micro_tokens=None, workers=0,
        batch_rows=lambda number: schedule.batch_rows(recipe.train, rows.row_tokens, number),
        rows_before=lambda number: schedule.rows_before(recipe.train, rows.row_tokens, number),
    )  # fmt: skip
    trained = loader.step(step).batches[0]
    assert batch.rows == len(trained.rows)
    targets = {int(place): int(t) for place, t in zip(trained.index, trained.targets, strict=True) if t >= 0}
    mask, place, marks = corpus.tokenizer.special.mask, 0, []
    for number, sequence in enumerate(batch.view.sequences):
        assert sequence.note[0][:6] == f"next {int(trained.labels[number])}"
        for token in sequence.tokens:
            assert token.token == trained.tokens[place]
            assert token.targets == ((targets[place],) if place in targets else ())
            if token.mark:
                right = {"masked": token.token == mask, "kept": token.token == targets[place]}
                assert right.get(token.mark, token.token not in (mask, targets[place]))
                marks.append(token.mark)
            place += 1
    assert set(marks) == {"masked", "random", "kept"} and marks.count("masked") > len(marks) / 2


def test_a_causal_model_predicts_the_next_token() -> None:
    sequence = built("gpt2-toy").view.sequences[0]
    asked = [token.targets[0] for token in sequence.tokens]
    assert asked[:-1] == [token.token for token in sequence.tokens[1:]]


def test_windows_hold_the_words_around_a_centre() -> None:
    batch = built("skipgram-toy", **{"objective.subsample": None, "objective.window": 2})
    words = [token.token for token in batch.view.sequences[0].tokens]
    for place, token in enumerate(batch.view.sequences[0].tokens[5:50], 5):
        near = [words[max(0, place - n) : place] + words[place + 1 : place + n + 1] for n in (1, 2)]
        assert list(token.targets) in near


def test_a_trained_generator_draws(tmp_path: Path) -> None:
    """ELECTRA's tokens come from its generator: of a run, from its weights."""
    corpus = synthetic_corpus(2_000, 394, False)
    recipe = Recipe.load("electra-toy").resolve(vocab=corpus.tokenizer.vocab)
    model, objective = build_learner(recipe, corpus.tokenizer)
    with torch.no_grad():
        objective.generator_head.bias.fill_(-50.0)
        objective.generator_head.bias[77] = 50.0
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    corpus.tokenizer.save(folder)
    save_final(Run(folder), model, objective, "a card")
    view = etude.show.batch(folder, corpus).view
    drawn = {token.token for sequence in view.sequences for token in sequence.tokens if token.mark == "replaced"}
    assert drawn == {77} and set(view.marks) <= {"replaced", "same"}
    with pytest.raises(UserError, match="settings of its own"):
        etude.show.batch(folder, corpus, settings={"objective.mask_rate": 0.5})


def test_korean_bytes_are_letters() -> None:
    tokenizer = Tokenizer.train("bytebpe:300", ["강아지가 집에 있다 " * 3, "dog and cat"] * 4)
    names = name_tokens(tokenizer)
    ids = tokenizer.encode("강아지가 dog 뷁").ids
    joined = "".join(names.token(int(id)) for id in ids)
    assert "강아지가" in joined and "▁dog" in joined and "<EB>" in joined  # 뷁 in pieces of a letter
    assert names.token(tokenizer.special.mask or 0) == "[MASK]"


def test_an_objective_without_a_view_of_its_own() -> None:
    """Another package's: the tokens of its sequences, and the names of what else its batches hold."""

    class Plain(Objective):
        def batch(self, rows, chance):  # type: ignore[no-untyped-def]
            made = Batch(**join(rows, 0, 8))
            made.extra = torch.zeros(3, 2)
            return made

        loss = flops = lambda self, *given: None  # type: ignore[assignment]

    row = Row(0, np.array([4, 5, 6, 7, 8], np.int32), np.array([0, 2, 5], np.int32))
    plain = Plain()
    view = plain.view_batch(None, plain.batch([row], Chance(0, 0)))
    assert [[token.token for token in sequence.tokens] for sequence in view.sequences] == [[4, 5], [6, 7, 8]]
    assert view.fields == {"extra": "(3, 2) float32"}


def test_the_command(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("고양이가 매트 위에 앉았다. 개는 마당에서 잔다.\n\n" * 200, encoding="utf-8")
    etude.prepare(str(text), out=tmp_path / "corpus", tokenizer="wordpiece:80")
    runner, given = CliRunner(), ["show", "batch", "bert-toy", str(tmp_path / "corpus")]
    result = runner.invoke(app, [*given, "objective.sentence=none", "model.pooler=false", "--sequences", "2"])
    assert result.exit_code == 0, result.output
    assert "→" in result.output and "앉" in result.output and "Asked: the true token" in result.output
    listed = json.loads(runner.invoke(app, [*given, "--json"]).stdout.splitlines()[-1])
    assert listed["sequences"][0]["tokens"][0] == {"token": "[CLS]"}
    page = tmp_path / "batch.html"
    assert runner.invoke(app, [*given, "-o", str(page)]).exit_code == 0
    assert "<ruby>" in page.read_text(encoding="utf-8") and "가림" in page.read_text(encoding="utf-8")
    wrong = runner.invoke(app, [*given, "-o", str(page), "--json"])
    assert isinstance(wrong.exception, UserError) and "leave out one of them" in str(wrong.exception)
    wrong = runner.invoke(app, [*given, "--step", "-1"])
    assert isinstance(wrong.exception, UserError) and "at least 0" in str(wrong.exception)
