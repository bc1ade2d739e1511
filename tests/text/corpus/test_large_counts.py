"""A corpus of more than 2^32 tokens, documents or shards than 16 bits count: by an index, without its gigabytes."""

from __future__ import annotations

import numpy as np
import pytest

from etude.chance import Permutation
from etude.text.corpus.bounds import BOUND, Bounds, group_by_shard
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.manifest import FORMAT, VERSION, Manifest, ShardSize
from etude.text.corpus.shard import Shard, choose_id_dtype
from etude.text.tokenizer.tokenizer import Tokenizer

TOKENS, DOCUMENTS = 1 << 20, 1 << 12  # of a shard


class RepeatedShards:
    """One shard, as often as asked for."""

    def __init__(self, shard: Shard, count: int) -> None:
        self.shard, self.count = shard, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Shard:
        assert 0 <= number < self.count
        return self.shard


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """5,000 shards of 2^20 tokens: more than 2^32, and ids that tell where in a shard they are."""
    tokenizer = Tokenizer.train("bytebpe:300", ["a text"])
    starts = (np.arange(DOCUMENTS) * (TOKENS // DOCUMENTS)).astype(BOUND)
    ids = (np.arange(TOKENS) % 251).astype(choose_id_dtype(tokenizer.vocab))
    shard = Shard(ids, starts, starts, np.full(TOKENS // 8, 255, np.uint8))
    size: ShardSize = {"tokens": TOKENS, "documents": DOCUMENTS, "sentences": DOCUMENTS}
    count = 5000
    manifest: Manifest = {
        "format": FORMAT, "version": VERSION,
        "tokenizer": {"kind": tokenizer.kind, "vocab": tokenizer.vocab, "fingerprint": tokenizer.fingerprint},
        "parts": {"train": {
            "tokens": count * TOKENS, "documents": count * DOCUMENTS, "sentences": count * DOCUMENTS, "bytes": 1,
        }},
    }  # fmt: skip
    return Corpus(RepeatedShards(shard, count), [size] * count, tokenizer, manifest, "train", None)


def test_offsets_beyond_32_bits(corpus: Corpus) -> None:
    assert corpus.total == 5000 * TOKENS > 1 << 32
    for place in ((1 << 32) - 3, 1 << 32, (1 << 32) + 12345, corpus.total - 10):
        expected = (np.arange(place, place + 10) % TOKENS % 251)[: corpus.total - place]
        assert (corpus.tokens(place, place + len(expected)) == expected).all()
        document = corpus.documents.find(place)
        assert document == place // (TOKENS // DOCUMENTS)
        assert corpus.documents[document] <= place < corpus.documents[document + 1]
    places = np.random.default_rng(0).integers(0, corpus.total, 1000)
    assert (corpus.tokens_at(places) == places % TOKENS % 251).all() and corpus.word_starts_at(places).all()
    documents = corpus.documents.find_all(places)
    assert (documents == places // (TOKENS // DOCUMENTS)).all()
    assert (corpus.documents.at(documents) <= places).all() and (corpus.documents.at(documents + 1) > places).all()
    last = len(corpus.documents)
    assert corpus.documents.slice(last - 1, last + 1).tolist() == [corpus.total - TOKENS // DOCUMENTS, corpus.total]


def test_an_order_of_more_rows_than_32_bits() -> None:
    order = Permutation((1 << 33) + 7, key=3)
    index = np.array([0, 1, 1 << 32, (1 << 33) + 6])
    assert len(set(order(index).tolist())) == 4 and order(index).max() > 1 << 32


def test_more_shards_than_16_bits() -> None:
    count = 70_000
    totals = [8 * number for number in range(count + 1)]
    places = np.array([5, 8 * 65_536 + 3, 8 * 65_537, 8 * count - 1, 8 * count])
    groups = {number: np.arange(len(places))[chosen].tolist() for number, chosen in group_by_shard(totals, places)}
    assert groups == {0: [0], 65_536: [1], 65_537: [2], count - 1: [3]}
    shard = Shard(np.zeros(8, np.uint16), np.zeros(1, BOUND), np.zeros(1, BOUND), np.zeros(1, np.uint8))
    bounds = Bounds(RepeatedShards(shard, count), "documents", list(range(count + 1)), totals)
    assert bounds.find_all(places[:4]).tolist() == [0, 65_536, 65_537, count - 1]


def test_ids_are_as_wide_as_the_vocabulary_needs() -> None:
    assert [choose_id_dtype(vocab).itemsize for vocab in (300, 1 << 16, (1 << 16) + 1, 1 << 20)] == [2, 2, 4, 4]
