"""Corpora of pairs: two sentences a document, aligned whatever the format, and every bad line told with its place."""

from __future__ import annotations

import gzip
import json
import time
from itertools import pairwise
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.pairs import is_uneven, join_pair, parse_pairs
from etude.text.prepare.prepare import prepare
from etude.world import World

PAIRS = list(World(0).pairs(60))


def decoded(corpus: Corpus) -> list[tuple[str, str]]:
    """The pairs of a corpus as text."""
    bounds = list(corpus.sentences)
    sides = [corpus.tokenizer.decode(corpus.tokens(a, b)) for a, b in pairwise(bounds)]
    return list(zip(sides[::2], sides[1::2], strict=True))


def write(folder: Path, form: str, pairs: list[tuple[str, str]] = PAIRS) -> list[Path]:
    folder.mkdir(exist_ok=True)
    if form == "jsonl":
        path = folder / "p.jsonl"
        path.write_text("".join(json.dumps({"en": en, "ko": ko, "id": 1}) + "\n" for en, ko in pairs))
        return [path]
    if form == "tsv":
        path = folder / "p.tsv"
        path.write_text("id\ten\tko\n" + "".join(f"7\t{en}\t{ko}\n" for en, ko in pairs))
        return [path]
    paths = [folder / f"train.{side}{'.gz' if form == 'gz' else ''}" for side in ("en", "ko")]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        data = "".join(line + "\n" for line in side).encode()
        path.write_bytes(gzip.compress(data) if form == "gz" else data)
    return paths


@pytest.mark.parametrize("spec", ["wordpiece:300", "bytebpe:400", "bpe:300", "char"])
def test_every_form_gives_the_same_pairs(tmp_path: Path, spec: str) -> None:
    forms = ["jsonl", "tsv", "two", "gz"] if spec == "bytebpe:400" else ["tsv"]
    for form in forms:
        corpus = prepare(write(tmp_path / form, form), tmp_path / f"{form}-c", spec, valid=0.1, pairs="en,ko")
        valid = Corpus.open(tmp_path / f"{form}-c", "valid")
        assert corpus.pairs == ("en", "ko")
        assert len(corpus.sentences) == 2 * len(corpus.documents)
        assert len(corpus.documents) + len(valid.documents) == len(PAIRS)
        if spec == "bytebpe:400":  # spells everything, so that texts come back exactly
            assert sorted(decoded(corpus) + decoded(valid)) == sorted(PAIRS)
    corpus.open(corpus.folder, verify=True)


def test_sides_are_encoded_as_texts_of_their_own(tmp_path: Path) -> None:
    """No line break between the sides becomes a token: what is read in training is what translation will read."""
    corpus = prepare(write(tmp_path / "d", "two"), tmp_path / "c", "bytebpe:400", valid=0.0, pairs="en,ko")
    for number, pair in enumerate(PAIRS):
        for side in (0, 1):
            start, stop = corpus.sentences[2 * number + side], corpus.sentences[2 * number + side + 1]
            assert corpus.tokens(start, stop).tolist() == list(corpus.tokenizer.encode(pair[side]).ids)


def test_the_manifest_names_both_files(tmp_path: Path) -> None:
    paths = write(tmp_path / "d", "two")
    corpus = prepare(str(paths[0]), tmp_path / "c", "char", pairs="en,ko")
    files = [file for source in corpus.manifest["sources"] for file in source["files"]]
    assert [file["path"] for file in files] == [str(path) for path in paths]
    assert all(len(file["sha256"]) == 64 for file in files)


