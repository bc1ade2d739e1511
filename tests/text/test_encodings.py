"""Text that is not UTF-8: recognised in messages, and read where its encoding is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import etude
from etude.errors import UserError
from etude.tasks import classify
from etude.text.encodings import check_encoding, guess_encoding
from etude.text.prepare.prepare import prepare

WESTERN = "The café is naïve — “quoted” text costs €5. It’s fine.\n\nÜber allem: très bien.\n\n"
KOREAN = "고양이가 매트 위에 앉았다. 개는 마당에서 잔다.\n\n"


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        (WESTERN, "cp1252", "CP1252"),
        ("He said “quite so” and “never”.", "cp1252", "CP1252"),  # marks of print alone, which are syllables of CP949
        ("caf\xe9 na\xefve", "latin-1", "CP1252"),
        (KOREAN, "cp949", "CP949"),
        (KOREAN, "euc_kr", "CP949"),
        (KOREAN, "utf-16", "UTF-16"),
        ("Привет, как дела?", "cp1251", ""),
        ("plain", "ascii", ""),
    ],
)
def test_an_encoding_is_recognised(text: str, encoding: str, name: str) -> None:
    assert guess_encoding(text.encode(encoding) * 3) == name


def test_utf8_with_a_damaged_byte_is_taken_for_nothing_else() -> None:
    """Read as CP1252, as a guess once advised, every letter of it with an accent would be two others."""
    text = "The café’s résumé – it’s here. "
    assert guess_encoding(text.encode() * 3 + b"\xff \xe9 ") == ""
    assert guess_encoding((text * 3).encode("cp1252") + "é".encode()) == "CP1252"


@pytest.mark.parametrize(("text", "encoding"), [(WESTERN, "cp1252"), (KOREAN, "cp949"), (KOREAN, "utf-16")])
@pytest.mark.parametrize("packed", [False, True])
def test_named_it_is_read_as_if_it_were_utf8(tmp_path: Path, text: str, encoding: str, packed: bool) -> None:
    """The same corpus, byte for byte; records and tables too."""
    plain, other = tmp_path / "plain.txt", tmp_path / ("other.txt.gz" if packed else "other.txt")
    plain.write_text(text * 200, encoding="utf-8")
    data = (text * 200).encode(encoding)
    other.write_bytes(gzip.compress(data) if packed else data)
    corpora = [
        prepare(str(plain), tmp_path / "a", "char", valid=0.2),
        prepare(str(other), tmp_path / "b", "char", valid=0.2, encoding=encoding),
    ]
    tokens = [corpus.tokens(0, corpus.total).tolist() for corpus in corpora]
    assert tokens[0] == tokens[1] and corpora[0].tokenizer.content == corpora[1].tokenizer.content
    assert corpora[0].bytes == corpora[1].bytes


def test_a_table_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,n\ncafé — naïve “text”,1\nüber,2\n".encode("cp1252"))
    corpus = etude.prepare(str(tmp_path / "a.csv"), out=tmp_path / "c", tokenizer="char", encoding="Windows-1252")
    assert "é" in corpus.tokenizer.decode(corpus.tokens(0, corpus.total))


def test_a_damaged_byte_in_it_can_be_replaced(tmp_path: Path) -> None:
    """`errors` is of every encoding, not of UTF-8 alone; two sides of pairs are read alike."""
    for name in ("a.txt", "a.en", "a.ko"):
        (tmp_path / name).write_bytes("가나다 ".encode("cp949") + b"\xff" + " 라마바".encode("cp949"))
    for source, pairs in (("a.txt", None), ("a.en", "en,ko")):
        with pytest.raises(UserError, match=r"is not cp949: a byte near 7 is invalid.*--errors replace"):
            prepare(str(tmp_path / source), tmp_path / "c", "char", encoding="cp949", pairs=pairs)
        corpus = prepare(
            str(tmp_path / source), tmp_path / source[2:], "char", encoding="cp949", pairs=pairs, errors="replace"
        )
        assert corpus.tokenizer.decode(corpus.tokens(0, corpus.total)).startswith("가나다 \ufffd 라마바")


def test_messages_name_the_encoding_and_the_option(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes((WESTERN * 9).encode("cp1252"))
    with pytest.raises(
        UserError, match=r"is not UTF-8: byte 7.*CP1252 \(Windows-1252.*--encoding cp1252.*--errors rep"
    ):
        etude.prepare(str(file), out=tmp_path / "c", tokenizer="char")
    with pytest.raises(UserError, match=r"is not cp949: a byte near \d+"):
        etude.prepare(str(file), out=tmp_path / "c", tokenizer="char", encoding="cp949")
    with pytest.raises(UserError, match=r"no encoding of text 'cp1225'. Did you mean 'cp1252'"):
        etude.prepare(str(file), out=tmp_path / "c", tokenizer="char", encoding="cp1225")
    (tmp_path / "a.csv").write_bytes("text,label\ncafé was good,1\nbad “place”,0\n".encode("cp1252"))
    with pytest.raises(UserError, match=r"a\.csv:2: not UTF-8 at byte 3.*iconv -f CP1252 .*a\.csv > conv") as caught:
        classify.read(tmp_path / "a.csv")
    assert "--encoding" not in str(caught.value), "an option of texts alone"
    assert check_encoding("UTF-8") is None and check_encoding("Windows-1252") == "cp1252"
    for name in ("base64", "idna", "punycode", "unicode_escape", "undefined"):
        with pytest.raises(UserError, match=f"no encoding of text '{name}'.*such as cp1252, cp949"):
            check_encoding(name)
