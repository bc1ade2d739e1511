"""Replaced-token detection: true draws, right labels, tied by use, the same whoever builds the batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from etude import chance as hashes
from etude.chance import Chance
from etude.objectives import replaced
from etude.objectives.base import IGNORE
from etude.objectives.parts import token_sampling as sampling
from etude.recipes.schema import Recipe
from etude.recipes.size import format_count, measure_recipe
from tests.nn.test_draws import draw_slowly
from tests.objectives.replaced_system import MASK, VARIANTS, VOCAB, batch_of, both, model, rows_under, text_of, truth_of
from tests.objectives.small_corpus import SPECIAL

# --- draws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_draws_have_the_frequencies_of_the_softmax(temperature: float) -> None:
    torch.manual_seed(1)
    table, bias, state = torch.randn(9, 4), torch.randn(9), torch.randn(4)
    keys = torch.from_numpy(hashes.random_bits(5, np.arange(40_000)).view(np.int64))
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


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bf16 says so, at length
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_reads_what_is_drawn_without_a_loss(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Training draws from the logits of its loss, evaluation from logits of its own: the same tokens."""
    net, made = both()
    batch, read = batch_of(made, [0, 1]), []
    monkeypatch.setattr(
        replaced,
        "corrupt",
        lambda batch, samples, plain=replaced.corrupt: read.append(samples) or plain(batch, samples),
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        made.loss(net, batch)
        text_of(net, made, batch)
    assert torch.equal(read[0], read[1])


@pytest.mark.parametrize("variant", ["electra", "all-tokens mlm"])
def test_a_row_gets_the_same_draws_in_any_batch(variant: str) -> None:
    net, made = both(**VARIANTS[variant])
    rows = [5, 0, 700, 3]
    whole = batch_of(made, rows)
    text, terms = text_of(net, made, whole), made.loss(net, whole)
    size = made.row_rules.row_tokens
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
    plain = replaced.linear_cross_entropy_and_draws
    monkeypatch.setattr(replaced, "linear_cross_entropy_and_draws", lambda *given: (plain(*given)[0], drawn))


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
    size = measure_recipe(Recipe.load("electra-small"))
    assert size.parameters == 13_483_008  # as the released encoder
    verdict = 256 * 256 + 256 + 256 + 1
    assert format_count(size.parameters + verdict, "KMB") == "13.5M"
    generator = 12 * (12 * 64 * 64 + 13 * 64) + (128 * 64 + 64)  # layers, and the projection from the embedding
    head = 64 * 128 + 128 + 2 * 128 + 30522
    assert size.head_parameters == generator + head + verdict


# --- the same numbers by a slow way -------------------------------------------------------------------


def slow_states(net: Any, owner: Any, tokens: np.ndarray, kinds: np.ndarray) -> Tensor:
    """One sequence through a post-norm encoder, written out from its weights in float64."""
    p = {name: one.detach().double() for name, one in net.named_parameters()}
    e = {name: one.detach().double() for name, one in owner.embedding.named_parameters()}

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
            row = rows[place // made.row_rules.row_tokens]
            x = F.gelu(
                last[place - start] @ head["generator_head.dense.weight"].t() + head["generator_head.dense.bias"]
            )
            x = F.layer_norm(x, x.shape, head["generator_head.norm.weight"], head["generator_head.norm.bias"], 1e-5)
            logits = table @ x + head["generator_head.bias"]
            spoken -= float(logits.log_softmax(-1)[places[place]])
            key = hashes.random_bits(chance.key("sample", row.index), np.array([place % made.row_rules.row_tokens]))
            text[place - start] = draw_slowly(logits.tolist(), int(key[0]), VOCAB)
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
    chance, given = Chance(3, 4), rows_under(made.row_rules)
    rows = [given[7], given[2]]
    batch = made.batch(rows, chance)
    terms = made.loss(net, batch)
    spoken, judged = slow_losses(net, made, rows, chance, batch)
    assert float(terms["generator"].sum.detach()) == pytest.approx(spoken, rel=1e-5)
    assert float(terms["discriminator"].sum.detach()) == pytest.approx(judged, rel=1e-5)
    assert (terms["generator"].weight, terms["discriminator"].weight) == (1.0, 50.0)
    assert (terms["generator"].count, terms["discriminator"].count) == (int((batch.targets != IGNORE).sum()), 128)
