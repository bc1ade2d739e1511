"""Tokenizers: specs, round trips, Korean, given files, determinism."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.tokenizer.tokenizer_examples import (
    KOREAN,
    LOSSLESS,
    SPECS,
    TEXTS,
    mixed,
    trained,
)
from tokenizers import Regex, pre_tokenizers

from etude.errors import UserError
from etude.text.tokenizer import training
from etude.text.tokenizer.tokenizer import Tokenizer


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


@pytest.mark.parametrize("form", ["nfc", "nfkc"])
@given(texts=st.lists(mixed))
@settings(max_examples=40, deadline=None)
def test_words_are_counted_as_if_each_text_were_split_whole(form: str, texts: list[str]) -> None:
    splitter = pre_tokenizers.Split(Regex(training.WORD_PATTERN), "removed", invert=True)
    normalizer = training._build_normalizer(training.parse_spec(f"word:9,lower,form={form}"))
    texts = [*texts, "\x1cA b\u3000a\x1fb\x85\u00b4\u200bc 가\ufdfa", "a b a"]

    def count(runs: Iterable[tuple[str, int]]) -> Counter[str]:
        words = [(splitter.pre_tokenize_str(normalizer.normalize_str(run)), number) for run, number in runs]
        return Counter(word for pairs, number in words for word, _ in pairs * number)

    with patch.object(training, "MAX_RUNS", 2):
        assert count(training._count_runs(texts)) == count((text, 1) for text in texts)


def test_a_word_that_comes_often_is_split_once() -> None:
    text = "The cat sat on the mat, and sat. " * 150_000
    start = time.process_time()
    assert Tokenizer.train("word:300", [text]).vocab == 15
    assert time.process_time() - start < 1.5  # four seconds, where the text was split whole


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
