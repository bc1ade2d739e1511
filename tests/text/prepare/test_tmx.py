"""Translation memories: units by language, codes dropped, entities refused, places of what is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import etude
from etude.errors import UserError
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.tmx import read_units

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header segtype="sentence"/><body>\n'
UNIT = '<tu><tuv xml:lang="{0}"><seg>{1}</seg></tuv><tuv xml:lang="{2}"><seg>{3}</seg></tuv></tu>\n'
TAIL = "</body></tmx>\n"


def units(text: str | bytes, names: tuple[str, str] = ("en", "ko"), step: int = 7) -> list[tuple[str, str]]:
    data = text if isinstance(text, bytes) else text.encode()
    pieces = iter([data[start : start + step] for start in range(0, len(data), step)])
    return [(unit[names[0]], unit[names[1]]) for unit in read_units("m.tmx", lambda _: next(pieces, b""), names)]


def test_units_are_read_by_language() -> None:
    text = (
        HEAD
        + UNIT.format("en-US", "A &amp; B.", "ko_KR", "가 <hi>나</hi>.")
        + UNIT.format("KO", "둘", "EN", "two")
        + TAIL
    )
    assert units(text) == [("A & B.", "가 나."), ("two", "둘")]
    assert units(text, ("ko", "en")) == [("가 나.", "A & B."), ("둘", "two")]
    old = text.replace("xml:lang", "lang").replace("UTF-8", "UTF-16")
    assert units(old.encode("utf-16")) == [("A & B.", "가 나."), ("two", "둘")]


def test_codes_of_the_format_are_no_text() -> None:
    segment = 'Press <bpt i="1">&lt;b&gt;<sub>x</sub></bpt>OK<ept i="1">&lt;/b&gt;</ept><ph>{0}</ph>.'
    assert units(HEAD + UNIT.format("en", segment, "ko", "확인") + TAIL) == [("Press OK.", "확인")]


def test_what_is_wrong_is_told_with_its_place() -> None:
    good = UNIT.format("en", "a", "ko", "가")
    with pytest.raises(UserError, match=r"m.tmx, line 4: the unit has no text in 'ko' \(its languages: en, de\)"):
        units(HEAD + good + UNIT.format("en", "b", "de", "c") + TAIL)
    with pytest.raises(UserError, match=r"m.tmx, line 4: not readable as TMX"):
        units(HEAD + good + "<tu><tuv></tu>" + TAIL)
    with pytest.raises(UserError, match="not readable as TMX"):
        units(HEAD + good)
    with pytest.raises(UserError, match=r"m.tmx, line 1: declares an entity"):
        units('<!DOCTYPE tmx [<!ENTITY a "aaaa">]><tmx/>')


def test_a_memory_becomes_a_corpus_of_pairs(tmp_path: Path) -> None:
    body = "".join(UNIT.format("en", f"word {number}", "ko", f"낱말 {number}") for number in range(40))
    (tmp_path / "m.tmx.gz").write_bytes(gzip.compress((HEAD + body + TAIL).encode()))
    etude.prepare(tmp_path / "m.tmx.gz", out=tmp_path / "c", tokenizer="bytebpe:300", pairs="en,ko", valid=0.0)
    corpus = Corpus.open(tmp_path / "c")
    assert corpus.pairs == ("en", "ko") and len(corpus.sentences) // 2 == 40
    with pytest.raises(UserError, match="--pairs en,ko"):
        etude.prepare(tmp_path / "m.tmx.gz", out=tmp_path / "d", tokenizer="bytebpe:300")
