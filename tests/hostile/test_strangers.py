"""Attacks by files of the newer formats: each is one message, before it takes memory or minutes."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.graph.entity_table import load_entity_table
from etude.graph.readers.base import ReadSettings as GraphReadSettings
from etude.graph.readers.base import SkipCounts
from etude.graph.readers.formats import describe_graph_file, read_triples
from etude.hub.weights import read_tensors
from etude.models.transformer import Settings
from etude.recipes.schema import Recipe
from etude.text.prepare.readers import ReadSettings
from etude.text.prepare.tmx import DEEPEST, LARGEST_TOKEN, LARGEST_UNIT
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.hostile.targets import read_text

UNIT = b'<tu><tuv xml:lang="en"><seg>red</seg></tuv><tuv xml:lang="ko"><seg>x</seg></tuv></tu>'
PAIRS = ReadSettings(pairs=("en", "ko"))


def read_packed(folder: Path, *parts: bytes) -> None:
    path = folder / "x.tmx.gz"
    with gzip.open(path, "wb", 1) as file:
        file.writelines(parts)
    read_text(path, PAIRS)


# --- translation memories -----------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["foo", "utf-7", "cp949", "hex", "idna", "punycode", "undefined"])
def test_an_encoding_that_is_not_read_is_one_message(tmp_path: Path, encoding: str) -> None:
    """It was a LookupError, a ValueError or a UnicodeError; and many Korean files are cp949."""
    path = tmp_path / "x.tmx"
    path.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?><tmx><body>'.encode() + UNIT + b"</body></tmx>")
    with pytest.raises(UserError, match=r"x\.tmx: its encoding is not read.*Convert the file to UTF-8"):
        read_text(path, PAIRS)


@pytest.mark.parametrize(
    ("start", "filling", "message"),
    [
        (b"<tu><tuv><seg>", b"a" * LARGEST_UNIT, "a unit has more than 16 million characters"),
        (b'<tu x="', b"a" * LARGEST_TOKEN, "a tag or a comment has more than 4 MB"),
        (b"<!-- ", b"a" * LARGEST_TOKEN, "a tag or a comment has more than 4 MB"),
        (b"", b"<a>" * DEEPEST, "more than 256 elements in each other"),
    ],
)
def test_what_would_fill_the_memory_is_refused(tmp_path: Path, start: bytes, filling: bytes, message: str) -> None:
    """A megabyte of .tmx.gz took two gigabytes and more, or minutes."""
    begin = time.monotonic()
    with pytest.raises(UserError, match=rf"x\.tmx\.gz, line 1: {message}"):
        read_packed(tmp_path, b"<tmx><body>", start, filling, b" " * (1 << 17), b"a" * (1 << 17))
    assert time.monotonic() - begin < 30


def test_units_of_a_long_file_are_counted_each(tmp_path: Path) -> None:
    read_packed(tmp_path, b"<tmx><body>", UNIT.replace(b"red", b"red" * 100_000) * 60, b"</body></tmx>")


# --- vectors of entities, graphs ----------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"3 99999999999999999999999\nann 0.5 1\n", b"9" * 5000 + b" 2\nann 0.5 1\n",
                                     b"2 " + b"9" * 5000 + b"\nann 0.5 1\n"])  # fmt: skip
def test_numbers_of_a_vector_file_are_one_message(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v.vec").write_bytes(content)
    with pytest.raises(UserError, match=r"v\.vec:[12]"):
        load_entity_table(tmp_path / "v.vec")


def test_rows_of_openke_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "entity2vec.vec").write_bytes(b"1 2\n3 4\n")
    (tmp_path / "entity2id.txt").write_bytes(b"a\t" + b"9" * 5000 + b"\n")
    with pytest.raises(UserError, match=r"entity2id\.txt:1: expected a name, a tab and a row below 2"):
        load_entity_table(tmp_path)


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "v.vec.gz", "wb", 1) as file:
        for _ in range(20):
            file.write(b"a" * (1 << 20))
    with pytest.raises(UserError, match=r"v\.vec\.gz:1: the line is longer than 16 MB"):
        load_entity_table(tmp_path / "v.vec.gz")


@pytest.mark.parametrize("facts", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_facts_of_conceptnet_are_one_message(tmp_path: Path, facts: str) -> None:
    start = "/a/[/r/IsA/,/c/en/cat/,/c/en/animal/]\t/r/IsA\t/c/en/cat\t/c/en/animal\t"
    (tmp_path / "c.csv").write_text(f"{start}{facts}\n")
    with pytest.raises(UserError, match=r"c\.csv:1: the last column is no JSON object with a weight"):
        list(read_triples(describe_graph_file(tmp_path / "c.csv"), GraphReadSettings(), SkipCounts()))


def len_of(number: int) -> str:
    return f"{len(str(number))} digits"


# --- published models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "3",
                                     '{"weight_map": {"a": 3, "b": "x"}}', '{"weight_map": "abc"}',
                                     '{"weight_map": {"a": "../x"}}',
                                     json.dumps({"weight_map": {"a": "x" * 5000}})])  # fmt: skip
def test_an_index_of_weights_is_checked(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UserError, match=r"index\.json"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("width", [10**9 + 7, 10**15 + 1, 10**400 + 1], ids=len_of)
def test_a_width_that_heads_do_not_divide_is_refused_at_once(width: int) -> None:
    """All numbers below the width were tried: seven minutes for a config of hidden_size 1e9, and no end for 1e15."""
    with pytest.raises(ValueError, match="do not divide width"):
        Settings(width=width, heads=12, layers=1, context=8)


def test_a_tokenizer_that_fails_on_a_text_is_one_message() -> None:
    """The library's bare Exception, or its panic, was a traceback."""
    content = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}}
    tokenizer = Tokenizer(json.dumps(content))
    with pytest.raises(UserError, match="The tokenizer fails on a text"):
        tokenizer.encode("b")


@pytest.mark.parametrize("question", ["x" * 5000, "x\0y", "/"])
def test_a_question_that_is_no_file_is_one_message(question: str) -> None:
    from etude.verbs.show import _read_question

    with pytest.raises(UserError, match="There is no file"):
        _read_question(question)


def test_a_question_in_another_encoding_is_one_message(tmp_path: Path) -> None:
    from etude.verbs.show import _read_question

    (tmp_path / "q.json").write_bytes('{"question": "집"}'.encode("cp949"))
    with pytest.raises(UserError, match=r"q\.json: this is not one JSON object"):
        _read_question(tmp_path / "q.json")


def test_a_tokenizer_with_a_long_name_is_one_message() -> None:
    """The file system's refusal was a traceback."""
    with pytest.raises(UserError, match="tokenizer"):
        Recipe.load("bert-toy", {"tokenizer": "wordpiece:1000," + "x" * 5000}).resolve()