def test_quotation_marks_of_a_tsv_are_text(tmp_path: Path) -> None:
    pairs = [('"Yes', "네"), ('No" she said', "아니요"), *PAIRS[:20]]
    corpus = prepare(write(tmp_path / "d", "tsv", pairs), tmp_path / "c", "bytebpe:400", valid=0.0, pairs="en,ko")
    assert decoded(corpus) == pairs


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.tsv", "en\tko\na\t\n", r"p.tsv, row 1: 'ko' is empty"),
        ("p.tsv", "en\tko\na\tb\nc\n", r"p.tsv, line 3: the row has 1 of 2 columns, 'ko' is missing"),
        ("p.tsv", "en\tko\na\tb\tc\n", r"p.tsv, line 2: the row has 3 columns, the header 2"),
        ("p.tsv", "en\tkr\na\tb\n", r"p.tsv has no column 'ko' to read text from \(--pairs\)"),
        ("p.jsonl", '{"en": "a", "ko": "b"}\n{"en": "a"}\n', r"p.jsonl, line 2: no field 'ko'"),
        ("p.jsonl", '{"en": "a", "ko": 3}\n', r"p.jsonl, line 1: the field 'ko' is 3, not text"),
        ("p.txt", "a\n", r"p.txt is plain text, and pairs come from two files"),
        ("p.en", "a\n", r"p.en has no target side: there is no file .*p.ko"),
        ("p.ko", "a\n", r"p.ko has no source side: name .*p.en, too"),
    ],
)
def test_bad_lines_are_told_with_their_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / name, tmp_path / "c", "char", pairs="en,ko")
    assert not (tmp_path / "c").exists() and not (tmp_path / "c.partial").exists()


def test_unequal_line_counts_and_empty_sides_of_two_files(tmp_path: Path) -> None:
    (tmp_path / "p.en").write_text("a\nb\nc\n")
    (tmp_path / "p.ko").write_text("가\n나\n")
    with pytest.raises(UserError, match=r"p.ko ends after line 2, and .*p.en goes on"):
        prepare(tmp_path / "p.en", tmp_path / "c", "char", pairs="en,ko")
    (tmp_path / "p.ko").write_text("가\n\n다\n")
    with pytest.raises(UserError, match=r"p.en, row 2: 'ko' is empty"):
        prepare(tmp_path / "p.en", tmp_path / "c", "char", pairs="en,ko")


def test_a_damaged_side_is_the_one_that_is_named(tmp_path: Path) -> None:
    for damaged, whole in (("en", "ko"), ("ko", "en")):
        paths = {path.suffixes[0][1:]: path for path in write(tmp_path / damaged, "gz")}
        packed = paths[damaged].read_bytes()
        paths[damaged].write_bytes(packed[: len(packed) // 2])
        with pytest.raises(UserError, match="damaged") as caught:
            prepare(list(paths.values()), tmp_path / "c", "char", pairs="en,ko")
        assert str(paths[damaged]) in str(caught.value) and str(paths[whole]) not in str(caught.value)


def test_a_side_without_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"en": "a b", "ko": "\\u200b"}\n')
    with pytest.raises(UserError, match=r"p.jsonl, line 1: the target .* has no token"):
        prepare(tmp_path / "p.jsonl", tmp_path / "c", "wordpiece:100,lower", pairs="en,ko")


def test_names_of_pairs_and_uneven_sides() -> None:
    assert parse_pairs("en, ko") == ("en", "ko")
    for wrong in ("en", "en,en", "en,", "a,b,c"):
        with pytest.raises(UserError, match="pairs names two fields"):
            parse_pairs(wrong)
    assert is_uneven("a b\n" + "word " * 20) and not is_uneven("a\nbcdef") and not is_uneven("\n".join(PAIRS[0]))


def test_the_world_tells_the_same_content_in_both_languages() -> None:
    pairs = list(World(0).pairs(300))
    assert len(set(pairs)) == 300 and pairs[:60] == PAIRS
    assert all(en.isascii() and any("가" <= letter <= "힣" for letter in ko) for en, ko in pairs)


def test_sides_are_joined_in_time_whatever_white_space_they_hold() -> None:
    start = time.process_time()
    source = "a" + " " * 100_000 + "b \n\r\n \u3000c\r"
    assert join_pair([source, "  d\re "], ("en", "ko"), "a.jsonl, line 1") == "a" + " " * 100_000 + "b c\nd e"
    assert time.process_time() - start < 20  # it took 90 s


def test_sides_inside_an_object_are_called_by_their_own_names(tmp_path: Path) -> None:
    rows = [
        {"translation": {"en": f"cat {n}", "ko": f"고양이 {n}"}, "a": {"text": "x"}, "b": {"text": "y"}}
        for n in range(9)
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for names, sides in (("translation.en,translation.ko", ("en", "ko")), ("a.text,b.text", ("a.text", "b.text"))):
        corpus = prepare(tmp_path / "p.jsonl", tmp_path / sides[0], "char", pairs=names, valid=0, workers=0)
        assert corpus.pairs == sides and len(corpus.documents) == 9
