"""Replaced-token detection: its ablations, what it costs, that it learns, in use, and what cannot be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from etude.chance import Chance
from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.nn.packed import pack
from etude.objectives import replaced
from etude.objectives.base import IGNORE
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.objectives.replaced_system import NARROW, VARIANTS, VOCAB, batch_of, both, model, text_of, total
from tests.objectives.small_corpus import SPECIAL, tokenizer

# --- ablations --------------------------------------------------------------------------------------


def test_electra_15_percent_judges_the_chosen_tokens_alone() -> None:
    net, made = both(loss_on="chosen")
    batch = batch_of(made, [0, 1])
    text, used = text_of(net, made, batch), batch.targets != IGNORE
    index = batch.index[used]
    odds = made.discriminator(net(replace(batch, tokens=text.tokens)).last[index])
    plain = F.binary_cross_entropy_with_logits(odds, text.replaced[index].float(), reduction="sum")
    term = made.loss(net, batch)["discriminator"]
    torch.testing.assert_close(term.sum, plain)
    assert term.count == batch.counts["discriminator"] == len(index)
    assert made.metrics(net, batch)["replaced"].count == len(index)


def test_replace_mlm_restores_the_chosen_tokens() -> None:
    net, made = both(variant="replace_mlm")
    batch = batch_of(made, [0, 1])
    text, used = text_of(net, made, batch), batch.targets != IGNORE
    hidden = made.discriminator.head(net(replace(batch, tokens=text.tokens)).last[batch.index[used]])
    logits = hidden @ net.embedding.tokens.weight.t() + made.discriminator.head.bias
    term, found = made.loss(net, batch)["mlm"], made.metrics(net, batch)
    torch.testing.assert_close(term.sum, F.cross_entropy(logits, batch.targets[used], reduction="sum"))
    assert (term.count, term.weight) == (int(used.sum()), 1.0)
    assert int(found["accuracy"].sum) == int((logits.argmax(-1) == batch.targets[used]).sum())
    torch.testing.assert_close(found["mlm"].sum, term.sum)


def test_all_tokens_mlm_copies_or_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    """p(token) = D [it stands there] + (1 - D) softmax, at every token; and its gradient, a piece at a time."""
    net, made = both(variant="all_tokens_mlm")
    torch.nn.init.normal_(made.discriminator.copy.weight)
    batch = batch_of(made, [0])
    text, head = text_of(net, made, batch), made.discriminator.head
    assert bool(text.replaced.any())
    parameters = [*net.parameters(), *made.discriminator.parameters()]

    def plain() -> tuple[Tensor, Tensor]:
        last = net(replace(batch, tokens=text.tokens)).last
        softmax = (head(last) @ net.embedding.tokens.weight.t() + head.bias).softmax(-1)
        share = made.discriminator.copy(last).sigmoid()
        chances = (1 - share) * softmax + share * F.one_hot(text.tokens, VOCAB)
        return -chances[torch.arange(batch.size), text.truth].log().sum(), chances

    loss, chances = plain()
    expected = torch.autograd.grad(loss, parameters)
    for module in ("nn.losses", "objectives.parts.discriminator"):  # 256 tokens in three pieces
        monkeypatch.setattr(f"etude.{module}.choose_chunk_size", lambda *_: 100)
    term, found = made.loss(net, batch)["mlm"], made.metrics(net, batch)
    torch.testing.assert_close(term.sum, loss, rtol=1e-5, atol=1e-4)
    for one, other in zip(torch.autograd.grad(term.sum, parameters), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert (term.count, term.weight) == (batch.size, 1.0)
    torch.testing.assert_close(found["mlm"].sum, loss, rtol=1e-5, atol=1e-4)
    assert int(found["accuracy"].sum) == int((chances.argmax(-1) == text.truth).sum())


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bf16 says so, at length
@pytest.mark.parametrize("variant", ["electra", "all-tokens mlm"])
def test_mixed_precision_gives_every_weight_its_gradient(variant: str) -> None:
    """Draws are made without gradient in the middle of the step: what comes after them must have its own."""
    net, made = both(**VARIANTS[variant])
    batch = batch_of(made, [0, 1])
    parameters = [*net.parameters(), *made.parameters()]
    exact = torch.autograd.grad(total(made.loss(net, batch)), parameters)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = torch.autograd.grad(total(made.loss(net, batch)), parameters)
    one, other = torch.cat([g.flatten() for g in exact]), torch.cat([g.flatten() for g in rough])
    assert F.cosine_similarity(one, other, dim=0) > 0.9
    table = [id(p) for p in parameters].index(id(net.embedding.tokens.weight))
    assert float(rough[table].norm()) == pytest.approx(float(exact[table].norm()), rel=0.1)


# --- cost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tie", ["embeddings", "none"])
def test_flops_are_those_torch_counts(variant: str, tie: str) -> None:
    net, made = both(row_tokens=64, tie=tie, **VARIANTS[variant])
    net.path = made.generator.path = "reference"  # fused attention is invisible to the counter
    batch = batch_of(made, [0])
    used = batch.targets != IGNORE  # the counter sees unused slots too: take them out
    batch.index, batch.targets, batch.keys = batch.index[used], batch.targets[used], batch.keys[used]
    with FlopCounterMode(display=False) as counter:
        total(made.loss(net, batch)).backward()
    assert counter.get_total_flops() == made.flops(net, batch)


# --- learning ---------------------------------------------------------------------------------------


def fit(net: Any, made: Any, batches: Callable[[int], Any], steps: int, rate: float) -> None:
    optimizer = torch.optim.AdamW([*net.parameters(), *made.parameters()], lr=rate)
    for step in range(steps):
        total(made.loss(net, batches(step))).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("variant", ["electra", "replace mlm", "all-tokens mlm"])
def test_one_batch_is_learnt_by_heart(variant: str) -> None:
    """Against a generator that stays as it is, so that the replaced tokens stay the same."""
    net, made = both(row_tokens=64, tie="none", generator_weight=0.0, **VARIANTS[variant])
    batch = batch_of(made, [0, 1])
    fit(net, made, lambda step: batch, steps=80, rate=5e-3)  # at 1e-2 last digits decide how well it ends
    with torch.no_grad():
        found = made.metrics(net, batch)
    assert found["replaced"].mean > 0.1
    assert found[made.discriminator.name].mean < 0.5 and found["accuracy"].mean > 0.98
    if variant == "electra":
        assert found["accuracy_gain"].mean > 0.1 and found["discriminator"].mean < 0.05


def test_generator_and_discriminator_learn_together() -> None:
    """The generator learns the tokens by heart, so that fewer and fewer are replaced, and all are judged original.

    Each learns from what the other does: at a rate of 1e-2 and above, last digits (the order of a sum on another
    machine) change how many of the 20 masked tokens are known in the end. At 5e-3 first weights that differ by 1e-6
    end alike: 19 known, loss 0.49. A generator that does not learn knows none of them (loss 4.8, all 20 replaced),
    and a detector that does not stays at the 0.69 of a coin.
    """
    net, made = both(row_tokens=64)
    batch = batch_of(made, [0, 1])
    with torch.no_grad():
        before = made.metrics(net, batch)
    fit(net, made, lambda step: batch, steps=100, rate=5e-3)
    with torch.no_grad():
        found = made.metrics(net, batch)
    assert before["generator_accuracy"].mean < 0.2 and before["generator"].mean > 4
    assert found["generator_accuracy"].mean >= 0.75 and found["generator"].mean < 1.5
    assert found["replaced"].mean < 0.75 * before["replaced"].mean
    assert found["discriminator"].mean < 0.4 < before["discriminator"].mean


def test_the_discriminator_beats_all_original_on_a_small_language() -> None:
    """Every document has one of eight topics, and a topic five words: a drawn word of another topic can be found."""
    draw = random.Random(0)

    def document() -> list[list[int]]:
        first = 6 + 5 * draw.randrange(8)
        return [[first + draw.randrange(5) for _ in range(12)] for _ in range(6)]

    corpus = Corpus.from_documents([document() for _ in range(120)], tokenizer(46))
    net = model(vocab=46)
    made = replaced.build(replaced.Settings(row_tokens=256), net, SPECIAL)
    rows = made.rows(corpus, seed=0)
    fit(net, made, lambda step: made.batch([rows[2 * step], rows[2 * step + 1]], Chance(0, step)), steps=120, rate=3e-3)
    held = made.rows(corpus, seed=9)
    with torch.no_grad():
        found = made.metrics(net, made.batch([held[index] for index in range(8)], Chance(9, 0)))
    assert found["accuracy_gain"].mean > 0.02 and found["precision"].mean > 0.6
    assert found["generator"].mean < np.log(40) - 0.2  # better than how often words occur


# --- in use -----------------------------------------------------------------------------------------


def test_frame_and_logits_are_those_of_pre_training() -> None:
    net, made = both()
    framed = made.frame(np.arange(6, 60), context=32)
    assert framed.tolist() == [SPECIAL.start, *range(6, 36), SPECIAL.separator]
    assert made.frame(np.arange(6, 9), None).tolist() == [SPECIAL.start, 6, 7, 8, SPECIAL.separator]
    batch = batch_of(made, [0])
    hidden, table = made._predict(net, batch)
    scores = made.logits(net, made.hidden_for_logits(net, batch))
    assert scores.shape == (batch.size, VOCAB)
    torch.testing.assert_close(scores[batch.index], hidden @ table.t() + made.generator_head.bias)
    alone = made.logits(net, made.hidden_for_logits(net, pack([framed])))
    assert alone.shape == (32, VOCAB)


def test_blanks_are_filled_by_the_generator() -> None:
    net, made = both()
    with torch.no_grad():
        made.generator_head.bias[20] = 40.0  # the generator says w20, whatever stands there
    guesses = LoadedModel(net, made, tokenizer(VOCAB)).fill("w7 [MASK] w9", top=3)
    assert guesses[0].token == "w20" and guesses[0].probability > 0.99


def test_korean_text_survives() -> None:
    stories = [
        ["할머니가 아침마다 부엌에서 빵을 구웠다.", "고양이가 식탁 밑으로 들어왔다."],
        ["마을 사람들은 다리 앞으로 모였다.", "강물이 밤새 불어났기 때문이다."],
    ] * 8
    words = Tokenizer.train("bytebpe:320", [sentence for story in stories for sentence in story])
    corpus = Corpus.from_documents([[words.encode(one).ids.tolist() for one in story] for story in stories], words)
    net = model(128, vocab=words.vocab)
    made = replaced.build(replaced.Settings(**NARROW), net, words.special)
    row = made.rows(corpus, seed=0)[0]
    batch = made.batch([row], Chance(0, 0))
    text = text_of(net, made, batch)
    assert torch.equal(text.truth, torch.from_numpy(row.tokens).long())
    assert "고양이가" in words.decode(text.truth.tolist()) and "고양이가" not in words.decode(text.tokens.tolist()[:40])
    assert bool(torch.isfinite(total(made.loss(net, batch))))


def test_a_given_generator_is_asked_for_by_settings() -> None:
    discriminator = model(width=48, heads=4).settings
    for wanted in ({}, NARROW, {"generator_layers": 1}, {"generator_heads": 3, "generator_feedforward": 20}):
        generator = replaced.generator_settings(replaced.Settings(**wanted), discriminator)
        again = replaced.Settings(**replaced.objective_for(discriminator, generator))
        assert replaced.generator_settings(again, discriminator) == generator
    assert replaced.objective_for(discriminator, None) == {}
    with pytest.raises(UserError, match="differ in embedding_width"):
        replaced.objective_for(discriminator, model(width=12).settings.model_copy(update={"embedding_width": 12}))


IMPOSSIBLE: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "causal": (lambda: both(model(direction="causal")), UserError, r"set .*model\.direction=both"),
    "heads": (
        lambda: both(model(width=300), generator_share=0.5, generator_heads=4),
        UserError,
        r"objective\.generator_share=0\.5 of model\.width=300 .*heads=4 do not divide width=150",
    ),
    "one segment": (lambda: both(model(segments=1)), UserError, r"model\.segments to 2"),
    "two verdicts": (
        lambda: replaced.Settings(variant="replace_mlm", loss_on="chosen"),
        ValueError,
        "leave out one of them",
    ),
    "shares": (lambda: replaced.Settings(mask_share=0.9, random_share=0.2), ValueError, "together more than 1"),
    "no mask": (
        lambda: replaced.build(replaced.Settings(), model(), replace(SPECIAL, mask=None)),
        UserError,
        r"objective\.kind=replaced: the tokenizer has no mask token",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_is_said(case: str) -> None:
    make, error, words = IMPOSSIBLE[case]
    with pytest.raises(error, match=words):
        make()
