"""Files of tagged sentences: the shared tasks' columns, CoNLL-U, JSON; what is wrong is told with its line."""

from __future__ import annotations

import gzip
import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.tasks.data.conll import DOCUMENT, Sentence, dump, sentences

CONLL03 = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP O
. . O O

-DOCSTART- -X- -X- O

# . O O
1 CD I-NP O

"""

CONLLU = """# newdoc id = a
# sent_id = a-1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\tV\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_
2.1\tya\tya\tADV\tR\t_\t_\t_\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\tS\t_\t5\tcase\t_\t_
4\tel\tel\tDET\tD\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\tN\t_\t1\tobl\t_\t_

# sent_id = a-2
1\t#\t#\tSYM\tF\t_\t0\troot\t_\t_
2\tcon espacio\t_\tX\tX\t_\t1\tdep\t_\t_
"""


def made(tmp_path: Path, text: str | bytes, name: str = "a.conll") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def all_of(path: Path) -> list[Any]:
    return [record for _, record in sentences(path)]


def test_conll_2003(tmp_path: Path) -> None:
    path = made(tmp_path, CONLL03)
    found = list(sentences(path))
    assert [where for where, _ in found] == [f"{path}:3", f"{path}:11"]
    first, second = (record for _, record in found)
    assert first["tokens"] == ["EU", "rejects", "German", "call", "."]
    assert first["ner"] == first["3"] == first["-1"] == ["I-ORG", "O", "I-MISC", "O", "O"]
    assert first["pos"] == first["1"] == ["NNP", "VBZ", "JJ", "NN", "."] and first["chunk"] == first["-2"]
    assert second["tokens"] == ["#", "1"], "a # with all its columns is a word"
    assert isinstance(first, Sentence) and first.place(2) == f"{path}:5"


def test_tabs_spaces_line_ends_and_a_last_line_without_one(tmp_path: Path) -> None:
    wanted = [["New York", "is\u00a0big"], ["한국"]]
    tabs = made(tmp_path, "\ufeffNew York\tB-LOC\r\nis\u00a0big\tO\r\n\t\r\n\r\n한국\tB-LOC")
    assert [record["tokens"] for record in all_of(tabs)] == wanted
    spaces = made(tmp_path, "New  B-LOC\nis\u00a0big   O\n   \n한국 B-LOC\n", "b.txt")
    assert [record["tokens"] for record in all_of(spaces)] == [["New", "is\u00a0big"], ["한국"]]
    assert [record["tags"] for record in all_of(spaces)] == [["B-LOC", "O"], ["B-LOC"]]
    words = made(tmp_path, "one\ntwo\n\nthree\n", "words.txt")
    assert [record["tokens"] for record in all_of(words)] == [["one", "two"], ["three"]]
    assert "tags" not in all_of(words)[0]


def test_endings_count_in_any_case(tmp_path: Path) -> None:
    lines = made(tmp_path, json.dumps({"tokens": ["a"], "tags": ["O"]}) + "\n", "a.JSONL")
    assert all_of(lines) == [{"tokens": ["a"], "tags": ["O"]}]
    packed = made(tmp_path, gzip.compress(b"a O\n"), "a.CONLL.GZ")
    assert [record["tokens"] for record in all_of(packed)] == [["a"]]
    with pytest.raises(UserError, match=r"not from '\.csv'"):
        all_of(made(tmp_path, "tokens,tags\n", "a.CSV"))


def test_comments_are_told_from_words(tmp_path: Path) -> None:
    path = made(tmp_path, "# id 17 domain=en\nParis B-LOC\n# O\n\n# id 18\n# O\n1 O\n")
    assert [record["tokens"] for record in all_of(path)] == [["Paris", "#"], ["#", "1"]]
    first = made(tmp_path, "# O\n1 O\n", "b.conll")
    assert all_of(first)[0]["tokens"] == ["#", "1"]
    klue = made(tmp_path, "## klue-1\t<경찰:OG> 은\n경\tB-OG\n찰\tI-OG\n \tO\n은\tO\n\n## klue-2\tx\n나\tO\n", "k.tsv")
    assert [record["tokens"] for record in all_of(klue)] == [["경", "찰", " ", "은"], ["나"]]


def test_conllu(tmp_path: Path) -> None:
    for name in ("a.conllu", "a.txt"):
        first, second = all_of(made(tmp_path, CONLLU, name))
        assert first["tokens"] == first["form"] == ["vamos", "nos", "a", "el", "mar"]
        assert first["upos"] == ["VERB", "PRON", "ADP", "DET", "NOUN"] and first["xpos"] == ["V", "P", "S", "D", "N"]
        assert second["tokens"] == ["#", "con espacio"]
    plus = made(tmp_path, "# global.columns = ID FORM UPOS NER\n1\tSeoul\tPROPN\tB-LOC\n", "p.conllup")
    assert all_of(plus)[0]["ner"] == ["B-LOC"] and all_of(plus)[0]["tokens"] == ["Seoul"]


def test_json_lines_and_squeezed_files(tmp_path: Path) -> None:
    line = json.dumps({"chars": ["서", "울"], "ner": ["B-LC", "I-LC"]}, ensure_ascii=False)
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress((line + "\n").encode()))
    assert list(sentences(path)) == [(f"{path}:1", {"chars": ["서", "울"], "ner": ["B-LC", "I-LC"]})]
    for name, squeeze in (("a.conll.gz", gzip.compress), ("a.conll.xz", lzma.compress)):
        assert len(all_of(made(tmp_path, squeeze(CONLL03.encode()), name))) == 2


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a O\nb\nc O\n\nd O\n", 2, "1 columns with spaces"),
        ("a\tO\nb\tO\tx\n\nd\tO\n", 2, "3 columns with tabs"),
        ("a\tO\n\tO\n\nd\tO\n", 2, "the word of this line is empty"),
        (b"a O\nb\xff O\n\nd O\n", 2, "not UTF-8"),
    ],
)
def test_a_bad_sentence_is_told_with_its_line_and_the_next_one_is_read(
    tmp_path: Path, text: str | bytes, line: int, message: str
) -> None:
    path = made(tmp_path, text)
    wrong, good = all_of(path)
    assert isinstance(wrong, UserError) and str(wrong).startswith(f"{path}:{line}: ") and message in str(wrong)
    assert good["tokens"] == ["d"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        all_of(tmp_path / "none.conll")
    with pytest.raises(UserError, match=r"not from '\.csv'"):
        all_of(made(tmp_path, "a,b\n", "a.csv"))
    with pytest.raises(UserError, match="cannot be read"):
        all_of(made(tmp_path, lzma.compress(CONLL03.encode())[:-20], "cut.conll.xz"))
    with pytest.raises(UserError, match="not UTF-8"):
        all_of(made(tmp_path, bytes(range(128, 256)), "binary.conll"))
    with pytest.raises(UserError, match="names 2 columns"):
        all_of(made(tmp_path, "# global.columns = ID FORM\n1\ta\tb\n", "p.conllup"))
    assert all_of(made(tmp_path, "\n\n-DOCSTART- O\n\n", "empty.conll")) == []
    only = all_of(made(tmp_path, "1-2\tal" + "\t_" * 8 + "\n", "only.conllu"))
    assert isinstance(only[0], UserError) and "no words" in str(only[0])


letters = st.characters(exclude_characters="\t\n\r\ufeff", exclude_categories=["Cs"])
words = st.text(letters, min_size=1, max_size=8).filter(
    lambda word: word.strip(" ") and word != DOCUMENT and not (word[0] == "#" and " " in word)
)
tags = st.sampled_from(["O", "B-x", "I-x", "B-한", "I-한"])


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(words, tags, tags), min_size=1, max_size=5), min_size=1, max_size=4))
def test_what_is_written_is_read(data: list[list[tuple[str, str, str]]]) -> None:
    text = "".join(dump(*map(list, zip(*sentence, strict=True))) for sentence in data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.conll"
        path.write_bytes(text.encode())
        found = [(record["tokens"], record["1"], record["tags"]) for _, record in sentences(path)]
    assert found == [tuple(map(list, zip(*sentence, strict=True))) for sentence in data]


def test_words_that_a_file_of_columns_cannot_hold_are_refused() -> None:
    for word in ("", " ", "a\tb", "a\n", DOCUMENT, "# a"):
        with pytest.raises(ValueError, match="cannot be a word"):
            dump(["a", word], ["O", "O"])
