"""Translation in a study: scores by length, texts of pairs and of both languages, and runs that answer directly."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from etude.errors import UserError
from etude.recipes.document import parse_file
from etude.study.length_scores import SMALLEST, split_lengths
from etude.study.report.page import render_page
from etude.study.runner import run
from etude.study.sections import Text
from etude.study.settings import Study
from etude.study.text_source import TextSource, world_pairs, world_texts
from etude.text.corpus.corpus import Corpus
from etude.world import World

STUDIES = Path(__file__).resolve().parents[2] / "studies"


def test_every_example_is_in_one_bucket_and_no_length_in_two() -> None:
    draw = np.random.default_rng(0)
    for lengths in (draw.integers(1, 30, 400), np.array([3] * 50), np.array([1, 9] * 40), draw.integers(1, 4, 13)):
        buckets = split_lengths(lengths)
        assert sorted(np.concatenate(buckets)) == list(range(len(lengths)))
        spans = [(lengths[numbers].min(), lengths[numbers].max()) for numbers in buckets]
        assert all(left[1] < right[0] for left, right in pairwise(spans))
    even = split_lengths(np.arange(6 * SMALLEST))
    assert [len(numbers) for numbers in even] == [SMALLEST] * 6


def test_the_text_of_both_languages_takes_documents_in_turn() -> None:
    texts = list(islice(world_texts(0, "both", 1.0), 4))
    assert texts == [World(0, ("en", "ko")[number % 2]).document(number).text for number in range(4)]
    size = sum(len(text.encode()) + 2 for text in world_texts(0, "both", 0.01))
    assert 10_000 <= size < 14_000


def test_pairs_of_a_study_hold_no_sentence_of_its_tasks() -> None:
    pairs = {english for english, _ in world_pairs(0, 0.3)}
    assert len(pairs) > 2000
    for split in ("valid", "test"):
        assert not pairs & {record["en"] for record in World(0).task("translation", split, 300)}
    assert pairs & {english for english, _ in World(0).pairs(300)}


def test_a_text_of_pairs_is_a_corpus_of_pairs(tmp_path: Path) -> None:
    source = TextSource(Text(world=0.02, pairs="ko,en"), tmp_path)
    corpus = source.open_corpus("bpe:800")
    assert corpus.pairs == ("ko", "en") and Corpus.open(corpus.folder).total > 1000
    assert source.corpus_folder("bpe:800") != TextSource(Text(world=0.02), tmp_path).corpus_folder("bpe:800")
    with pytest.raises(ValueError, match="en,ko or ko,en"):
        Text(world=1, pairs="en,fr")
    with pytest.raises(ValueError, match="pairs stay as they are"):
        Text(files=["a"], pairs="en,fr", noise=0.5)


@pytest.mark.parametrize("name", ["attention-helps", "translation-pretraining"])
@pytest.mark.parametrize("gpu", [False, True])
def test_the_studies_of_translation_are_complete(name: str, gpu: bool) -> None:
    study = Study.load(STUDIES / f"{name}.yaml", gpu)
    assert study.claims and all(task.kind == "translate" for task in study.tasks.values())
    for entry in study.entries():
        entry.recipe(study)


def test_only_runs_that_translate_answer_directly() -> None:
    document = parse_file(STUDIES / "attention-helps.yaml", "study", "absent")
    document.values["contenders"]["bert"] = {"recipe": "bert-toy"}
    with pytest.raises(UserError, match="this recipe learns something else"):
        Study.from_document(document)
    with pytest.raises(UserError, match="direct learns from no labels"):
        Study.load(STUDIES / "attention-helps.yaml", changes={"tasks.en-ko.labels": [5]})
    with pytest.raises(UserError, match="only translation has runs that answer"):
        Study.load(STUDIES / "attention-helps.yaml", changes={"tasks.en-ko.kind": "pair"})


@pytest.mark.slow
def test_a_study_of_pairs_draws_scores_by_length(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    small = {"budget": {"flops": 2e9}, "seeds.pretrain": 1, "text.world": 0.05, "set.tokenizer": "bpe:900"}
    sizes = {"tasks.en-ko.test_size": 40, "tasks.en-ko.dev_size": 6, "tasks.en-ko.set": {"task.beams": 1}}
    study = Study.load(STUDIES / "attention-helps.yaml", changes=small | sizes)
    results = run(study, tmp_path / "study", device="cpu").results
    [lengths] = results["lengths"]
    assert set(lengths["rows"]) == {"vector", "attention", "no pre-training"}
    assert sum(bucket["examples"] for bucket in lengths["buckets"]) == 40
    assert all(len(scores) == len(lengths["buckets"]) for scores in lengths["rows"].values())
    assert results["columns"][0]["learnt_from"] == 0
    cells = [cell for cell in results["cells"] if cell["kind"] == "direct"]
    assert len(cells) == 3 and all(cell["commands"][0].startswith("etude evaluate cells/") for cell in cells)
    assert "By length" in render_page(results) and "words of the source" in render_page(results)
