"""The pipeline: exact round trips, the report, parts and weights, and the command."""

from __future__ import annotations

import hashlib
import os
import signal
import time
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.text.prepare.small_texts import as_bytes, documents_of, some_text
from typer.testing import CliRunner

from etude.errors import UserError
from etude.text.corpus.bigram_baseline import unigram_entropy
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.corpus_report import format_report
from etude.text.prepare.prepare import Progress, prepare
from etude.text.tokenizer.tokenizer import Tokenizer


@pytest.mark.parametrize("spec", ["bpe:1500", "bytebpe:400", "unigram:1300", "char"])
def test_text_comes_back_exactly(text: Path, tmp_path: Path, spec: str) -> None:
    prepare(text, tmp_path / "c", spec, valid=0.2)
    documents = [
        document for part in ("train", "valid") for document in documents_of(Corpus.open(tmp_path / "c", part))
    ]
    assert sorted(documents) == sorted(some_text(120))
    assert sum(Corpus.open(tmp_path / "c", part).bytes for part in ("train", "valid")) == sum(
        len(document.encode()) for document in documents
    )


def test_words_keep_their_letters(text: Path, tmp_path: Path) -> None:
    corpus = prepare(text, tmp_path / "c", "word:15,lower", valid=0)
    surfaces = b" ".join(corpus.surfaces(0, corpus.total)).decode()
    assert corpus.tokenizer.special.unknown in corpus.tokens(0, corpus.total)
    assert surfaces.replace(" ", "") == "".join(some_text(120)).replace(" ", "").replace("\n", "")


def test_decomposed_korean_is_stored_composed(tmp_path: Path) -> None:
    originals = [
        "모스크바 지하철은 1935년에 개통되었다. 정말 그렇습니다!",
        "ᄒᆞᆫ글 옛말과 한글 자모 ㄱㄴㄷ, 그리고 ᄀ. 漢字도 있다 🙂",
    ]
    (tmp_path / "a.txt").write_text("\n\n".join(unicodedata.normalize("NFD", text) for text in originals))
    for spec in ("bytebpe:300", "char", "bpe:1300", "unigram:1300"):
        corpus = prepare(tmp_path / "a.txt", tmp_path / spec, spec, valid=0)
        assert documents_of(corpus) == [unicodedata.normalize("NFC", text) for text in originals]


def test_bounds_are_of_documents_and_sentences(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One here. Two there.\nThree!\n\n왕은 집에 갔다. 개가 보았다.")
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "char", valid=0)
    pieces = [
        corpus.tokenizer.decode(corpus.tokens(corpus.sentences[i], corpus.sentences[i + 1]))
        for i in range(len(corpus.sentences))
    ]
    # white space between sentences lies with the one before, so that no sentence starts with a line break
    assert pieces == ["One here. ", "Two there.\n", "Three!", "왕은 집에 갔다. ", "개가 보았다."]
    assert corpus.documents.slice(0, 3).tolist() == [0, 27, 44]


def test_the_report_adds_up(tmp_path: Path) -> None:
    texts = some_text(50)
    odd = "0x7f 0x3a 11 22 33 44 55 66 77 88 99 == ++ -- 00"
    (tmp_path / "a.txt").write_text("\n\n".join([*texts, texts[0], texts[0], texts[1], odd]))
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "word:30", valid=0.1)
    report = corpus.manifest["report"]
    assert report["documents"] == 54 and report["duplicates"] == 3 and report["dropped"] == 0
    assert report["non_text"] == 1 and report["non_text_examples"][0][0].endswith("a.txt")
    line = report["non_text_examples"][0][1]
    assert (tmp_path / "a.txt").read_text().split("\n")[line - 1] == odd
    everything = " ".join([*texts, texts[0], texts[0], texts[1], odd])
    assert report["words"] == len(everything.split())
    counts = sum(Corpus.open(tmp_path / "c", part).token_counts() for part in ("train", "valid"))
    assert report["unknown_share"] == pytest.approx(counts[1] / counts.sum(), abs=1e-8) and counts[1] > 0
    assert report["tokens_a_word"] == pytest.approx(counts.sum() / report["words"], abs=1e-4)
    assert report["unigram_entropy_nats"] == pytest.approx(unigram_entropy(counts), abs=1e-6)
    assert unigram_entropy(np.array([1, 1, 0, 2])) == pytest.approx(1.5 * np.log(2))
    letters = [c for c in everything if c.isalpha()]
    hangul = sum("가" <= c <= "힣" for c in letters) / len(letters)
    assert report["scripts"]["Hangul"] == pytest.approx(hangul, abs=1e-6)
    assert any("Hangul" in value for _, value in format_report(corpus.manifest))


def test_equal_documents_never_straddle(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(some_text(60) * 3))
    prepare(tmp_path / "a.txt", tmp_path / "c", "bytebpe:300", valid=0.3)
    train, valid = (set(documents_of(Corpus.open(tmp_path / "c", part))) for part in ("train", "valid"))
    assert not train & valid and train | valid == set(some_text(60))
    assert 6 <= len(valid) <= 30


