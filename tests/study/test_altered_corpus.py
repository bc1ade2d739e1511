"""Corpora made from others: a share, shuffled words, pseudo-words; what must stay and what must change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from etude.chance import fold
from etude.errors import UserError
from etude.study import altered_corpus as remade
from etude.study import planner, results
from etude.study.budget import Machine
from etude.study.report.page import render_page
from etude.study.sections import Text
from etude.study.settings import Study
from etude.study.text_source import TextSource
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare
from tests.study.tiny_study import tiny

KINDS = ["wordpiece:600", "word:2000"]  # the second keeps the letters of its words


def document(corpus: Corpus, number: int) -> np.ndarray:
    return corpus.tokens(corpus.documents[number], corpus.documents[number + 1])


@pytest.mark.parametrize("tokenizer", KINDS)
def test_a_share_of_the_documents(tokenizer: str, prepared: Callable[[str], Path], tmp_path: Path) -> None:
    whole = Corpus.open(prepared(tokenizer))
    half = TextSource(Text(corpus=str(whole.folder), share=0.5), tmp_path).open_corpus(tokenizer)
    half = Corpus.open(half.folder, verify=True)
    assert 0.3 < len(half.documents) / len(whole.documents) < 0.7 and half.tokenizer.vocab == whole.tokenizer.vocab
    every = {document(whole, number).tobytes() for number in range(len(whole.documents))}
    assert all(document(half, number).tobytes() in every for number in range(len(half.documents)))
    assert half.bytes / whole.bytes == pytest.approx(half.total / whole.total, rel=0.01)
    assert (half.token_counts() == np.bincount(half.tokens(0, half.total), minlength=half.tokenizer.vocab)).all()
    kept = (Corpus.open(one.folder, "valid") for one in (whole, half))
    assert len({(one.fingerprint, one.bytes) for one in kept}) == 1, "what is measured on stays"


def test_shares_below_a_thousandth_are_no_thousandth() -> None:
    """Of a large corpus a study may read 0.03 %; shares of whole thousandths draw what they always drew."""
    drawn = sum(remade.is_drawn("share", number, 0.0003) for number in range(100_000))
    assert drawn == pytest.approx(30, rel=0.4)
    for share in (0.001, 0.25, 0.57, 1.0):
        first = [fold("share", number) % 1000 < 1000 * share for number in range(2_000)]
        assert first == [remade.is_drawn("share", number, share) for number in range(2_000)]


@pytest.mark.parametrize("tokenizer", KINDS)
def test_words_in_any_order(tokenizer: str, prepared: Callable[[str], Path], tmp_path: Path) -> None:
    whole = Corpus.open(prepared(tokenizer))
    noisy = TextSource(Text(corpus=str(whole.folder), noise=0.5), tmp_path).open_corpus(tokenizer)
    noisy = Corpus.open(noisy.folder, verify=True)
    assert len(noisy.documents) == len(whole.documents) and len(noisy.sentences) == len(whole.sentences)
    moved = 0
    for number in range(len(whole.documents)):
        one, other = document(whole, number), document(noisy, number)
        assert Counter(one.tolist()) == Counter(other.tolist())
        span = whole.documents[number], whole.documents[number + 1]
        if whole.tokenizer.word_level:
            assert Counter(whole.surfaces(*span)) == Counter(noisy.surfaces(*span))
            words = [noisy.tokenizer.id(word.decode()) for word in noisy.surfaces(*span)]
            assert all(word in (None, id) for word, id in zip(words, other.tolist(), strict=True)), "letters go along"
        pieces = whole.tokenizer.decode(one.tolist()).split(), whole.tokenizer.decode(other.tolist()).split()
        moved += pieces[0] != pieces[1]
        assert len(pieces[0]) == pytest.approx(len(pieces[1]), rel=0.2), "pieces stay behind their words"
    assert 0.3 < moved / len(whole.documents) < 0.7


def test_pairs_are_read_in_part_and_never_mixed(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(
        "en\tko\n" + "".join(f"the house {n}\t그 집 {n}\n" for n in range(200)), encoding="utf-8"
    )
    folder = tmp_path / "corpus"
    prepare([tmp_path / "pairs.tsv"], folder, tokenizer="char:100", pairs="en,ko", valid=0.1)
    half = TextSource(Text(corpus=str(folder), share=0.5), tmp_path).open_corpus("char:100")
    assert half.pairs == ("en", "ko") and len(half.sentences) == 2 * len(half.documents) and len(half.documents) < 150
    for name in ("noise", "pseudo_words"):
        with pytest.raises(UserError, match=r"holds pairs.*text\.share"):
            TextSource(Text(corpus=str(folder), **{name: 1}), tmp_path).open_corpus("char:100")


def test_pseudo_words(prepared: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remade, "FIRST_RANK", 5)  # the town has few words
    whole = Corpus.open(prepared("wordpiece:600"))
    source = TextSource(Text(corpus=str(whole.folder), pseudo_words=4), tmp_path)
    pairs = remade.choose_pseudo_words(whole, 4)
    assert len(pairs) == 4 and not set(pairs) & set(pairs.values())
    merged = source.open_corpus("wordpiece:600")
    starts = whole.word_starts(0, whole.total)
    alone = starts & np.append(starts[1:], True)
    old, new = whole.tokens(0, whole.total), merged.tokens(0, merged.total)
    second = alone & np.isin(old, list(pairs))
    assert second.any() and (new[~second] == old[~second]).all()
    assert new[second].tolist() == [pairs[token] for token in old[second].tolist()]
    found = list(source.label_senses("wordpiece:600"))
    shown, asked = Counter[str](), Counter[str]()
    for record in found:
        for word, tag in zip(record["tokens"], record["tags"], strict=True):
            if tag != "O":
                shown[word] += 1
                asked[tag] += 1
    names = {whole.tokenizer.token(first) for first in pairs.values()}
    assert set(shown) <= names, "whoever reads the text sees the first word of a pair"
    seconds = {f"B-{whole.tokenizer.token(token)}" for token in pairs}
    assert set(asked) & seconds and set(asked) - seconds <= {f"B-{name}" for name in names}
    with pytest.raises(UserError, match="one token, and 2005 are needed"):
        remade.choose_pseudo_words(whole, 1000)


def test_letters_do_not_give_pseudo_words_away(
    prepared: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ELMo and fastText read letters: those of the second word must not stand where the first is written."""
    monkeypatch.setattr(remade, "FIRST_RANK", 5)
    whole = Corpus.open(prepared("word:2000"))
    source = TextSource(Text(corpus=str(whole.folder), pseudo_words=4, noise=0.5), tmp_path)
    merged = Corpus.open(source.open_corpus("word:2000").folder, verify=True)
    pairs = remade.choose_pseudo_words(whole, 4)
    firsts, seconds = ({whole.tokenizer.token(word).encode() for word in part} for part in (pairs.values(), pairs))
    before, after = (Counter(corpus.surfaces(0, corpus.total)) for corpus in (whole, merged))
    assert all(before[word] for word in seconds) and not any(after[word] for word in seconds)
    assert sum(after[word] for word in firsts) == sum(before[word] for word in firsts | seconds)
    assert {word: after[word] for word in before if word not in firsts | seconds} == {
        word: before[word] for word in before if word not in firsts | seconds
    }


