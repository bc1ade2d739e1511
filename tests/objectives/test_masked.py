"""The masked objective: right targets, right shares, the same whoever builds the batch, and it learns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from etude.chance import Chance
from etude.errors import UserError
from etude.models import transformer
from etude.objectives import masked
from etude.objectives.base import IGNORE
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.objectives.small_corpus import SPECIAL, tokenizer

VOCAB = 200
MASK = SPECIAL.mask


def model(context: int = 32, vocab: int = VOCAB, **changes: Any) -> transformer.Transformer:
    wanted = {"layers": 2, "width": 32, "heads": 2, "context": context, "vocab": vocab, "segments": 2, "pooler": True}
    torch.manual_seed(0)
    return transformer.build(transformer.Settings(**{**wanted, **changes}))


def objective(context: int = 32, **wanted: Any) -> masked.Masked:
    return masked.build(masked.Settings(**wanted), model(context), SPECIAL)


def corpus_of(documents: int = 60, seed: int = 0) -> Corpus:
    draw = random.Random(seed)
    made, words = [], []
    for _ in range(documents):
        sizes = [draw.randint(1, 16) for _ in range(draw.randint(2, 12))]
        made.append([[draw.randint(6, VOCAB - 1) for _ in range(size)] for size in sizes])
        words.append([[place == 0 or draw.random() < 0.7 for place in range(size)] for size in sizes])
    return Corpus.from_documents(made, tokenizer(VOCAB), words)


CORPUS = corpus_of()
WAYS: dict[str, dict[str, Any]] = {
    "bert": {"sentence": "next"},
    "whole words": {"sentence": "next", "whole_word": True},
    "albert": {"sentence": "order", "whole_word": True, "ngram": 3},
    "roberta": {},
    "electra": {"pair_rate": 0.9, "short_rate": 0.05, "truncation": "end", "mask_share": 0.85, "random_share": 0.0},
    "no markers": {"markers": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_targets_are_the_true_tokens_and_nothing_else_changes(way: str) -> None:
    made = objective(**WAYS[way])
    rows = made.rows(CORPUS, seed=1)
    for step in range(10):
        given = [rows[index] for index in range(3 * step, 3 * step + 3)]
        batch = made.batch(given, Chance(1, step))
        truth = np.concatenate([row.tokens for row in given])
        used = batch.targets.numpy() != IGNORE
        index = batch.index.numpy()[used]
        assert np.array_equal(batch.targets.numpy()[used], truth[index])
        assert len(np.unique(index)) == len(index) == batch.counts["mlm"]
        assert (batch.index.numpy()[~used] == 0).all()
        assert not np.isin(truth[index], [SPECIAL.start, SPECIAL.separator, SPECIAL.pad]).any()
        untouched = np.ones(len(truth), bool)
        untouched[index] = False
        assert np.array_equal(batch.tokens.numpy()[untouched], truth[untouched])
        # each row's slots point into that row
        owner = np.repeat(np.arange(3), made.slots)[used]
        assert np.array_equal(index // made.row_rules.row_tokens, owner)


@pytest.mark.parametrize("way", WAYS)
def test_shapes_are_static(way: str) -> None:
    made = objective(**WAYS[way])
    shapes = set()
    for seed in range(3):
        rows = made.rows(CORPUS, seed=seed)
        for index in range(0, 60, 6):
            batch = made.batch([rows[index], rows[10**6 + index]], Chance(seed, index))
            tensors = (batch.tokens, batch.positions, batch.layout.bounds, batch.index, batch.targets, batch.labels)
            shapes.add((*(tensor.shape for tensor in tensors), batch.layout.longest))
            assert len(batch.layout.host) - 1 == len(batch.labels)
    assert len(shapes) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_row_is_masked_alike_in_any_batch(way: str) -> None:
    made = objective(**WAYS[way])
    rows = [made.rows(CORPUS, seed=1)[index] for index in (5, 0, 700, 3)]
    whole = made.batch(rows, Chance(2, 8))
    size, slots = made.row_rules.row_tokens, made.slots
    for order in ([0, 1, 2, 3], [3], [2, 0]):
        part = made.batch([rows[number] for number in order], Chance(2, 8))
        for place, number in enumerate(order):
            here, there = slice(place * size, (place + 1) * size), slice(number * size, (number + 1) * size)
            assert torch.equal(part.tokens[here], whole.tokens[there])
            mine, its = slice(place * slots, (place + 1) * slots), slice(number * slots, (number + 1) * slots)
            assert torch.equal(part.targets[mine], whole.targets[its])
            used = part.targets[mine] != IGNORE
            assert torch.equal(part.index[mine][used] - place * size, whole.index[its][used] - number * size)
    again = made.batch(rows, Chance(2, 9))
    assert not torch.equal(again.tokens, whole.tokens)  # another step, other masks


def test_losses_do_not_depend_on_which_rows_share_a_batch() -> None:
    made, net = objective(sentence="next"), model()
    rows = [made.rows(CORPUS, seed=0)[index] for index in range(6)]
    whole = made.loss(net, made.batch(rows, Chance(0, 0)))
    parts = [made.loss(net, made.batch(part, Chance(0, 0))) for part in (rows[4:], rows[:1], rows[1:4])]
    for name in ("mlm", "sentence"):
        assert whole[name].count == sum(part[name].count for part in parts)
        total = torch.stack([part[name].sum for part in parts]).sum()
        torch.testing.assert_close(whole[name].sum, total, rtol=1e-6, atol=0)


def shares(made: masked.Masked, steps: int) -> dict[str, float]:
    rows = made.rows(CORPUS, seed=3)
    counts = {"chosen": 0, "tokens": 0, "masked": 0, "random": 0, "kept": 0, "special": 0}
    for step in range(steps):
        given = [rows[index] for index in range(8 * step, 8 * step + 8)]
        batch = made.batch(given, Chance(4, step))
        truth = np.concatenate([row.tokens for row in given])
        index = batch.index.numpy()[batch.targets.numpy() != IGNORE]
        now = batch.tokens.numpy()[index]
        lengths = batch.layout.lengths
        counts["chosen"] += len(index)
        counts["tokens"] += int(np.maximum(1, np.rint(0.15 * lengths[lengths > 2])).sum())
        counts["masked"] += int((now == MASK).sum())
        counts["kept"] += int((now == truth[index]).sum())
        counts["random"] += int(((now != MASK) & (now != truth[index])).sum())
        counts["special"] += int(((now < 6) & (now != MASK)).sum())
    return counts


def test_shares_of_mask_random_and_kept() -> None:
    """80 / 10 / 10, a random token being anything in the vocabulary, the true one and [MASK] among them."""
    counts = shares(objective(sentence="next"), steps=30)
    chosen = counts["chosen"]
    assert chosen == counts["tokens"] > 7_500  # exactly round(15 %) of every sequence
    wanted = {"masked": 0.8 + 0.1 / VOCAB, "random": 0.1 * (1 - 2 / VOCAB), "kept": 0.1 + 0.1 / VOCAB}
    for name, share in wanted.items():
        error = np.sqrt(share * (1 - share) / chosen)
        assert abs(counts[name] / chosen - share) < 3 * error, name
    share = 0.1 * 5 / VOCAB  # [PAD], [UNK], [CLS], [SEP], [EOT]
    assert abs(counts["special"] / chosen - share) < 3 * np.sqrt(share / chosen)


def test_whole_words_are_masked_whole_but_replaced_by_the_piece() -> None:
    made = objective(sentence="next", whole_word=True)
    rows = made.rows(CORPUS, seed=1)
    mixed = pieces = 0
    for step in range(30):
        given = [rows[step]]
        batch = made.batch(given, Chance(1, step))
        chosen = np.zeros(batch.size, bool)
        chosen[batch.index.numpy()[batch.targets.numpy() != IGNORE]] = True
        marker = np.isin(given[0].tokens, [SPECIAL.start, SPECIAL.separator])
        word = np.cumsum(given[0].word_starts | marker)
        for number in np.unique(word[chosen]):
            assert chosen[word == number].all()
            now = batch.tokens.numpy()[word == number]
            pieces += len(now) > 1
            mixed += len(now) > 1 and 0 < (now == MASK).sum() < len(now)
    assert pieces > 100 and 0.2 < mixed / pieces < 0.6  # 80/10/10 falls on each piece by itself


def test_max_predictions_limit_a_sequence() -> None:
    made = objective(max_predictions=2, short_rate=0.0)
    batch = made.batch([made.rows(CORPUS, seed=1)[0]], Chance(0, 0))
    used = batch.index.numpy()[batch.targets.numpy() != IGNORE]
    assert np.bincount(np.searchsorted(batch.layout.host, used, side="right")).max() == 2


def test_sentence_labels_travel_to_their_sequences() -> None:
    made = objective(sentence="next")
    rows = made.rows(CORPUS, seed=1)
    batch = made.batch([rows[0], rows[1]], Chance(0, 0))
    told = np.concatenate([rows[0].labels, rows[1].labels])
    assert np.array_equal(batch.labels.numpy()[: len(told)], told)
    assert (batch.labels.numpy()[len(told) :] == IGNORE).all()
    assert (batch.layout.lengths[len(told) :] == 0).all()
    assert batch.counts["sentence"] == int((told != IGNORE).sum()) > 0


# --- heads and loss ---------------------------------------------------------------------------------


def test_parameters_have_their_names() -> None:
    names = {name for name, _ in objective(sentence="order").named_parameters()}
    head = {"head.dense.weight", "head.dense.bias", "head.norm.weight", "head.norm.bias", "head.bias"}
    assert names == head | {"sentence.weight", "sentence.bias"}
    assert {name for name, _ in objective().named_parameters()} == head


@pytest.mark.parametrize("changes", [{}, {"embedding_width": 8}])
def test_the_loss_is_that_of_the_plain_formula(changes: dict[str, Any]) -> None:
    net = model(**changes)
    made = masked.build(masked.Settings(sentence="next"), net, SPECIAL)
    torch.nn.init.normal_(made.head.bias)
    batch = made.batch([made.rows(CORPUS, seed=0)[index] for index in range(2)], Chance(0, 0))
    last = net(batch).last
    hidden = torch.nn.functional.gelu(last[batch.index] @ made.head.dense.weight.t() + made.head.dense.bias)
    width = net.embedding.tokens.weight.shape[1]
    normed = torch.nn.functional.layer_norm(hidden, (width,), made.head.norm.weight, made.head.norm.bias, 1e-5)
    logits = normed @ net.embedding.tokens.weight.t() + made.head.bias
    plain = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="sum")
    torch.testing.assert_close(made.logits(net, net(batch))[batch.index], logits)
    terms = made.loss(net, batch)
    torch.testing.assert_close(terms["mlm"].sum, plain)

    starts = torch.from_numpy(batch.layout.host[:-1][batch.layout.lengths > 0]).long()
    pooled = torch.tanh(last[starts] @ net.pooler.weight.t() + net.pooler.bias)
    sentence = pooled @ made.sentence.weight.t() + made.sentence.bias
    labels = batch.labels[: len(starts)]
    torch.testing.assert_close(
        terms["sentence"].sum, torch.nn.functional.cross_entropy(sentence, labels, reduction="sum")
    )

    stats = made.metrics(net, batch)
    torch.testing.assert_close(stats["mlm"].sum, plain)
    used = batch.targets != IGNORE
    assert int(stats["accuracy"].sum) == int((logits.argmax(-1) == batch.targets)[used].sum())
    assert int(stats["sentence_accuracy"].sum) == int((sentence.argmax(-1) == labels).sum())
    assert [stats[name].weight for name in ("mlm", "sentence", "accuracy", "sentence_accuracy")] == [1, 1, None, None]


def test_unused_slots_and_empty_sequences_give_no_gradient() -> None:
    net = model()
    made = masked.build(masked.Settings(sentence="next"), net, SPECIAL)
    batch = made.batch([made.rows(CORPUS, seed=0)[0]], Chance(0, 0))

    def gradients() -> list[torch.Tensor]:
        net.zero_grad()
        sum(term.sum for term in made.loss(net, batch).values()).backward()
        return [parameter.grad.clone() for parameter in net.parameters()]

    whole = gradients()
    used = batch.targets != IGNORE
    batch.index, batch.targets = batch.index[used], batch.targets[used]
    for one, other in zip(whole, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", ["bert", "albert", "roberta"])
def test_flops_are_those_torch_counts(way: str) -> None:
    net = model(embedding_width=8 if way == "albert" else None)
    net.path = "reference"  # fused attention is invisible to the counter
    made = masked.build(masked.Settings(**WAYS[way]), net, SPECIAL)
    batch = made.batch([made.rows(CORPUS, seed=0)[0]], Chance(0, 0))
    # the counter sees unused slots and empty sequences too: take them out
    used, real = batch.targets != IGNORE, int((batch.layout.lengths > 0).sum())
    batch.index, batch.targets = batch.index[used], batch.targets[used]
    batch.layout = type(batch.layout).from_bounds(batch.layout.host[: real + 1], batch.layout.longest)
    batch.labels = batch.labels[:real]
    batch.counts["sentence"] = real
    with FlopCounterMode(display=False) as counter:
        sum(term.sum for term in made.loss(net, batch).values()).backward()
    assert counter.get_total_flops() == made.flops(net, batch)


@pytest.mark.parametrize("way", ["bert", "albert"])
def test_a_tiny_model_learns_one_batch_by_heart(way: str) -> None:
    net = model(width=64, heads=4)
    made = masked.build(masked.Settings(row_tokens=64, **WAYS[way]), net, SPECIAL)
    rows = made.rows(CORPUS, seed=5)
    batch = made.batch([rows[index] for index in range(4)], Chance(0, 0))
    assert set(batch.labels.tolist()) >= {0, 1}
    optimizer = torch.optim.AdamW([*net.parameters(), *made.parameters()], lr=3e-3)
    for _ in range(80):
        terms = made.loss(net, batch)
        sum(term.sum / term.count for term in terms.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    stats = made.metrics(net, batch)
    assert stats["mlm"].mean < 0.1 and stats["accuracy"].mean > 0.95
    assert stats["sentence"].mean < 0.1 and stats["sentence_accuracy"].mean == 1.0


def test_korean_words_are_masked_whole() -> None:
    stories = [
        ["할머니가 아침마다 부엌에서 빵을 구웠다.", "고양이가 식탁 밑으로 들어왔다."],
        ["마을 사람들은 다리 앞으로 모였다.", "강물이 밤새 불어났기 때문이다."],
    ] * 8
    words = Tokenizer.train("bytebpe:320", [sentence for story in stories for sentence in story])
    encoded = [[words.encode(sentence) for sentence in story] for story in stories]
    corpus = Corpus.from_documents(
        [[one.ids.tolist() for one in story] for story in encoded],
        words,
        [[one.word_starts.tolist() for one in story] for story in encoded],
    )
    net = model(128, vocab=words.vocab)
    made = masked.build(masked.Settings(sentence="order", whole_word=True), net, words.special)
    rows = made.rows(corpus, seed=0)
    seen = 0
    for step in range(6):
        row = rows[step]
        batch = made.batch([row], Chance(0, step))
        chosen = np.zeros(batch.size, bool)
        chosen[batch.index.numpy()[batch.targets.numpy() != IGNORE]] = True
        word = np.cumsum(row.word_starts)
        for number in np.unique(word[chosen]):
            assert chosen[word == number].all()
            seen += (word == number).sum() > 3  # a Hangul syllable is three bytes
    assert seen > 10


# --- what cannot be ---------------------------------------------------------------------------------


IMPOSSIBLE: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "shares": (lambda: masked.Settings(mask_share=0.9, random_share=0.2), ValueError, "together more than 1"),
    "no [CLS]": (lambda: masked.Settings(sentence="next", markers=False), ValueError, "markers=false"),
    "no pooler": (
        lambda: masked.build(masked.Settings(sentence="next"), model(pooler=False), SPECIAL),
        UserError,
        r"model\.pooler=true",
    ),
    "no mask": (lambda: masked.build(masked.Settings(), model(), Specials(start=2, separator=3)), UserError, "no mask"),
    "no markers": (
        lambda: masked.build(masked.Settings(), model(), Specials(mask=4)),
        UserError,
        r"no start and no separator token.*markers=false",
    ),
    "one segment": (
        lambda: masked.build(masked.Settings(sentence="next"), model(segments=1), SPECIAL),
        UserError,
        r"model\.segments to 2",
    ),
    "too long": (lambda: objective(32, length=64), UserError, r"objective\.length=64"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_is_said(case: str) -> None:
    make, error, words = IMPOSSIBLE[case]
    with pytest.raises(error, match=words):
        make()


def test_masking_without_a_mask_needs_none() -> None:
    """The ablation 0 / 20 / 80 of BERT's appendix never shows [MASK]."""
    settings = masked.Settings(mask_share=0.0, random_share=0.8, markers=False)
    made = masked.build(settings, model(), Specials())
    batch = made.batch([made.rows(CORPUS, seed=0)[0]], Chance(0, 0))
    assert batch.counts["mlm"] > 10