def test_unique_drops_what_came_before(tmp_path: Path) -> None:
    texts = some_text(30)
    (tmp_path / "a.txt").write_text("\n\n".join(texts + texts[::-1]))
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "bytebpe:300", valid=0, unique=True)
    assert documents_of(corpus) == texts
    assert corpus.manifest["report"]["duplicates"] == corpus.manifest["report"]["dropped"] == 30


def test_weights_repeat_and_thin_out(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(some_text(100, seed=1)))
    (tmp_path / "b.txt").write_text("\n\n".join(some_text(100, seed=2)))
    sources = {str(tmp_path / "a.txt"): 2.5, str(tmp_path / "b.txt"): 0.5}
    corpus = prepare(sources, tmp_path / "c", "bytebpe:300", valid=0)
    documents = documents_of(corpus)
    texts = some_text(100, seed=2)
    first = [documents.count(document) for document in some_text(100, seed=1)]
    second = [documents.count(document) for document in texts]
    assert set(first) == {2, 3} and 30 <= first.count(3) <= 70
    assert set(second) == {0, 1} and 30 <= second.count(1) <= 70
    # sources are mixed, not put one behind the other
    places = [place for place, document in enumerate(documents) if document in texts]
    assert places[0] < len(documents) / 4 and places[-1] > 3 * len(documents) / 4
    prepare(sources, tmp_path / "v", "bytebpe:300", valid=0.2)
    held_out = documents_of(Corpus.open(tmp_path / "v", "valid"))
    assert len(held_out) == len(set(held_out)) > 0
    report = Corpus.open(tmp_path / "v").manifest["report"]  # of what is in the corpus, as often as it is there
    everything = documents_of(Corpus.open(tmp_path / "v")) + held_out
    assert report["words"] == sum(len(document.split()) for document in everything)


def test_a_few_documents_are_held_out_by_luck_or_by_rule(tmp_path: Path) -> None:
    for count, least in ((9, 0), (10, 1), (40, 1)):
        (tmp_path / f"{count}.txt").write_text("\n\n".join(some_text(count, seed=5)))
        corpus = prepare(tmp_path / f"{count}.txt", tmp_path / f"c{count}", "char", valid=1e-6)
        assert corpus.manifest["parts"]["valid"]["documents"] == least
    with pytest.raises(UserError, match="empty"):
        Corpus.open(tmp_path / "c9", "valid")


def test_a_given_tokenizer_is_taken_as_it_is(text: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("bytebpe:300", some_text(5))
    tokenizer.save(tmp_path)
    for number, given in enumerate((tokenizer, tmp_path, str(tmp_path / "tokenizer.json"))):
        corpus = prepare(text, tmp_path / f"c{number}", given, valid=0)
        assert corpus.tokenizer.fingerprint == tokenizer.fingerprint
        assert documents_of(corpus) == some_text(120)
        assert "sample" not in corpus.manifest["tokenizer"]


def test_the_sample_is_stated_and_kept_to(tmp_path: Path, small_blocks: None) -> None:
    texts = some_text(300)
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    (tmp_path / "b.txt").write_text("\n\n".join(texts[::-1]))
    corpora = [prepare(tmp_path / f"{n}.txt", tmp_path / n, "bytebpe:300", sample_bytes=20_000, valid=0) for n in "ab"]
    sample = corpora[0].manifest["tokenizer"]["sample"]
    assert 15_000 < sample["bytes"] <= 20_000 and 0 < sample["documents"] < 100
    # drawn by the text itself: the order of documents is no matter
    assert corpora[0].tokenizer.fingerprint == corpora[1].tokenizer.fingerprint
    other_corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "bytebpe:300", sample_bytes=20_000, valid=0, seed=1)
    assert other_corpus.tokenizer.fingerprint != corpora[0].tokenizer.fingerprint


def test_the_manifest_names_sources_and_hashes(text: Path, tmp_path: Path) -> None:
    corpus = prepare(text, tmp_path / "c", "char")
    [source] = corpus.manifest["sources"]
    assert source["files"] == [
        {"path": str(text), "bytes": text.stat().st_size, "sha256": hashlib.sha256(text.read_bytes()).hexdigest()}
    ]
    assert not (tmp_path / "c.partial").exists()


