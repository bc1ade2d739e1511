"""A translation run on a file of pairs: scores of all and by length equal those of sacrebleu on the same sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import etude
from etude.cli.main import app
from etude.errors import UserError
from etude.inference.translation_evaluation import read_pairs, split_by_length
from etude.runs.run import Run
from etude.world import World

sacrebleu = pytest.importorskip("sacrebleu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    World(0).write_pairs(folder / "pairs.tsv", 200)
    etude.prepare(folder / "pairs.tsv", out=folder / "c", tokenizer="bytebpe:400", pairs="en,ko", valid=0.1)
    settings = {"train.steps": 30, "train.warmup": 5, "train.eval_every": 0, "model.width": 16, "model.heads": 2}
    etude.pretrain("transformer-toy", folder / "c", out=folder / "run", settings=settings, quiet=True)
    return folder / "run"


def test_scores_are_those_of_sacrebleu_and_buckets_those_of_their_sentences(run: Path, tmp_path: Path) -> None:
    World(5).write_pairs(tmp_path / "test.tsv", 40)
    assert Run.open(run).pairs == ("en", "ko")
    command = ["evaluate", str(run), str(tmp_path / "test.tsv"), "--predictions", str(tmp_path / "out.jsonl"), "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    scores = json.loads(result.stdout)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["source"], line["reference"]) for line in lines] == list(World(5).pairs(40))
    translations, references = [line["translation"] for line in lines], [line["reference"] for line in lines]
    tokenizer = scores["BLEU"]["signature"].split("tok:")[1].split("|")[0]
    assert tokenizer in ("char", "ko-mecab")
    expected = sacrebleu.corpus_bleu(translations, [references], tokenize=tokenizer).score
    assert scores["BLEU"]["value"] == pytest.approx(expected) and 0 < expected < 100
    assert scores["chrF2"]["value"] == pytest.approx(sacrebleu.corpus_chrf(translations, [references]).score)
    assert scores["BLEU"]["low"] <= scores["BLEU"]["value"] <= scores["BLEU"]["high"]
    short = [number for number, line in enumerate(lines) if 6 <= len(line["source"].split()) <= 10]
    part = scores["BLEU, 6-10 source words"]
    sides = [translations[number] for number in short], [[references[number] for number in short]]
    assert part["value"] == pytest.approx(sacrebleu.corpus_bleu(*sides, tokenize=tokenizer).score)
    assert part["count"] == len(short) > 0


def test_columns_are_those_of_the_run_or_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"de": "ja", "fr": "oui"}\n{"de": " ", "fr": "non"}\n')
    with pytest.raises(UserError, match="no columns 'en' and 'ko'"):
        etude.evaluate(run, tmp_path / "t.jsonl")
    with pytest.raises(UserError, match=r"t.jsonl:2: the text in the column 'de' is empty"):
        read_pairs(tmp_path / "t.jsonl", ("en", "ko"), {"source": "de", "target": "fr"})
    [pair] = read_pairs(tmp_path / "t.jsonl", None, {"source": "de", "target": "fr"}, skip_bad=True)
    assert (pair.source, pair.reference) == ("ja", "oui")
    with pytest.raises(UserError, match="'text' is no role"):
        etude.evaluate(run, tmp_path / "t.jsonl", columns={"text": "de"})
    with pytest.raises(UserError, match="--predictions"):
        etude.evaluate(run, tmp_path / "t.jsonl", report=tmp_path / "r.html")


def test_every_sentence_is_in_one_bucket() -> None:
    lengths = np.array([1, 5, 6, 10, 30, 31, 50, 51, 400])
    buckets = split_by_length(lengths)
    assert [name for name, _ in buckets] == ["1-5", "6-10", "21-30", "31-40", "41-50", "over 50"]
    assert sorted(np.concatenate([numbers for _, numbers in buckets])) == list(range(len(lengths)))


def test_sources_that_are_too_long_are_named_or_left_out(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [*World(5).pairs(3), ("cat " * 500, "고양이")]
    file = tmp_path / "test.jsonl"
    file.write_text("".join(json.dumps({"en": en, "ko": ko}) + "\n" for en, ko in pairs))
    with pytest.raises(UserError, match=r"test\.jsonl:4: the source has \d+ tokens, .* --skip-bad"):
        etude.evaluate(run, file)
    assert etude.evaluate(run, file, skip_bad=True)["BLEU"].count == 3
    assert "1 bad examples left out; the first" in caplog.text and "test.jsonl:4" in caplog.text
