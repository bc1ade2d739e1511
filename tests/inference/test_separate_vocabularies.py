"""A translation run with a tokenizer for each side: training, files, decoding, maps, server, export, going on."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import etude
from etude.errors import UserError
from etude.hub.exporter import export_run
from etude.inference.translation import require_translator
from etude.models import encoder_decoder, recurrent_seq2seq
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.pair_tokenizer import TARGET_FILE, PairTokenizer
from etude.view.alignment import compute_alignment
from etude.world import World

RECIPES = {
    "transformer-toy": {"model.tables": "separate", "model.width": 16, "model.heads": 2},
    "rnn-search-toy": {"model.width": 12, "model.embedding_width": 12, "model.align": 8, "model.maxout": 8},
}
STEPS = {"train.steps": 3, "train.warmup": 1, "train.eval_every": 0, "train.batch_tokens": 512,
         "objective.row_tokens": 512}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("separate")
    World(0).write_pairs(folder / "pairs.tsv", 200)
    etude.prepare(folder / "pairs.tsv", out=folder / "c", tokenizer="bpe:300", target_tokenizer="bytebpe:500",
                  pairs="en,ko", valid=0.1)  # fmt: skip
    for recipe, settings in RECIPES.items():
        etude.pretrain(recipe, folder / "c", out=folder / recipe, settings={**STEPS, **settings}, quiet=True)
    return folder


@pytest.mark.parametrize("recipe", RECIPES)
def test_tables_have_the_rows_of_their_side(folder: Path, recipe: str) -> None:
    run = Run.open(folder / recipe)
    corpus = Corpus.open(folder / "c")
    source, target = corpus.tokenizer.vocab, corpus.tokenizer.target.vocab
    assert (run.recipe.model.vocab, run.recipe.model.target_vocab) == (source, target) == (300, 500)
    assert isinstance(run.tokenizer, PairTokenizer) and run.tokenizer.fingerprint == corpus.tokenizer.fingerprint
    loaded = etude.load(folder / recipe)
    model, objective = require_translator(loaded)
    assert model.embedding.state_dict().popitem()[1].shape[0] == source
    assert model.target_table.shape[0] == objective.output_table(model).shape[0] == target
    assert loaded.ids_without_token is None


@pytest.mark.parametrize("recipe", RECIPES)
def test_translations_are_decoded_by_the_targets_tokenizer(folder: Path, recipe: str) -> None:
    loaded = etude.load(folder / recipe)
    texts = [pair[0] for pair in World(3).pairs(4)]
    for options in ({}, {"beams": 1}, {"temperature": 1.0, "seed": 1}):
        for text, [best] in zip(texts, loaded.translate(texts, **options), strict=True):
            assert best.text == loaded.tokenizer.target.decode(best.ids, special=False).strip(), text


def test_a_pair_gives_the_same_loss_by_either_way(folder: Path) -> None:
    """The corpus's own ids through the objective, and the texts through both tokenizers."""
    loaded = etude.load(folder / "transformer-toy")
    _, objective = require_translator(loaded)
    corpus = Corpus.open(folder / "c")
    row = objective.rows(corpus, seed=0)[0]
    sides = [row.tokens[a:b] for a, b in zip(row.bounds[:-1], row.bounds[1:], strict=True)][:2]
    texts = [loaded.tokenizer.decode(sides[0], special=False), loaded.tokenizer.target.decode(sides[1], special=False)]
    lines = (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    assert "\t".join(texts) in lines
    encoded = loaded.tokenizer.encode(texts[0]).ids, loaded.tokenizer.target.encode(texts[1]).ids
    for ids, side in zip(encoded, sides, strict=True):
        assert np.append(ids, objective.end).tolist() == side.tolist()


def test_a_map_names_the_tokens_of_each_side(folder: Path) -> None:
    english, korean = next(iter(World(3).pairs(1)))
    loaded = etude.load(folder / "transformer-toy")
    attention = compute_alignment(loaded, english, korean)
    assert len(attention.keys or []) == len(loaded.tokenizer.encode(english).ids) + 1
    assert len(attention.tokens) == len(loaded.tokenizer.target.encode(korean).ids) + 1


def test_evaluation_reads_both_sides(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    World(3).write_pairs(tmp_path / "test.tsv", 5)
    scores = etude.evaluate(folder / "transformer-toy", tmp_path / "test.tsv")
    assert all(0 <= score.value <= 100 and score.count <= 5 for score in scores.values())
    assert {"BLEU", "chrF2"} <= set(scores)


def test_one_table_for_two_vocabularies_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.tables=shared: the corpus has a tokenizer for each side"):
        etude.pretrain("transformer-toy", folder / "c", out=tmp_path / "r", settings=STEPS, quiet=True)
    with pytest.raises(UserError, match="a model of the kind transformer has one vocabulary"):
        etude.pretrain("bert-toy", folder / "c", out=tmp_path / "r", quiet=True)
    for kind in (encoder_decoder, recurrent_seq2seq):
        with pytest.raises(ValueError, match="one table cannot serve two vocabularies"):
            kind.Settings(layers=1, width=8, **({"heads": 2, "context": 8} if kind is encoder_decoder else {}),
                          vocab=20, target_vocab=30, tables="shared")  # fmt: skip
    with pytest.raises(UserError, match="target_vocab=20 is smaller than the tokenizer of targets"):
        settings = {**RECIPES["transformer-toy"], "model.target_vocab": 20}
        Recipe.load("transformer-toy", settings).resolve(300, target_vocab=500)
    settings["model.tables"] = "separate"
    with pytest.raises(UserError, match="target_vocab=20 is smaller than the tokenizer of targets, which has 300"):
        Recipe.load("transformer-toy", settings).resolve(300)  # of both sides: its first step met an IndexError
    assert Recipe.load("transformer-toy", settings | {"model.target_vocab": 300}).resolve(300).model.vocab == 300


def test_going_on_needs_both_tokenizers(folder: Path, tmp_path: Path) -> None:
    pairs = folder / "pairs.tsv"
    etude.prepare(pairs, out=tmp_path / "same", tokenizer=folder / "transformer-toy", pairs="en,ko")
    run = etude.pretrain(folder / "transformer-toy", tmp_path / "same", out=tmp_path / "on", settings=STEPS, quiet=True)
    assert Run.open(tmp_path / "on").tokenizer.fingerprint == Run.open(folder / "transformer-toy").tokenizer.fingerprint
    assert run is not None
    etude.prepare(pairs, out=tmp_path / "other", tokenizer=folder / "transformer-toy", target_tokenizer="bytebpe:480",
                  pairs="en,ko")  # fmt: skip
    with pytest.raises(UserError, match="have different tokenizers"):
        etude.pretrain(folder / "transformer-toy", tmp_path / "other", out=tmp_path / "x", settings=STEPS, quiet=True)


def test_a_run_without_its_target_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "transformer-toy", tmp_path / "r")
    (tmp_path / "r" / TARGET_FILE).unlink()
    with pytest.raises(UserError, match=TARGET_FILE):
        etude.load(tmp_path / "r")


def test_export_says_why_not(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it has a vocabulary for each side"):
        export_run(folder / "transformer-toy", tmp_path / "out")


def test_gradients_reach_both_tables(folder: Path) -> None:
    loaded = etude.load(folder / "transformer-toy")
    model, objective = require_translator(loaded)
    rows = objective.rows(Corpus.open(folder / "c"), seed=0)
    with torch.enable_grad():
        objective.loss(model, objective.batch([rows[0]], None))["loss"].sum.backward()  # type: ignore[arg-type]
    for embedding in (model.embedding, model.target_embedding):
        assert embedding.tokens.weight.grad.abs().sum() > 0
