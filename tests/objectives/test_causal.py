"""The causal objective: every token a target once an epoch, no document leaks where they are split."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from etude.chance import Chance
from etude.errors import UserError
from etude.models import transformer
from etude.objectives import causal
from etude.objectives.base import IGNORE
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.objectives.small_corpus import SPECIAL, small_corpus, tokenizer

START, END = 2, 5
VOCAB = 3000


def model(context: int = 16, vocab: int = VOCAB, **changes: Any) -> transformer.Transformer:
    wanted = {"layers": 2, "width": 32, "heads": 2, "context": context, "vocab": vocab, "direction": "causal"}
    torch.manual_seed(0)
    return transformer.build(transformer.Settings(**{**wanted, **changes}))


def numbered(sizes: list[int]) -> Corpus:
    """Documents of these sizes whose tokens are all different: 6, 7, 8 ..."""
    ids = iter(range(6, VOCAB))
    return Corpus.from_documents([[[next(ids) for _ in range(size)]] for size in sizes], tokenizer(VOCAB))


def stream_of(corpus: Corpus, markers: Sequence[int] = (END,)) -> list[int]:
    """The whole stream, the slow way."""
    made: list[int] = []
    for number in range(len(corpus.documents)):
        made += [*corpus.tokens(corpus.documents[number], corpus.documents[number + 1]).tolist(), *markers]
    return made


def objective(context: int = 16, **wanted: Any) -> causal.Causal:
    return causal.build(causal.Settings(**wanted), model(context), SPECIAL)


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(sizes, st.integers(0, 10_000), st.integers(1, 200), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_stream_reads_as_documents_joined_by_their_ends(
    sizes: list[int], start: int, size: int, begun: bool
) -> None:
    corpus = numbered(sizes)
    whole = stream_of(corpus, (END, START) if begun else (END,))
    read = causal.Stream(corpus, start=begun).read(start, size)
    assert read.dtype == np.int32
    assert read.tolist() == [whole[(start + place) % len(whole)] for place in range(size)]


@given(sizes, st.sampled_from([1, 2, 5]), st.sampled_from(["join", "split"]), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_every_token_is_a_target_exactly_once_an_epoch(sizes: list[int], times: int, way: str, epoch: int) -> None:
    corpus = numbered(sizes)
    whole = stream_of(corpus)
    rows = objective(8, row_tokens=8 * times, documents=way).rows(corpus, seed=3)
    made = [rows[epoch * len(rows) + place] for place in range(len(rows))]
    targets = np.concatenate([row.targets for row in made])
    assert Counter(targets[targets != IGNORE].tolist()) == Counter(whole)
    follows = {one: other for one, other in zip(whole, whole[1:] + whole[:1], strict=True) if one != END}
    for row in made:
        assert len(row.tokens) == len(row.targets) == 8 * times
        for token, target in zip(row.tokens.tolist(), row.targets.tolist(), strict=True):
            assert target == IGNORE or token == END or target == follows[token]


def test_the_first_target_of_a_document_is_read_from_the_end_before_it() -> None:
    corpus = numbered([5, 7, 3])
    rows = objective(8, row_tokens=8).rows(corpus, seed=0)
    first = rows[0]
    assert first.tokens.tolist()[:6] == [END, 6, 7, 8, 9, 10]
    assert first.targets.tolist()[:7] == [6, 7, 8, 9, 10, END, 11]


def test_epochs_cut_at_other_places_and_seeds_too() -> None:
    corpus = numbered([50, 30, 77, 20])
    rows = objective(8, row_tokens=16).rows(corpus, seed=1)
    cuts = {int(rows[epoch * len(rows)].tokens[0]) for epoch in range(12)}
    assert len(cuts) > 8
    other = objective(8, row_tokens=16).rows(corpus, seed=2)
    assert rows[len(rows)].tokens.tolist() != other[len(rows)].tokens.tolist()
    assert rows[0].tokens.tolist() == other[0].tokens.tolist()  # the first epoch begins at the first word


def test_rows_are_pure_and_seekable() -> None:
    corpus = numbered([50, 30, 77, 20])
    one, other = (objective(8, row_tokens=16).rows(corpus, seed=1) for _ in range(2))
    for index in (10**12, 3, 10**9 + 7, 0, 3):
        assert np.array_equal(one[index].tokens, other[index].tokens)
        assert np.array_equal(one[index].targets, other[index].targets)


def test_joined_sequences_have_the_full_length() -> None:
    rows = objective(8, row_tokens=32).rows(numbered([3] * 30), seed=0)
    assert rows[1].bounds.tolist() == [0, 8, 16, 24, 32]
    assert rows.most == 4


@given(sizes, st.sampled_from([8, 24]))
@settings(max_examples=50, deadline=None)
def test_a_split_sequence_holds_one_document(sizes: list[int], row_tokens: int) -> None:
    corpus = numbered(sizes)
    rows = objective(8, row_tokens=row_tokens, documents="split").rows(corpus, seed=0)
    document = {}
    for number in range(len(corpus.documents)):
        for token in corpus.tokens(corpus.documents[number], corpus.documents[number + 1]).tolist():
            document[token] = number
    for index in range(2 * len(rows)):
        row = rows[index]
        assert row.bounds[0] == 0 and row.bounds[-1] == row_tokens
        assert len(row.bounds) - 1 <= row.most
        for start, stop in zip(row.bounds[:-1], row.bounds[1:], strict=True):
            tokens = row.tokens[start:stop].tolist()
            assert 0 < len(tokens) <= 8
            assert END not in tokens[1:]  # it may only begin a sequence
            assert len({document[token] for token in tokens if token != END}) <= 1


@given(sizes, st.sampled_from([8, 24]))
@settings(max_examples=40, deadline=None)
def test_with_a_start_token_a_sequence_begins_with_it(sizes: list[int], row_tokens: int) -> None:
    corpus = numbered(sizes)
    made = objective(8, row_tokens=row_tokens, documents="split", start=True)
    rows = made.rows(corpus, seed=0)
    for index in range(2 * len(rows)):
        row = rows[index]
        assert len(row.bounds) - 1 <= row.most
        for start, stop in zip(row.bounds[:-1], row.bounds[1:], strict=True):
            assert START not in row.tokens[start + 1 : stop] and END not in row.tokens[start : stop - 1]
    targets = np.concatenate([rows[index].targets for index in range(len(rows))])
    assert Counter(targets[targets != IGNORE].tolist()) == Counter(stream_of(corpus, (END, START)))


def test_a_start_token_stands_before_every_text() -> None:
    made = objective(8, start=True)
    assert made.frame(np.array([7, 8], np.int32), None).tolist() == [START, 7, 8]
    assert made.frame(np.zeros(0, np.int32), None).tolist() == [START]
    assert made.frame(np.arange(6, 20, dtype=np.int32), 4).tolist() == [START, 6, 7, 8]
    with pytest.raises(UserError, match=r"objective\.start=true.*no start token"):
        causal.build(causal.Settings(start=True), model(8), Specials(end=END))


def test_no_gradient_crosses_a_document_when_split() -> None:
    """The loss at tokens of one document does not move with the tokens of another."""
    corpus = numbered([6, 9, 5, 30])
    for way, leaks in (("join", True), ("split", False)):
        made = objective(16, row_tokens=32, documents=way)
        net = model(16)
        batch = made.batch([made.rows(corpus, seed=0)[0]], Chance(0, 0))
        changed = replace(batch, tokens=torch.where(batch.tokens == 7, 2000, batch.tokens))  # in the first document
        second = (batch.tokens >= 12) & (batch.tokens < 21)
        with torch.no_grad():
            before, after = net(batch).last[second], net(changed).last[second]
        assert second.sum() == 9
        assert torch.equal(before, after) != leaks


def test_a_batch_has_static_shapes_and_the_counts_of_its_targets() -> None:
    corpus = numbered([3, 40, 17, 9, 60, 2, 2, 2])
    for way in ("join", "split"):
        made = objective(16, row_tokens=32, documents=way)
        rows = made.rows(corpus, seed=0)
        shapes = set()
        for index in range(3 * len(rows) - 2):
            batch = made.batch([rows[index], rows[index + 1]], Chance(0, index))
            shapes.add((batch.tokens.shape, batch.targets.shape, batch.layout.bounds.shape, batch.layout.longest))
            assert batch.counts == {"loss": int((batch.targets != IGNORE).sum())}
        assert len(shapes) == 1


def test_losses_do_not_depend_on_which_rows_share_a_batch() -> None:
    corpus = numbered([30, 40, 17, 90, 60])
    made, net = objective(16, row_tokens=32), model(16)
    rows = [made.rows(corpus, seed=0)[index] for index in range(6)]
    whole = made.loss(net, made.batch(rows, Chance(0, 0)))["loss"]
    parts = [made.loss(net, made.batch(part, Chance(0, 0)))["loss"] for part in (rows[4:], rows[:1], rows[1:4])]
    assert whole.count == sum(part.count for part in parts)
    torch.testing.assert_close(whole.sum, torch.stack([part.sum for part in parts]).sum(), rtol=1e-6, atol=0)


def test_a_tiny_model_learns_one_batch_by_heart() -> None:
    corpus = numbered([30, 40, 17])
    made, net = objective(16, row_tokens=32), model(16, width=64)
    batch = made.batch([made.rows(corpus, seed=0)[index] for index in range(2)], Chance(0, 0))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(60):
        loss = made.loss(net, batch)["loss"]
        (loss.sum / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    stats = made.metrics(net, batch)
    assert stats["loss"].mean < 0.05
    assert stats["accuracy"].mean > 0.95
    assert stats["loss"].weight == 1.0 and stats["accuracy"].weight is None


def test_the_loss_is_that_of_the_plain_formula() -> None:
    corpus = numbered([30, 40, 17])
    made, net = objective(16, row_tokens=32), model(16)
    batch = made.batch(
        [made.rows(corpus, seed=0)[index] for index in range(len(made.rows(corpus, seed=0)))], Chance(0, 0)
    )
    logits = net(batch).last @ net.embedding.tokens.weight.t()
    plain = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="sum")
    torch.testing.assert_close(made.logits(net, net(batch)), logits)
    torch.testing.assert_close(made.loss(net, batch)["loss"].sum, plain)
    stats = made.metrics(net, batch)
    torch.testing.assert_close(stats["loss"].sum, plain)
    used = batch.targets != IGNORE
    assert int(stats["accuracy"].sum) == int((logits.argmax(-1) == batch.targets)[used].sum())


def test_a_narrow_table_is_reached_through_the_embedding_s_own_projection() -> None:
    net = model(16, embedding_width=8)
    made = causal.build(causal.Settings(bias=True), net, SPECIAL)
    assert [name for name, _ in made.named_parameters()] == ["head.bias"]
    batch = made.batch([made.rows(numbered([30, 40]), seed=0)[0]], Chance(0, 0))
    states = net(batch).last
    logits = states @ net.embedding.project.weight @ net.embedding.tokens.weight.t() + made.head.bias
    plain = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="sum")
    torch.testing.assert_close(made.logits(net, net(batch)), logits)
    torch.testing.assert_close(made.loss(net, batch)["loss"].sum, plain)


@pytest.mark.parametrize("changes", [{}, {"embedding_width": 8}])
def test_flops_are_those_torch_counts(changes: dict[str, Any]) -> None:
    net = model(16, **changes)
    net.path = "reference"  # fused attention is invisible to the counter
    made = causal.build(causal.Settings(row_tokens=32), net, SPECIAL)
    batch = made.batch([made.rows(numbered([300]), seed=0)[0]], Chance(0, 0))
    assert batch.counts["loss"] == 32
    with FlopCounterMode(display=False) as counter:
        made.loss(net, batch)["loss"].sum.backward()
    assert counter.get_total_flops() == made.flops(net, batch)


def test_bits_per_byte_count_the_ends() -> None:
    corpus = numbered([3, 4])
    made = objective()
    assert made.nats_per_token == "loss"
    assert made.tokens_per_byte(corpus) == 9 / corpus.bytes


def test_korean_text_reads_back() -> None:
    texts = ["어머니가 시장에서 사과를 샀다. 사과는 붉고 달았다.", "아이는 강가에서 놀았다."] * 5
    words = Tokenizer.train("bytebpe:400", texts)
    documents = [[words.encode(text).ids.tolist()] for text in texts]
    corpus = Corpus.from_documents(documents, words)
    made = causal.build(causal.Settings(row_tokens=64), model(16, vocab=words.vocab), words.special)
    rows = made.rows(corpus, seed=0)
    targets = np.concatenate([rows[index].targets for index in range(len(rows))])
    end = words.special.end
    ends = [0, *(np.flatnonzero(targets == end) + 1).tolist()]
    read = [words.decode(targets[a : b - 1].tolist()) for a, b in itertools.pairwise(ends)]
    assert read == texts


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UserError, match=r"model\.direction=both.*Set model\.direction=causal"):
        causal.build(causal.Settings(), model(direction="both"), SPECIAL)
    with pytest.raises(UserError, match=r"objective\.length=32 is more than model\.context=16"):
        objective(16, length=32)
    with pytest.raises(UserError, match=r"row_tokens=40 is not a multiple of the 16 .* Set it to 32"):
        objective(16, row_tokens=40)
    corpus = numbered([4])
    corpus.tokenizer = Tokenizer(corpus.tokenizer.content)
    corpus.tokenizer.special = Specials(pad=0)
    with pytest.raises(UserError, match="word tokenizer of this corpus has no end-of-text"):
        objective().rows(corpus, seed=0)


def test_a_row_is_a_sequence_unless_told_otherwise() -> None:
    """Sequences that follow on each other are alike: a step is to have one of each place."""
    assert objective(16).row_tokens == 16
    assert objective(16, length=10).row_tokens == 10
    assert objective(16, length=10, row_tokens=40).row_tokens == 40
    assert objective(16, length=10, documents="split").row_tokens == 520  # a row's end cuts a document
    assert len(objective(16).rows(small_corpus([[[7, 8]]]), seed=0)) == 1  # far less text than a row
