"""Vectors of many texts: the same in any number of groups and passes, encoded ahead, copied without waiting."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from etude.errors import UserError
from etude.inference import text_vectors
from etude.inference.features import extract
from etude.inference.text_vectors import VectorPooling, _split
from etude.models.framing import pool
from etude.nn.packed import pack
from tests.half_precision import may_lack_bf16
from tests.tiny_models import TEXTS, decoder, encoder

MANY = [text[start : start + length] for text in TEXTS for start, length in ((0, 9), (3, 40), (1, 3), (0, 200))] * 3


@pytest.mark.parametrize("make", [encoder, decoder], ids=["masked", "causal"])
@pytest.mark.parametrize("pooling", ["mean", "start", "last", "max"])
def test_groups_and_passes_change_nothing(make: Any, pooling: VectorPooling, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    whole = model.encode(MANY, pool=pooling)
    framed = [model.frame(model.tokenizer.encode(text).ids) for text in MANY]
    with torch.no_grad():
        packed = pack(framed)
        expected = pool(model.model(packed).last, packed.layout, pooling)
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)
    threads: set[str] = set()
    encode = model.tokenizer.encode_ids

    def watch(texts: list[str]) -> list[np.ndarray]:
        threads.add(threading.current_thread().name)
        return encode(texts)

    monkeypatch.setattr(model.tokenizer, "encode_ids", watch)
    monkeypatch.setattr(text_vectors, "TEXTS", 4)
    monkeypatch.setattr(text_vectors, "TOKENS", {"cpu": 50})
    np.testing.assert_allclose(model.encode(MANY, pool=pooling), whole, rtol=1e-5, atol=1e-5)
    assert all(name.startswith("etude-encode") for name in threads) and len(threads) == 1


def test_encode_and_features_pool_in_the_same_words() -> None:
    model = encoder()
    texts = ["the cat", "a dog ran to the door"]
    for pooling in ("mean", "max", "start", "last"):
        expected = np.stack(extract(model, texts, "last", pooling))[:, 0]
        np.testing.assert_allclose(model.encode(texts, pool=pooling), expected, rtol=1e-5, atol=1e-5)
    states = model.encode(texts, pool="none")
    for array, expected in zip(states, extract(model, texts, "last", "none"), strict=True):
        np.testing.assert_allclose(array, expected[0], rtol=1e-5, atol=1e-5)
    assert [array.shape for array in model.encode(texts, layer=0, pool="none")] == [array.shape for array in states]


def test_groups_are_limited_by_texts_and_by_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_vectors, "TEXTS", 3)
    monkeypatch.setattr(text_vectors, "CHARACTERS", 10)
    texts = ["a", "b", "c", "d", "eeeeeeeeeeeeee", "f", "gggggg", "hhhhh", ""]
    groups = list(_split(texts))
    assert groups == [["a", "b", "c"], ["d"], ["eeeeeeeeeeeeee"], ["f", "gggggg"], ["hhhhh", ""]]
    assert list(_split([])) == []


def test_a_text_without_tokens_is_named_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_vectors, "TEXTS", 2)
    model = decoder()
    assert model.encode(["the cat", "a dog", "ran"]).shape[0] == 3
    monkeypatch.setattr(type(model.objective), "frame", lambda self, ids, context: ids[:context])
    with pytest.raises(UserError, match="Text 4 has no tokens"):
        model.encode(["the cat", "a dog", "ran", "to the door", "", "the house"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("etude-encode")]


def test_bad_input_is_refused_before_anything_is_encoded() -> None:
    model = encoder()
    with pytest.raises(UserError, match="list of texts"):
        model.encode("the cat")
    with pytest.raises(UserError, match="Text 1 is None"):
        model.encode(["the cat", None])  # type: ignore[list-item]
    with pytest.raises(UserError, match="mean, max, start, last, none"):
        model.encode(["the cat"], pool="sum")  # type: ignore[call-overload]
    with pytest.raises(UserError, match="not 'first'"):
        model.encode(["the cat"], pool="first")  # type: ignore[call-overload]
    with pytest.raises(UserError, match="layers 0"):
        model.encode(["the cat"], layer=9)


@may_lack_bf16
def test_vectors_of_half_precision_are_float32() -> None:
    model = encoder()
    model.model.to(torch.bfloat16)
    vectors = model.encode(MANY[:5])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, encoder().encode(MANY[:5]), atol=0.1)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    model, expected = encoder(), encoder().encode(MANY)
    model.model.to("cuda")
    model.device = "cuda"
    monkeypatch.setattr(text_vectors, "TEXTS", 4)
    monkeypatch.setattr(text_vectors, "TOKENS", {"cuda": 50})
    for _ in range(3):
        np.testing.assert_allclose(model.encode(MANY), expected, rtol=1e-4, atol=1e-4)