def test_a_study_of_texts(prepared: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender's text without a source is the study's, whatever that becomes."""
    monkeypatch.setattr(Machine, "tokens_per_second", lambda self, recipe, corpus: 1e4)
    small = {"model.layers": 1, "model.width": 16, "model.heads": 2, "train.batch_tokens": 256}
    contenders = {
        "clean": {"recipe": "bert-toy", "set": small, "text": {"share": 0.5}},
        "noisy": {"recipe": "bert-toy", "set": small, "text": {"noise": 0.5}},
    }
    corpus = str(prepared("wordpiece:600"))
    study = tiny(contenders=contenders, claims=[], **{"text.world": None, "text.corpus": corpus})
    texts = [contender.text for contender in study.contenders.values()]
    assert [(text.corpus, text.share, text.noise) for text in texts if text] == [(corpus, 0.5, 0.0), (corpus, 1.0, 0.5)]
    planned = planner.make_plan(study, tmp_path / "dry", dry=True)
    assert planned.exact and len({planned.bases[name, 0] for name in contenders}) == 2, "two texts, two cells"
    passes = [row.length.epochs for row in planned.rows if row.length]
    assert passes[0] == pytest.approx(2 * passes[1], rel=0.1)


def test_the_results_say_what_was_read(
    prepared: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "tokens_per_second", lambda self, recipe, corpus: 1e4)
    corpus = prepared("wordpiece:600")
    changes = {"text.world": None, "text.corpus": str(corpus), "text.share": 0.5}
    found = results.collect(planner.make_plan(tiny(claims=[], **changes), tmp_path), {}, {"date": ""})
    row = found["rows"][0]
    assert not any(str(corpus.parent) in line for cell in found["cells"] for line in cell["commands"])
    assert row["tokenizer"] == "wordpiece:600", "that of the corpus, not the one the recipe names"
    assert row["text"]["share"] == 0.5 and 0.3 < row["text"]["tokens"] / Corpus.open(corpus).total < 0.7
    page = render_page(found).replace("\N{NO-BREAK SPACE}", " ")
    assert "50 % of the documents" in page and "문서의 50 %" in page


def test_what_the_world_has_not() -> None:
    with pytest.raises(UserError, match="the world has megabytes"):
        tiny(**{"text.share": 0.5})
    with pytest.raises(UserError, match=r"set text\.pseudo_words"):
        tiny(claims=[], **{"tasks.topic": {"kind": "tag", "made": "sense", "labels": 4}})
    assert isinstance(tiny(), Study)
