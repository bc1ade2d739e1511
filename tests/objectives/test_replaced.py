"""Replaced-token detection: true draws, right labels, tied by use, the same whoever builds the batch, and it learns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from small_corpus import SPECIAL, tokenizer
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from etude import chance as hashes
from etude.chance import Chance
from etude.errors import UserError
from etude.loaded import Loaded
from etude.models import transformer
from etude.nn.packed import pack
from etude.objectives import replaced, sampling, segments
from etude.objectives.base import IGNORE, Term
from etude.recipes.schema import Recipe
from etude.recipes.size import measure, short
from etude.text.corpus import Corpus
from etude.text.tokenizer import Tokenizer

VOCAB = 120
MASK = SPECIAL.mask
BERT = {"norm": "post", "embedding_norm": True, "segments": 2, "embedding_width": 16}
NARROW = {"generator_share": 0.5}


def model(context: int = 32, vocab: int = VOCAB, **changes: Any) -> transformer.Transformer:
    wanted = {"layers": 2, "width": 32, "heads": 2, "context": context, "vocab": vocab, **BERT}
    torch.manual_seed(0)
    return transformer.build(transformer.Settings(**{**wanted, **changes}))


def both(net: transformer.Transformer | None = None, **wanted: Any) -> tuple[transformer.Transformer, Any]:
    net = net or model()
    return net, replaced.build(replaced.Settings(**{**NARROW, **wanted}), net, SPECIAL)


def corpus_of(documents: int = 40, seed: int = 0) -> Corpus:
    draw = random.Random(seed)
    sizes = [[draw.randint(1, 16) for _ in range(draw.randint(2, 12))] for _ in range(documents)]
    made = [[[draw.randint(6, VOCAB - 1) for _ in range(size)] for size in document] for document in sizes]
    return Corpus.from_documents(made, tokenizer(VOCAB))


CORPUS = corpus_of()
VARIANTS: dict[str, dict[str, Any]] = {
    "electra": {},
    "electra 15 %": {"loss_on": "chosen"},
    "replace mlm": {"variant": "replace_mlm"},
    "all-tokens mlm": {"variant": "all_tokens_mlm"},
}


@cache
def rows_under(rules: segments.Rules) -> segments.SegmentRows:
    return segments.SegmentRows(CORPUS, 1, rules)


def batch_of(made: Any, rows: list[int], step: int = 0) -> Any:
    given = rows_under(made.making)
    return made.batch([given[index] for index in rows], Chance(3, step))


def truth_of(made: Any, rows: list[int]) -> Tensor:
    given = rows_under(made.making)
    return torch.from_numpy(np.concatenate([given[index].tokens for index in rows])).long()


def text_of(net: Any, made: Any, batch: Any) -> Any:
    with torch.no_grad():
        return made._corrupt(*made._predict(net, batch), batch)


def total(terms: dict[str, Term]) -> Tensor:
    return sum((term.weight * term.sum / term.count for term in terms.values()), torch.zeros(()))


# --- draws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_draws_have_the_frequencies_of_the_softmax(temperature: float) -> None:
    torch.manual_seed(1)
    table, bias, state = torch.randn(9, 4), torch.randn(9), torch.randn(4)
    keys = torch.from_numpy(hashes.bits(5, np.arange(40_000)).view(np.int64))
    drawn = sampling.sample(state.expand(len(keys), 4), table, bias, keys, temperature)
    share = F.softmax((table @ state + bias) / temperature, -1).double().numpy()
    counts = np.bincount(drawn.numpy(), minlength=9)
    assert stats.chisquare(counts, share / share.sum() * len(keys)).pvalue > 1e-3


def test_draws_do_not_depend_on_chunks_and_carry_no_gradient() -> None:
    torch.manual_seed(1)
    states, table = torch.randn(50, 4, requires_grad=True), torch.randn(30, 4, requires_grad=True)
    keys = torch.randint(-(2**63), 2**63 - 1, (50,))
    whole = sampling.sample(states, table, None, keys)
    assert not whole.requires_grad
    for chunk in (1, 7, 50):
        assert torch.equal(sampling.sample(states, table, None, keys, chunk=chunk), whole)
    assert not torch.equal(sampling.sample(states, table, None, keys + 1), whole)


def test_noise_comes_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def watched(key: Tensor, index: Tensor) -> Tensor:
        sizes.append(len(key) * len(index))
        return hashes.gumbel(key, index)

    monkeypatch.setattr(sampling, "gumbel", watched)
    monkeypatch.setattr(sampling, "NOISE", 1000)
    sampling.sample(torch.randn(100, 4), torch.randn(300, 4), None, torch.arange(100))
    assert max(sizes) == 900 and sum(sizes) == 30_000


@pytest.mark.parametrize("variant", ["electra", "all-tokens mlm"])
def test_a_row_gets_the_same_draws_in_any_batch(variant: str) -> None:
    net, made = both(**VARIANTS[variant])
    rows = [5, 0, 700, 3]
    whole = batch_of(made, rows)
    text, terms = text_of(net, made, whole), made.loss(net, whole)
    size = made.making.row_tokens
    parts = []
    for order in ([0, 1], [3], [2]):
        batch = batch_of(made, [rows[number] for number in order])
        part = text_of(net, made, batch)
        for place, number in enumerate(order):
            here, there = slice(place * size, (place + 1) * size), slice(number * size, (number + 1) * size)
            assert torch.equal(part.tokens[here], text.tokens[there])
        parts.append(made.loss(net, batch))
    for name, term in terms.items():
        assert term.count == sum(part[name].count for part in parts)
        found = torch.stack([part[name].sum for part in parts]).sum()
        torch.testing.assert_close(found, term.sum, rtol=1e-5, atol=0)
    assert not torch.equal(text_of(net, made, batch_of(made, rows, step=1)).tokens, text.tokens)


def test_shapes_are_static() -> None:
    _, made = both()
    shapes = set()
    for index in range(0, 40, 2):
        batch = batch_of(made, [index, 10**6 + index], step=index)
        tensors = (batch.tokens, batch.layout.bounds, batch.index, batch.targets, batch.keys)
        shapes.add((*(tensor.shape for tensor in tensors), batch.layout.longest))
        assert batch.counts == {"generator": int((batch.targets != IGNORE).sum()), "discriminator": batch.size}
    assert len(shapes) == 1


# --- labels -----------------------------------------------------------------------------------------


def draw_instead(monkeypatch: pytest.MonkeyPatch, made: Any, batch: Any, wrong: Tensor) -> None:
    """The next draws are the true tokens, and the next id where `wrong` (M,) says so."""
    drawn = batch.targets.clamp(min=0) + wrong.long()
    monkeypatch.setattr(replaced, "sample", lambda *given: drawn)


def test_a_drawn_original_counts_as_original(monkeypatch: pytest.MonkeyPatch) -> None:
    net, made = both()
    batch, rows = batch_of(made, [0, 1]), [0, 1]
    used = batch.targets != IGNORE
    wrong = (torch.arange(len(used)) % 3 == 0) & used
    draw_instead(monkeypatch, made, batch, wrong)
    text, truth = text_of(net, made, batch), truth_of(made, rows)
    assert torch.equal(text.truth, truth)
    assert torch.equal(text.replaced.nonzero().squeeze(-1), batch.index[wrong].sort().values)
    assert torch.equal(text.tokens[~text.replaced], truth[~text.replaced])
    assert not (text.tokens == MASK).any()  # the discriminator never sees a mask
    assert not text.replaced[batch.layout.host[:-1][batch.layout.lengths > 0]].any()  # unused slots point at 0

    draw_instead(monkeypatch, made, batch, torch.zeros_like(used))
    odds = made.discriminator(net(replace(batch, tokens=truth)).last)
    plain = F.binary_cross_entropy_with_logits(odds, torch.zeros(batch.size), reduction="sum")
    torch.testing.assert_close(made.loss(net, batch)["discriminator"].sum, plain)


def test_metrics_say_how_well_replaced_tokens_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    net, made = both()
    batch = batch_of(made, [0, 1])
    used = batch.targets != IGNORE
    draw_instead(monkeypatch, made, batch, used)
    slots, size = batch.counts["generator"], batch.size
    said = torch.zeros(size, dtype=torch.bool)
    said[batch.index[used][: slots // 2]] = True  # half of the replaced ones are found,
    said[(~said).nonzero().squeeze(-1)[:3]] = True  # and three originals suspected, the first being [CLS]
    wrong = int((said & ~text_of(net, made, batch).replaced).sum())
    monkeypatch.setattr(made.discriminator, "forward", lambda last: said.float() * 2 - 1)
    with torch.no_grad():
        found = made.metrics(net, batch)
    hits = int(said.sum()) - wrong
    assert found["recall"].mean == pytest.approx(hits / slots)
    assert found["precision"].mean == pytest.approx(hits / (hits + wrong))
    assert found["accuracy"].mean == pytest.approx((size - slots - wrong + hits) / size)
    assert found["accuracy_gain"].mean == pytest.approx((hits - wrong) / size)
    assert found["replaced"].mean == pytest.approx(slots / size)
    assert [found[name].weight for name in ("generator", "discriminator", "accuracy")] == [1.0, 50.0, None]


@pytest.mark.parametrize("share", [1.0, 0.85])  # the paper's text, its code
def test_the_generator_sees_masks_and_the_rest_unchanged(share: float) -> None:
    _, made = both(mask_share=share)
    chosen = masked = kept = 0
    for step in range(12):
        rows = list(range(4 * step, 4 * step + 4))
        batch, truth = batch_of(made, rows, step), truth_of(made, rows)
        index = batch.index[batch.targets != IGNORE]
        assert len(index) == len(index.unique())  # without replacement
        assert not torch.isin(truth[index], torch.tensor([SPECIAL.start, SPECIAL.separator])).any()
        chosen, masked = chosen + len(index), masked + int((batch.tokens[index] == MASK).sum())
        kept += int((batch.tokens[index] == truth[index]).sum())
    assert masked + kept == chosen > 1500
    assert abs(masked / chosen - share) <= 3 * np.sqrt(share * (1 - share) / chosen)


# --- what is tied -----------------------------------------------------------------------------------


def test_what_is_tied_exists_once_and_under_the_models_names() -> None:
    expected = {
        "embeddings": set(),
        "tokens": {"positions.weight", "segments.weight", "norm.weight", "norm.bias"},
        "none": {"tokens.weight", "positions.weight", "segments.weight", "norm.weight", "norm.bias"},
    }
    for tie, own in expected.items():
        _, made = both(model(embedding_width=8), tie=tie)
        names = {name for name in made.state_dict() if name.startswith("generator.embedding.")}
        project = {"project.weight", "project.bias"} if tie != "none" else set()  # untied, it is as wide as itself
        assert names == {f"generator.embedding.{name}" for name in own | project}
    learner = torch.nn.ModuleDict(dict(zip(("model", "objective"), both(), strict=True)))
    tensors = list(learner.state_dict().values())
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
    heads = {f"generator_head.{name}" for name in ("dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias")}
    heads |= {f"discriminator.{name}" for name in ("dense.weight", "dense.bias", "out.weight", "out.bias")}
    names = {name for name, _ in learner["objective"].named_parameters() if not name.startswith("generator.")}
    assert names == heads


def test_no_gradient_passes_through_a_draw_but_embeddings_learn_from_both() -> None:
    net, made = both()
    batch = batch_of(made, [0])
    shared = ["embedding.tokens.weight", "embedding.positions.weight", "embedding.segments.weight"]
    shared += ["embedding.norm.weight", "embedding.norm.bias"]

    def touched(name: str) -> tuple[set[str], set[str]]:
        net.zero_grad()
        made.zero_grad()
        made.loss(net, batch)[name].sum.backward()
        return tuple(
            {key for key, one in module.named_parameters() if one.grad is not None and bool(one.grad.any())}
            for module in (net, made)
        )

    models, objectives = touched("discriminator")
    assert models == {name for name, _ in net.named_parameters()}
    assert {name.split(".")[0] for name in objectives} == {"discriminator"}
    models, objectives = touched("generator")
    assert models == set(shared)
    assert {name.split(".")[0] for name in objectives} == {"generator", "generator_head"}
    assert len(objectives) == sum(not name.startswith("discriminator.") for name, _ in made.named_parameters())


def test_the_generator_has_the_published_sizes() -> None:
    wanted = {"small": (64, 1, 256, 12, 128), "base": (256, 4, 1024, 12, 768), "large": (256, 4, 1024, 24, 1024)}
    for size, expected in wanted.items():
        recipe = Recipe.load(f"electra-{size}").resolve()
        made = replaced.generator_settings(recipe.objective, recipe.model)
        assert (made.width, made.heads, made.feedforward, made.layers, made.embedding_width) == expected


def test_the_small_discriminator_has_14_million_parameters() -> None:
    size = measure(Recipe.load("electra-small"))
    assert size.parameters == 13_483_008  # as the released encoder
    verdict = 256 * 256 + 256 + 256 + 1
    assert short(size.parameters + verdict, "KMB") == "13.5M"
    generator = 12 * (12 * 64 * 64 + 13 * 64) + (128 * 64 + 64)  # layers, and the projection from the embedding
    head = 64 * 128 + 128 + 2 * 128 + 30522
    assert size.head_parameters == generator + head + verdict


# --- the same numbers by a slow way -------------------------------------------------------------------


def slow_states(net: Any, lender: Any, tokens: np.ndarray, kinds: np.ndarray) -> Tensor:
    """One sequence through a post-norm encoder, written out from its weights in float64."""
    p = {name: one.detach().double() for name, one in net.named_parameters()}
    e = {name: one.detach().double() for name, one in lender.embedding.named_parameters()}

    def normed(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + net.settings.epsilon).sqrt() * gain + shift

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"].t() + p[f"{name}.bias"]

    x = torch.stack([e["tokens.weight"][t] + e["segments.weight"][s] for t, s in zip(tokens, kinds, strict=True)])
    x = normed(x + e["positions.weight"][: len(tokens)], e["norm.weight"], e["norm.bias"])
    x = dense(x, "embedding.project") if "embedding.project.weight" in p else x
    width, heads = net.width, net.settings.heads
    for layer in range(net.settings.layers):
        query, key, value = dense(x, f"attention.{layer}.qkv").split(width, -1)
        mixed = torch.zeros_like(x)
        for head in range(heads):
            part = slice(head * width // heads, (head + 1) * width // heads)
            scores = query[:, part] @ key[:, part].t() / np.sqrt(width // heads)
            mixed[:, part] = scores.softmax(-1) @ value[:, part]
        gain, shift = p[f"attention.{layer}.norm.weight"], p[f"attention.{layer}.norm.bias"]
        x = normed(x + dense(mixed, f"attention.{layer}.out"), gain, shift)
        inner = dense(x, f"feedforward.{layer}.up")
        inner = inner * (1 + torch.erf(inner / np.sqrt(2))) / 2
        gain, shift = p[f"feedforward.{layer}.norm.weight"], p[f"feedforward.{layer}.norm.bias"]
        x = normed(x + dense(inner, f"feedforward.{layer}.down"), gain, shift)
    return x


def slow_losses(net: Any, made: Any, rows: list[Any], chance: Chance, batch: Any) -> tuple[float, float]:
    head = {name: one.detach().double() for name, one in made.named_parameters()}
    table, spoken, judged = net.embedding.tokens.weight.detach().double(), 0.0, 0.0
    host, masked, kinds = batch.layout.host, batch.tokens.numpy(), batch.segments.numpy()
    places = {int(i): int(t) for i, t in zip(batch.index, batch.targets, strict=True) if t != IGNORE}
    for start, stop in pairwise(host):
        if start == stop:
            continue
        last = slow_states(made.generator, net, masked[start:stop], kinds[start:stop])
        text = masked[start:stop].copy()
        fake = np.zeros(stop - start)
        for place in range(start, stop):
            if place not in places:
                continue
            row = rows[place // made.making.row_tokens]
            x = F.gelu(
                last[place - start] @ head["generator_head.dense.weight"].t() + head["generator_head.dense.bias"]
            )
            x = F.layer_norm(x, x.shape, head["generator_head.norm.weight"], head["generator_head.norm.bias"], 1e-5)
            logits = table @ x + head["generator_head.bias"]
            spoken -= float(logits.log_softmax(-1)[places[place]])
            key = hashes.bits(chance.key("sample", row.index), np.array([place % made.making.row_tokens]))
            noise = hashes.gumbel(int(key[0]), np.arange(VOCAB))
            text[place - start] = int((logits.numpy() + noise).argmax())
            fake[place - start] = text[place - start] != places[place]
        x = slow_states(net, net, text, kinds[start:stop])
        x = F.gelu(x @ head["discriminator.dense.weight"].t() + head["discriminator.dense.bias"])
        odds = (x @ head["discriminator.out.weight"].t() + head["discriminator.out.bias"]).squeeze(-1).numpy()
        judged -= (fake * np.log(1 / (1 + np.exp(-odds))) + (1 - fake) * np.log(1 / (1 + np.exp(odds)))).sum()
    return spoken, judged


@pytest.mark.parametrize("changes", [{}, {"embedding_width": 32}])
def test_losses_are_those_of_an_independent_slow_way(changes: dict[str, Any]) -> None:
    net, made = both(model(**changes), row_tokens=64, mask_rate=0.3)
    with torch.no_grad():
        for one in [*net.parameters(), *made.parameters()]:
            one.add_(0.2 * torch.randn_like(one))  # so that nothing is at its first value
    chance, given = Chance(3, 4), rows_under(made.making)
    rows = [given[7], given[2]]
    batch = made.batch(rows, chance)
    terms = made.loss(net, batch)
    spoken, judged = slow_losses(net, made, rows, chance, batch)
    assert float(terms["generator"].sum.detach()) == pytest.approx(spoken, rel=1e-5)
    assert float(terms["discriminator"].sum.detach()) == pytest.approx(judged, rel=1e-5)
    assert (terms["generator"].weight, terms["discriminator"].weight) == (1.0, 50.0)
    assert (terms["generator"].count, terms["discriminator"].count) == (int((batch.targets != IGNORE).sum()), 128)


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
    monkeypatch.setattr("etude.objectives.judging.chunk_of", lambda vocab: 100)  # 256 tokens in three pieces
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
    net, made = both(tie=tie, **VARIANTS[variant])
    net.path = made.generator.path = "reference"  # fused attention is invisible to the counter
    batch = batch_of(made, [0])
    used = batch.targets != IGNORE  # the counter sees unused slots too: take them out
    batch.index, batch.targets, batch.keys = batch.index[used], batch.targets[used], batch.keys[used]
    with FlopCounterMode(display=False) as counter:
        total(made.loss(net, batch)).backward()
    # beyond what the two models ask for: logits once more to draw from, and once more in the backward pass
    narrow = made.generator.width if tie == "none" else 16
    again = 2 * int(used.sum()) * narrow * VOCAB
    again += 2 * batch.size * 16 * VOCAB if variant == "all-tokens mlm" else 0
    assert counter.get_total_flops() == made.flops(net, batch) + again


# --- learning ---------------------------------------------------------------------------------------


def fit(net: Any, made: Any, batches: Callable[[int], Any], steps: int, rate: float) -> None:
    optimizer = torch.optim.AdamW([*net.parameters(), *made.parameters()], lr=rate)
    for step in range(steps):
        total(made.loss(net, batches(step))).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("variant", "steps"), [("electra", 30), ("replace mlm", 60), ("all-tokens mlm", 60)])
def test_one_batch_is_learnt_by_heart(variant: str, steps: int) -> None:
    """Against a generator that stays as it is, so that the replaced tokens stay the same."""
    net, made = both(row_tokens=64, tie="none", generator_weight=0.0, **VARIANTS[variant])
    batch = batch_of(made, [0, 1])
    fit(net, made, lambda step: batch, steps=steps, rate=5e-3)
    with torch.no_grad():
        found = made.metrics(net, batch)
    assert found["replaced"].mean > 0.1
    assert found[made.discriminator.name].mean < 0.5 and found["accuracy"].mean > 0.98
    if variant == "electra":
        assert found["accuracy_gain"].mean > 0.1 and found["discriminator"].mean < 0.05


def test_generator_and_discriminator_learn_together() -> None:
    """By heart, the generator draws the true tokens: nothing is replaced any more, and everything judged original."""
    net, made = both(row_tokens=64)
    batch = batch_of(made, [0, 1])
    fit(net, made, lambda step: batch, steps=80, rate=1e-2)
    with torch.no_grad():
        found = made.metrics(net, batch)
    assert found["generator_accuracy"].mean > 0.95 and found["generator"].mean < 0.5
    assert found["replaced"].mean < 0.05 and found["discriminator"].mean < 0.2


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
    scores = made.logits(net, made.generate(net, batch))
    assert scores.shape == (batch.size, VOCAB)
    torch.testing.assert_close(scores[batch.index], hidden @ table.t() + made.generator_head.bias)
    alone = made.logits(net, made.generate(net, pack([framed])))
    assert alone.shape == (32, VOCAB)


def test_blanks_are_filled_by_the_generator() -> None:
    net, made = both()
    with torch.no_grad():
        made.generator_head.bias[20] = 40.0  # the generator says w20, whatever stands there
    guesses = Loaded(net, made, tokenizer(VOCAB)).fill("w7 [MASK] w9", top=3)
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
