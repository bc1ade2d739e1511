"""The fast path of encoding against the library: the same ids, words and letters, remembered or not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.shared_data import DATA
from tests.text.tokenizer.tokenizer_examples import (
    KOREAN,
    SPECS,
    TEXTS,
    mixed,
    trained,
)

from etude.errors import UserError
from etude.text.prepare.sentence_starts import find_sentence_starts
from etude.text.tokenizer import pre_tokenization
from etude.text.tokenizer.batch_encoder import BatchEncoder, EncodedBatch, is_split_at_space
from etude.text.tokenizer.text_batch import TextBatch
from etude.text.tokenizer.tokenizer import Tokenizer, encode_flat
from etude.text.tokenizer.word_cache import SpanList


@pytest.mark.parametrize(
    "spec",
    [*SPECS, "wordpiece:300,lower", "word:300,lower", "unigram:1500,form=nfkc,lower", "bpe:1500", "bytebpe:400,lower"],
)
@given(texts=st.lists(mixed.filter(bool), min_size=1, max_size=6))
@example(texts=["DON'T! I'M; we'Ve, it's O'Neil's"])  # lower case comes before the cut behind 't
@settings(max_examples=25, deadline=None)
def test_remembered_words_give_the_librarys_ids(spec: str, texts: list[str]) -> None:
    _same_as_library(trained(spec), texts)


def _encode(encoder: BatchEncoder, texts: list[str]) -> EncodedBatch:
    batch = TextBatch(texts)
    return encoder.encode(batch, find_sentence_starts(batch))


def _same_as_library(tokenizer: Tokenizer, texts: list[str]) -> None:
    texts = [tokenizer.normalise(text) for text in texts]
    assert is_split_at_space(tokenizer)
    encoder = BatchEncoder(tokenizer, 1 << 20)
    flat = encode_flat(tokenizer.backend, texts)
    for _ in range(2):  # computed, then remembered
        encoded = _encode(encoder, texts)
        assert np.array_equal(encoded.ids, flat.ids)
        assert np.array_equal(encoded.word_starts, flat.word_starts)
        firsts = np.cumsum(flat.lengths) - flat.lengths
        assert np.array_equal(encoded.nonempty, np.flatnonzero(flat.lengths))
        assert np.array_equal(encoded.documents, firsts[encoded.nonempty])
        assert set(encoded.documents.tolist()) <= set(encoded.sentences.tolist())
        if tokenizer.word_level:
            places = [*encoded.letters.tolist(), len(encoded.surfaces)]
            number = 0
            for text, start, length in zip(texts, firsts, flat.lengths, strict=True):
                for a, b in flat.offsets[start : start + length].tolist():
                    assert encoded.surfaces[places[number] : places[number + 1]] == text[a:b].encode()
                    number += 1


@pytest.mark.parametrize(
    "spec",
    [
        "wordpiece:300",
        "wordpiece:300,lower",
        "word:300",
        "bpe:400",
        "bytebpe:400",
        "bpe:400,lower",
        "bytebpe:400,lower",
    ],
)
def test_every_common_character_is_cut_as_the_library_cuts_it(spec: str) -> None:
    tokenizer = trained(spec) if spec in SPECS else Tokenizer.train(spec, TEXTS)
    pre_tokenizer = pre_tokenization.build_pre_tokenizer(tokenizer)
    assert pre_tokenizer is not None
    ranges = [range(0x21, 0x180), range(0x2010, 0x2030), range(0x3008, 0x3010), range(0xAC00, 0xD7A4, 97), [0xD7A3]]
    codes = [chr(code) for some in ranges for code in some]
    pieces = [f" a{letter}b1{letter}{letter}2" for letter in codes]
    pieces += ["\nThe", " 's", " don't", " DON'T", " we'Ve", " we'vE", " a_b", " 1,000.5"]
    known = [piece for piece in pieces if pre_tokenizer.split(piece) is not None]
    assert len(known) > 200
    for piece in known:
        words = pre_tokenizer.to_model_inputs(
            SpanList.join([word.encode() for word in pre_tokenizer.split(piece) or []])
        )
        normal = tokenizer.backend.normalizer.normalize_str(piece)
        assert words == [word for word, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str(normal)], piece


@pytest.mark.parametrize(
    "spec", ["wordpiece:300", "wordpiece:300,lower", "word:300", "bpe:400", "bytebpe:400", "bytebpe:400,lower"]
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", " ", "\n", "\n ", "  ", " \n", "\n\n", "\t", "\u3000"]),
            st.text("abstmdrevlASTVEZ09'’.,-_(é가힣漢😀½", max_size=8),
        )
        .map("".join)
        .filter(bool),
        min_size=1,
        max_size=8,
    )
)
@example(pieces=["x'", "season"])  # an ending that is in the piece behind
@example(pieces=["x'r", "e", "'", "s"])
@settings(max_examples=40, deadline=None)
def test_pieces_are_cut_as_one_by_one(spec: str, pieces: list[str]) -> None:
    tokenizer = trained(spec)
    pre_tokenizer = pre_tokenization.build_pre_tokenizer(tokenizer)
    assert pre_tokenizer is not None
    words, counts, is_common = pre_tokenizer.split_pieces(SpanList.join([piece.encode() for piece in pieces]))
    expected = [pre_tokenizer.split(piece) for piece in pieces]
    assert is_common.tolist() == [split is not None for split in expected]
    assert counts.tolist() == [len(split or ()) for split in expected]
    assert words.decode() == [word for split in expected for word in split or ()]
    if len(words) and not tokenizer.word_level:
        words = words.select(np.arange(len(words)))
        assert pre_tokenizer.find_plain(words).tolist() == [word.lstrip(" ").isalnum() for word in words.decode()]


def test_a_full_memory_forgets_and_still_answers() -> None:
    tokenizer = trained("bpe:400")
    encoder = BatchEncoder(tokenizer, 20_000)  # some sixty words
    texts = [" ".join(f"w{n * 7 % 400}x{n % 13}" for n in range(start, start + 60)) for start in range(0, 900, 60)]
    for text in texts * 2:
        flat = encode_flat(tokenizer.backend, [text])
        assert np.array_equal(_encode(encoder, [text]).ids, flat.ids)
        assert len(encoder.piece_cache) <= 1024 and len(encoder.word_cache) <= 1024


def test_a_vocabulary_without_a_token_for_unknown_words_is_explained() -> None:
    content = json.loads(trained("word:300").content)
    del content["model"]["vocab"]["[UNK]"]
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[UNK]"]
    tokenizer = Tokenizer(json.dumps(content))
    for text in ("zebra", "zebra 漢"):  # by the cache, and by the library
        with pytest.raises(UserError, match="fails on a text"):
            _encode(BatchEncoder(tokenizer, 1 << 20), [text])


def test_tokenizers_that_join_across_space_take_the_librarys_way() -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    vocabulary = {"▁a": 0, "▁": 1, "b": 2, "<unk>": 3, "a": 4}
    backend = Backend(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(backend.to_str())
    assert not is_split_at_space(tokenizer)
    text = "a b. A a\nb a"
    encoded = _encode(BatchEncoder(tokenizer, 1 << 20), [text])
    assert np.array_equal(encoded.ids, tokenizer.encode(text).ids)
    assert len(encoded.sentences) == 3


def test_spaces_that_a_normalizer_adds_join_those_of_the_text() -> None:
    """BERT's puts spaces around Chinese letters, which byte-level pre-tokenization keeps."""
    texts = ["漢字  a 漢 字\tb", "a\0 b\x01  c"]
    content = json.loads(Tokenizer.train("bytebpe:300", ["a   b    c\n"] * 9).content)  # has tokens of several spaces
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    content["normalizer"] = {**bert, "strip_accents": None, "lowercase": True}
    tokenizer, batch = Tokenizer(json.dumps(content)), TextBatch(texts)
    encoded = BatchEncoder(tokenizer, 1 << 16).encode(batch, batch.bounds[:-1])
    assert encoded.ids.tolist() == encode_flat(tokenizer.backend, texts).ids.tolist()


