"""Tokenizers: specs, round trips, Korean, given files, determinism, and the fast path against the library."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.text.prepare.sentence_starts import find_sentence_starts
from etude.text.tokenizer import pre_tokenization, training
from etude.text.tokenizer.batch_encoder import BatchEncoder, EncodedBatch, is_split_at_space
from etude.text.tokenizer.text_batch import TextBatch
from etude.text.tokenizer.tokenizer import Tokenizer, encode_flat
from etude.text.tokenizer.word_cache import SpanList

ENGLISH = [
    "The king's three dogs didn't bark at 3.5 p.m. yesterday, did they? “No,” she said; it cost $1,200.",
    "A naïve café owner in Zürich read well-known stories about kings and dogs: low, lower, lowest, newer, newest.",
]
KOREAN = [
    "모스크바 지하철은 1935년 5월 15일에 개통되었으며, 소비에트 연방의 첫 번째 지하철이다.",
    "지하철은 오전 5시 30분에 개장하고, 다음날 오전 1시까지 영업한다. 정말이에요? 그렇습니다!",
]
TEXTS = [*ENGLISH, *KOREAN] * 3
SPECS = ["word:300", "wordpiece:300", "bpe:400", "bytebpe:400", "unigram:300", "char"]
LOSSLESS = ["bpe:1500", "bytebpe:400", "unigram:1500", "char"]
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"

_trained: dict[str, Tokenizer] = {}


def trained(spec: str) -> Tokenizer:
    if spec not in _trained:
        _trained[spec] = Tokenizer.train(spec, TEXTS)
    return _trained[spec]


# Characters that real text mixes: letters of several scripts, jamo, marks, digits, symbols, every kind of space.
letters = st.sampled_from(
    "aAbzéÉßİıſŉǅøΣσς김밥가힣ᄀ\u1161\u11a8漢字かжक\u093f\u0301\u200d🙂_'’“”-–—.,!?…()[]$·«»0123９½²\u00ad\u200b\ufeff"
)
spaces = st.sampled_from(
    [
        "",
        " ",
        " ",
        " ",
        "  ",
        "\n",
        "\n\n",
        " \n",
        "\n ",
        "\t",
        "\t ",
        "\u00a0",
        "\u2028",
        "\x85",
        "\x1c",
        "\r\n",
        "\u3000",
    ]
)
mixed = st.lists(st.tuples(st.text(letters, max_size=8), spaces), max_size=12).map(
    lambda pairs: "".join(a + b for a, b in pairs)
)


@pytest.mark.parametrize("spec", SPECS)
def test_special_tokens_have_the_first_ids(spec: str) -> None:
    tokenizer = trained(spec)
    roles = tokenizer.special
    assert (roles.pad, roles.unknown, roles.start, roles.separator, roles.mask, roles.end) == (0, 1, 2, 3, 4, 5)
    assert [tokenizer.token(number) for number in range(6)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOT]"]
    assert tokenizer.kind == spec.split(":")[0]
    assert tokenizer.word_level == (tokenizer.kind == "word")
    size = spec.partition(":")[2]
    assert tokenizer.vocab <= int(size or 10**6)
    assert sorted(tokenizer.backend.get_vocab().values()) == list(range(tokenizer.vocab))


@pytest.mark.parametrize("spec", LOSSLESS)
@given(text=mixed)
@settings(max_examples=60, deadline=None)
def test_lossless_kinds_give_any_text_back(spec: str, text: str) -> None:
    tokenizer = trained(spec)
    assert tokenizer.decode(tokenizer.encode(text).ids) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("spec", ["word:300", "wordpiece:500"])
def test_word_kinds_give_korean_words_back(spec: str) -> None:
    tokenizer = trained(spec)
    for text in KOREAN:
        ids = tokenizer.encode(text).ids
        assert tokenizer.special.unknown not in ids
        assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("spec", SPECS)
def test_decomposed_hangul_is_the_same_text(spec: str) -> None:
    tokenizer = trained(spec)
    for text in KOREAN:
        decomposed = unicodedata.normalize("NFD", text)
        assert decomposed != text
        assert np.array_equal(tokenizer.encode(decomposed).ids, tokenizer.encode(text).ids)


@pytest.mark.parametrize("spec", ["wordpiece:300,lower", "bpe:1500,lower", "unigram:1500,lower,form=nfkc"])
def test_lower_case_keeps_accents_and_hangul(spec: str) -> None:
    tokenizer = Tokenizer.train(spec, TEXTS)
    assert tokenizer.decode(tokenizer.encode("NAÏVE CAFÉ 지하철").ids) == "naïve café 지하철"


@pytest.mark.parametrize("spec", SPECS)
def test_training_does_not_depend_on_the_order_or_the_process(spec: str) -> None:
    code = (
        "import sys; from etude.text.tokenizer.tokenizer import Tokenizer; import json;"
        "print(Tokenizer.train(sys.argv[1], json.load(sys.stdin)).fingerprint)"
    )
    shuffled = json.dumps(TEXTS[::-1])
    process = subprocess.run(
        [sys.executable, "-c", code, spec], input=shuffled, capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == trained(spec).fingerprint


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("bep:16000", "bpe"), ("bpe", "size"), ("bpe:lots", "number"), ("bytebpe:100", "262"), ("word:3", "at least 7"),
        ("bpe:16000,uper", "lower"), ("char:0", "small"), ("bpe:9999999999", "larger"),
        ("bpe:16__000", "number"), ("bpe:16000_", "number"), ("bpe:" + "9" * 5000, "number"),
        ("wordpiece:7", "least 8"), ("bpe:16000,min=²", "min=N"),
    ],
)  # fmt: skip
def test_a_bad_spec_is_explained(spec: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        training.parse_spec(spec)


@pytest.mark.parametrize("spec", SPECS)
def test_the_smallest_vocabularies_have_their_size(spec: str) -> None:
    kind = spec.split(":")[0]
    smallest = 6 + {"bytebpe": 256, "wordpiece": 2}.get(kind, 1)
    for size in (smallest, smallest + 1, smallest + 5):
        tokenizer = Tokenizer.train(f"{kind}:{size}", TEXTS)
        assert tokenizer.vocab == size or (kind == "wordpiece" and tokenizer.vocab == size - 1)
        assert len(tokenizer.encode(KOREAN[0]))


@pytest.mark.parametrize("kind", ["word", "wordpiece", "bpe", "bytebpe", "unigram"])
def test_what_is_seen_too_rarely_is_left_out(kind: str) -> None:
    texts = ["shore " * 4 + "horse " * 9] * 5  # 20 and 45 times
    pieces = [
        set(Tokenizer.train(f"{kind}:300{rare}", texts).backend.get_vocab()) for rare in (",min=21", ",min=20", "")
    ]
    for vocabulary, is_known in zip(pieces, (False, True, True), strict=True):
        assert any("shore" in piece for piece in vocabulary) == is_known
        assert any("horse" in piece for piece in vocabulary)


@pytest.mark.parametrize("spec", ["bpe:300", "bytebpe:300", "wordpiece:300"])
def test_a_very_long_word_is_learnt_from_in_time(spec: str) -> None:
    """DNA, or encoded data; the library alone takes a minute for it, and hours for a megabyte."""
    letters = np.random.default_rng(0).choice(list("가나다라"), 200_000)
    start = time.process_time()
    tokenizer = Tokenizer.train(spec, ["".join(letters), *TEXTS])
    assert time.process_time() - start < 10
    assert len(tokenizer.encode("가나다라가나다라가나다라")) < 12
    text = "가" * 3 * training.LONGEST_WORD + " 나 " + "." * training.LONGEST_WORD + "다"
    cuts = list(training._cut_long_words([text, "a b", ""]))
    assert "".join(cuts) == text + "a b" and cuts[-2:] == ["a b", ""]
    assert [len(cut) for cut in cuts[:3]] == 3 * [training.LONGEST_WORD]
    almost = " ".join(["a" * (training.LONGEST_WORD - 1)] * 20_000 + ["b" * 2 * training.LONGEST_WORD])
    start = time.process_time()
    assert len(list(training._cut_long_words([almost]))) == 3
    assert time.process_time() - start < 4  # it took 8 s to find no long word among the first


@pytest.mark.parametrize("spec", SPECS)
def test_word_starts_and_offsets(spec: str) -> None:
    tokenizer = trained(spec)
    text = "The dogs didn't bark, 지하철은 漢字!"
    encoding = tokenizer.encode(text)
    words = [text[a:b].strip() for a, b in _words_by_starts(encoding)]
    joined = [word for word in words if word]
    assert {"dogs", "지하철은", ",", "!"} <= set(joined)
    # Chinese has no spaces: each character is a word, unless the tokenizer takes several unknown ones as one
    assert ("漢" in joined) == (spec not in ("word:300", "unigram:300"))
    assert encoding.ids.dtype == np.int32 and encoding.word_starts.dtype == bool
    assert encoding.offsets.shape == (len(encoding), 2)


def _words_by_starts(encoding: object) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for start, (a, b) in zip(encoding.word_starts, encoding.offsets.tolist(), strict=True):  # type: ignore[attr-defined]
        if start or not spans:
            spans.append((a, b))
        else:
            spans[-1] = (spans[-1][0], max(b, spans[-1][1]))
    return spans


def test_special_tokens_in_text_are_letters_unless_asked_for() -> None:
    tokenizer = trained("bpe:1500")
    plain = tokenizer.encode("a [MASK] b")
    assert tokenizer.special.mask not in plain.ids
    assert tokenizer.decode(plain.ids) == "a [MASK] b"
    encoding = tokenizer.encode("a [MASK] b", special=True)
    assert list(encoding.ids).count(tokenizer.special.mask) == 1
    assert tokenizer.decode(encoding.ids, special=False).split() == ["a", "b"]


def test_save_open_and_fingerprint(tmp_path: Path) -> None:
    tokenizer = trained("bpe:400")
    tokenizer.save(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        again = Tokenizer.open(path)
        assert again.fingerprint == tokenizer.fingerprint and again.vocab == tokenizer.vocab
    assert pickle.loads(pickle.dumps(tokenizer)).fingerprint == tokenizer.fingerprint
    assert trained("bytebpe:400").fingerprint != tokenizer.fingerprint
    assert tokenizer.id("[MASK]") == 4 and tokenizer.id("no such token") is None
    with pytest.raises(IndexError):
        tokenizer.token(10**6)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("tokenizer.json", "{}", "not a tokenizer"), ("tokenizer.json", "nonsense", "not a tokenizer"),
        ("vocab.txt", "a\nb\n", r"\[UNK\]"), ("vocab.json", "{}", "merges.txt"), ("other.bin", "x", "not a tokenizer"),
    ],
)  # fmt: skip
def test_a_broken_tokenizer_file_is_explained(tmp_path: Path, name: str, content: str, word: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=word):
        Tokenizer.open(tmp_path / name)


def test_a_byte_order_mark_is_no_part_of_a_token(tmp_path: Path) -> None:
    """Editors on Windows put one before a text; the first token of a vocabulary is often [PAD]."""
    words = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "가", "##나"])
    (tmp_path / "vocab.txt").write_text(words, encoding="utf-8-sig")
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.special.pad == 0 and tokenizer.encode("가나").ids.tolist() == [5, 6]
    letters = {letter: number for number, letter in enumerate(["a", "b", "ab"])}
    (tmp_path / "bpe").mkdir()
    (tmp_path / "bpe" / "vocab.json").write_text(json.dumps(letters), encoding="utf-8-sig")
    (tmp_path / "bpe" / "merges.txt").write_text("#version: 0.2\na b\n", encoding="utf-8-sig")
    assert Tokenizer.open(tmp_path / "bpe").encode("ab").ids.tolist() == [2]


def test_missing_tokenizers_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such"):
        Tokenizer.open(tmp_path / "nothing")
    with pytest.raises(UserError, match="holds no tokenizer"):
        Tokenizer.open(tmp_path)


def test_merges_that_do_not_fit_are_explained(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nbroken\n")
    with pytest.raises(UserError, match="line 3"):
        Tokenizer.open(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na c\n")
    with pytest.raises(UserError, match="does not fit"):
        Tokenizer.open(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    assert Tokenizer.open(tmp_path).vocab == 3


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = SHARED / "vocab"
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


@pytest.mark.parametrize(
    "spec",
    [*SPECS, "wordpiece:300,lower", "word:300,lower", "unigram:1500,form=nfkc,lower", "bpe:1500", "bytebpe:400,lower"],
)
@given(texts=st.lists(mixed.filter(bool), min_size=1, max_size=6))
@example(texts=["DON'T! I'M; we'Ve, it's O'Neil's"])  # lower case comes before the cut behind 't
@settings(max_examples=40, deadline=None)
def test_remembered_words_give_the_librarys_ids(spec: str, texts: list[str]) -> None:
    _same_as_library(trained(spec), texts)


def _encode(encoder: BatchEncoder, texts: list[str]) -> EncodedBatch:
    batch = TextBatch(texts)
    return encoder.encode(batch, find_sentence_starts(batch))


def _same_as_library(tokenizer: Tokenizer, texts: list[str]) -> None:
    texts = [tokenizer.normalise(text) for text in texts]
    assert is_split_at_space(tokenizer)
    encoder = BatchEncoder(tokenizer, 1 << 20)
    for _ in range(2):  # computed, then remembered
        encoded = _encode(encoder, texts)
        flat = encode_flat(tokenizer.backend, texts)
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
            st.text(st.sampled_from([*"abstmdrevlASTVEZ09'’.,-_(é가힣漢😀½"]), max_size=8),
        )
        .map("".join)
        .filter(bool),
        min_size=1,
        max_size=8,
    )
)
@example(pieces=["x'", "season"])  # an ending that is in the piece behind
@example(pieces=["x'r", "e", "'", "s"])
@settings(max_examples=80, deadline=None)
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


@pytest.mark.parametrize("spec", SPECS)
@given(texts=st.lists(mixed, max_size=3))
@settings(max_examples=20, deadline=None)
def test_ids_alone_are_those_of_the_encodings(spec: str, texts: list[str]) -> None:
    tokenizer = trained(spec)
    alone = tokenizer.encode_ids([*texts, "[MASK] cafe\u0301"])
    encodings = tokenizer.encode_batch([*texts, "[MASK] cafe\u0301"])
    assert [ids.tolist() for ids in alone] == [encoding.ids.tolist() for encoding in encodings]
    assert all(ids.dtype == encoding.ids.dtype for ids, encoding in zip(alone, encodings, strict=True))


@pytest.mark.parametrize("encode", [Tokenizer.encode_batch, Tokenizer.encode_ids])
def test_half_a_surrogate_pair_is_explained(encode: Callable[[Tokenizer, list[str]], object]) -> None:
    with pytest.raises(UserError, match=r"Character 4 of a text is half a surrogate pair.*'caf.\\udce9'"):
        encode(trained("bytebpe:400"), ["good", "café\udce9"])


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