def test_large_vocabularies_take_wider_ids(tmp_path: Path) -> None:
    words = " ".join(f"w{n}" for n in range(70_000))
    (tmp_path / "a.txt").write_text(words)
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "word:100000", valid=0)
    assert corpus.tokenizer.vocab == 70_006 and (tmp_path / "c/train/00000.tokens.u32").exists()
    assert len(set(corpus.tokens(0, corpus.total).tolist())) == 70_000
    with pytest.raises(UserError, match="does not fit into uint16"):
        prepare(tmp_path / "a.txt", tmp_path / "d", "word:100000", ids="uint16")
    with pytest.raises(UserError, match="does not fit into uint16"):
        prepare(tmp_path / "a.txt", tmp_path / "d", corpus.tokenizer, ids="uint16")
    letters = "".join(map(chr, (*range(0x3400, 0x4DB6), *range(0x4E00, 0x9FA6), *range(0x20000, 0x2A6D7))))
    (tmp_path / "b.txt").write_text(letters, encoding="utf-8")
    assert len(letters) > 1 << 16
    with pytest.raises(UserError, match="does not fit into uint16"):  # its size is known when it is trained
        prepare(tmp_path / "b.txt", tmp_path / "e", "char", ids="uint16")


def test_an_existing_corpus_is_not_overwritten(text: Path, tmp_path: Path) -> None:
    prepare(text, tmp_path / "c", "char")
    before = as_bytes(tmp_path / "c")
    with pytest.raises(UserError, match="--force"):
        prepare(text, tmp_path / "c", "bytebpe:300")
    assert as_bytes(tmp_path / "c") == before
    assert prepare(text, tmp_path / "c", "bytebpe:300", force=True).tokenizer.kind == "bytebpe"
    assert not (tmp_path / "c.partial").exists()
    (tmp_path / "empty").mkdir()
    assert prepare(text, tmp_path / "empty", "char").total > 0


def test_a_field_that_no_record_has_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "draft": true}\n{"text": "y", "draft": false}\n')
    for number, where in enumerate(("not draft", "not drfat")):
        prepare(tmp_path / "a.jsonl", tmp_path / str(number), "char", where=where)
        assert ("no record has a field 'drfat'" in caplog.text) == (where == "not drfat")


def test_the_folder_one_works_in_is_refused_before_the_work(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out in (".", "", "./", "sub/.."):
        with pytest.raises(UserError, match=r"names no new folder.*corpus"):
            prepare(text, out, "char", force=True)
    assert not list((tmp_path / "here").iterdir())


def test_force_replaces_nothing_but_what_was_prepared(text: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.doc").write_text("the work of years")
    prepare(text, tmp_path / "c", "char")
    (tmp_path / "c" / "more.txt").write_text("a text that somebody put here")
    before = as_bytes(tmp_path)
    for source, out, message in (
        (text, "thesis", "neither a corpus nor a graph"),
        (text, "town.txt", "neither a corpus nor a graph"),
        (tmp_path / "c" / "more.txt", "c", "would replace"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(source, tmp_path / out, "char", force=True)
        assert as_bytes(tmp_path) == before


def test_the_command(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.cli.main import app

    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    arguments = [
        "prepare",
        "town.txt",
        "-o",
        "data/town",
        "-t",
        "bytebpe:300",
        "--valid",
        "0.1",
        "--unique",
        "--workers",
        "0",
    ]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "bits a byte" in result.output and "etude pretrain" in result.output
    assert Corpus.open("data/town").tokenizer.kind == "bytebpe"
    again = runner.invoke(app, arguments)
    assert isinstance(again.exception, UserError)
    wrong = runner.invoke(app, ["prepare", "town.txt", "-o", "x", "--weights", "1,a"])
    assert isinstance(wrong.exception, UserError)


def test_the_command_says_how_to_go_on(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.cli.main import app

    def interrupt(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr("etude.text.prepare.prepare.prepare", interrupt)
    result = CliRunner().invoke(app, ["prepare", str(text), "-o", str(tmp_path / "c")])
    assert result.exit_code == 3 and "goes on from there" in result.output


@pytest.mark.parametrize("state", ["nothing", "empty", "corpus"])
def test_a_link_to_another_disk_stays_one(text: Path, tmp_path: Path, state: str) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").mkdir()
    link, target = tmp_path / "data" / "books", tmp_path / "disk" / "books"
    link.symlink_to(target, target_is_directory=True)
    if state == "empty":
        target.mkdir()
    elif state == "corpus":
        prepare(text, target, "char", workers=0)
    seen: list[list[str]] = []

    def list_disk(_: Progress) -> None:
        seen.append(sorted(path.name for path in (tmp_path / "disk").iterdir()))

    corpus = prepare(text, link, "word:20", workers=0, force=True, progress=list_disk)
    assert link.is_symlink() and corpus.tokenizer.kind == "word"
    assert Corpus.open(target).fingerprint == corpus.fingerprint
    assert "books.partial" in seen[0], "the work needs the room of that disk"
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["books"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["books"]


def test_files_of_a_folder_that_are_no_text_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("some text")
    prepare(folder, tmp_path / "plain", "char", workers=0)
    assert not caplog.records
    for name in ("b.txt.bz2", "c.txt.BZ2", "d.pdf", "LICENSE", ".hidden.pdf"):
        (folder / name).write_bytes(b"?")
    prepare(folder, tmp_path / "c", "char", workers=0)
    [message] = caplog.messages
    assert message.endswith("texts: left out files with endings of no text: 2 .bz2, 1 without an ending, 1 .pdf")