def test_options_that_an_older_file_has_not_are_those_of_the_library() -> None:
    """Files of byte-level BPE are published that are older than `use_regex`; others leave out `strip_accents`."""
    texts = ["Don't go, é 안녕하세요!"] * 9
    for spec, place in (
        ("bytebpe:300", ("pre_tokenizer", "use_regex")),
        ("wordpiece:80,lower", ("normalizer", "normalizers", 1, "strip_accents")),
        ("wordpiece:80,lower", ("normalizer", "type")),
    ):
        whole = Tokenizer.train(spec, texts)
        content = json.loads(whole.content)
        part = content
        for name in place[:-1]:
            part = part[name]
        del part[place[-1]]
        older, batch = Tokenizer(json.dumps(content)), TextBatch(texts)
        encoded = BatchEncoder(older, 1 << 16).encode(batch, batch.bounds[:-1])
        assert encoded.ids.tolist() == encode_flat(older.backend, texts).ids.tolist()
        if place[-1] != "strip_accents":  # whose absence means something else than what is trained here
            assert older.components == whole.components


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = DATA / "vocab"
    if not folder.is_dir():
        pytest.skip("the published vocabularies are not here")
    for name, target in (
        ("bert_uncased_vocab.txt", "uncased.txt"), ("bert_cased_vocab.txt", "cased.txt"),
        ("encoder.json", "encoder.json"), ("vocab.bpe", "vocab.bpe"),
    ):  # fmt: skip
        (tmp_path / target).write_bytes(gzip.decompress((folder / f"{name}.gz").read_bytes()))
    return tmp_path


def test_published_vocabularies_encode_as_their_makers_do(published: Path) -> None:
    uncased = Tokenizer.open(published / "uncased.txt")
    assert uncased.vocab == 30522 and uncased.kind == "wordpiece"
    assert [uncased.token(n) for n in uncased.encode("Unaffable café's").ids] == [
        "una",
        "##ffa",
        "##ble",
        "cafe",
        "'",
        "s",
    ]
    assert uncased.special.start == 101 and uncased.special.separator == 102 and uncased.special.mask == 103
    cased = Tokenizer.open(published / "cased.txt")
    assert cased.vocab == 28996 and "Hello" in [cased.token(n) for n in cased.encode("Hello").ids]
    gpt2 = Tokenizer.open(published / "encoder.json")
    assert gpt2.vocab == 50257 and gpt2.kind == "bytebpe" and gpt2.special.end == 50256
    assert gpt2.encode("Hello world").ids.tolist() == [15496, 995]
    korean = KOREAN[0]
    assert gpt2.decode(gpt2.encode(korean).ids) == korean
    for tokenizer in (uncased, cased, gpt2):
        _same_as_library(tokenizer, [*TEXTS, " leading space", "trailing \n"])
