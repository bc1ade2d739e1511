"""Pairs with a tokenizer for each side: ids, files, resumption, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.errors import UserError
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.corpus_report import format_report
from etude.text.prepare.prepare import prepare
from etude.text.tokenizer.pair_tokenizer import TARGET_FILE, PairTokenizer
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE, Tokenizer
from etude.world import World


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    World(0).write_pairs(path, 120)
    return path


def sides_of(path: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.parametrize("specs", [("bpe:300", "bytebpe:400"), ("word:200", "char")])
def test_each_side_is_encoded_by_its_own(pairs: Path, tmp_path: Path, specs: tuple[str, str]) -> None:
    corpus = prepare(pairs, tmp_path / "c", specs[0], pairs="en,ko", target_tokenizer=specs[1], valid=0.0)
    assert isinstance(corpus.tokenizer, PairTokenizer) and corpus.pairs == ("en", "ko")
    tokenizers = corpus.tokenizer, corpus.tokenizer.target
    english = [side[0] for side in sides_of(pairs)]
    assert tokenizers[0].content == Tokenizer.train(specs[0], english).content, "learnt from sources alone"
    for number, texts in enumerate(sides_of(pairs)):
        for side in (0, 1):
            bounds = corpus.sentences[2 * number + side], corpus.sentences[2 * number + side + 1]
            encoding = tokenizers[side].encode(texts[side])
            assert corpus.tokens(*bounds).tolist() == encoding.ids.tolist()
            assert corpus.word_starts(*bounds).tolist() == encoding.word_starts.tolist()
    assert corpus.token_counts().sum() == corpus.total
    rows = dict(format_report(corpus.manifest))
    assert f"{specs[1]}: {tokenizers[1].vocab:,} ids for targets" in rows["tokenizers"]
    assert "unigram entropy" not in rows


def test_workers_and_given_tokenizers_change_nothing(pairs: Path, tmp_path: Path) -> None:
    first = prepare(pairs, tmp_path / "a", "bpe:300", pairs="en,ko", target_tokenizer="bpe:200")
    others = [
        prepare(pairs, tmp_path / "b", "bpe:300", pairs="en,ko", target_tokenizer="bpe:200", workers=2),
        prepare(pairs, tmp_path / "c", tmp_path / "a", pairs="en,ko"),  # a folder with both
        prepare(pairs, tmp_path / "d", first.tokenizer, pairs="en,ko"),
        prepare(
            pairs, tmp_path / "e", tmp_path / "a" / TOKENIZER_FILE, pairs="en,ko",
            target_tokenizer=tmp_path / "a" / TARGET_FILE,
        ),
        prepare(pairs, tmp_path / "f", "bpe:300", pairs="en,ko", target_tokenizer=tmp_path / "a"),
    ]  # fmt: skip
    assert {corpus.fingerprint for corpus in others} == {first.fingerprint}


def test_a_target_without_a_token_names_its_line(tmp_path: Path) -> None:
    lines = ['{"en": "a b", "ko": "가"}', '{"en": "a", "ko": "\\u200b"}']
    (tmp_path / "p.jsonl").write_text("".join(line + "\n" for line in lines))
    words = Tokenizer.train("wordpiece:60", ["a b", "가"])
    with pytest.raises(UserError, match=r"p.jsonl, line 2: the target .* has no token"):
        prepare(tmp_path / "p.jsonl", tmp_path / "c", "char", pairs="en,ko", target_tokenizer=words, valid=0.0)


def test_what_does_not_fit_is_refused(pairs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it goes with --pairs"):
        prepare(pairs, tmp_path / "c", "bpe:300", text_field="en", target_tokenizer="bpe:200")
    with pytest.raises(UserError, match="neither a tokenizer to train nor one that exists"):
        prepare(pairs, tmp_path / "c", "bpe:300", pairs="en,ko", target_tokenizer="bpee:200")
    prepare(pairs, tmp_path / "c", "bpe:300", pairs="en,ko", target_tokenizer="bpe:200")
    with pytest.raises(UserError, match="has a tokenizer for each side of pairs"):
        prepare(pairs, tmp_path / "d", tmp_path / "c", text_field="en")


def test_files_that_changed_or_are_missing_are_refused(pairs: Path, tmp_path: Path) -> None:
    corpus = prepare(pairs, tmp_path / "c", "bpe:300", pairs="en,ko", target_tokenizer="bpe:200")
    target = tmp_path / "c" / TARGET_FILE
    target.write_text(corpus.tokenizer.content)
    with pytest.raises(UserError, match=r"target_tokenizer.json is not the tokenizer this corpus was made with"):
        Corpus.open(tmp_path / "c")
    target.unlink()
    with pytest.raises(UserError, match=r"target_tokenizer.json is missing"):
        Corpus.open(tmp_path / "c")
