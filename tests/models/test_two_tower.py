"""Two towers against the paper's formulas written out, and what each output may depend on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.errors import UserError
from etude.models import two_tower
from etude.models.two_tower import Settings, TwoTower, reverse
from etude.nn.combiner import Combiner
from etude.nn.packed import Layout, Packed, pack, positions_from_bounds

VOCAB, WIDTH, HEADS, CONTEXT = 23, 16, 2, 12
LENGTHS = [3, 1, 4]
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "large": {"combiner_query": "concat", "combiner_heads": 4},
    "as the code": {"combiner_scaled": False},
    "slot in the combiner": {"combiner_slot": "learned"},
    "zero slots": {"slot": "zero", "combiner_slot": "zero"},
    "no slots": {"slot": "none"},
    "linear": {"combiner": "linear"},
    "bilm": {"combiner": "none"},
    "one tower read twice": {"share_towers": True},
    "learned positions and segments": {"positions": "learned", "segments": 2},
    "gelu": {"activation": "gelu", "feedforward": 24},
}


def settings(**changes: Any) -> Settings:
    sizes: dict[str, Any] = {"layers": 2, "width": WIDTH, "heads": HEADS, "vocab": VOCAB, "context": CONTEXT}
    return Settings(**sizes | changes)


def model_of(**changes: Any) -> TwoTower:
    torch.manual_seed(0)
    model = TwoTower(settings(**changes))
    with torch.no_grad():
        for parameter in model.parameters():  # biases and gains away from 0 and 1, or mistakes in them would not show
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch_of(lengths: list[int] = LENGTHS, seed: int = 1) -> Packed:
    draw = np.random.default_rng(seed)
    bounds = np.concatenate([[0], np.cumsum(lengths), [sum(lengths)] * 2])
    tokens = torch.from_numpy(draw.integers(0, VOCAB, sum(lengths)))
    segments = torch.from_numpy(draw.integers(0, 2, sum(lengths)))
    return Packed(
        tokens, torch.from_numpy(positions_from_bounds(bounds)), segments, Layout.from_bounds(bounds, max(lengths) + 1)
    )


# --- the formulas, one token at a time --------------------------------------------------------------

Weights = dict[str, Tensor]


def norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def feed(x: Tensor, weights: Weights, name: str, activation: Callable[[Tensor], Tensor]) -> Tensor:
    inner = activation(linear(norm(x, weights, f"{name}.norm"), weights, f"{name}.up"))
    return x + linear(inner, weights, f"{name}.down")


def mix(query: Tensor, keys: list[Tensor], values: list[Tensor], heads: int, scale: float) -> Tensor:
    """Attention of one query; zeros if there is no key."""
    if not keys:
        return torch.zeros_like(query)
    parts = []
    for head in range(heads):
        own = slice(head * len(query) // heads, (head + 1) * len(query) // heads)
        scores = torch.stack([scale * (query[own] * key[own]).sum() for key in keys])
        share = scores.exp() / scores.exp().sum()
        parts.append(sum((s * value[own] for s, value in zip(share, values, strict=True)), torch.zeros(())))
    return torch.cat(parts)


def slot_of(kind: str, weights: Weights, name: str) -> tuple[list[Tensor], list[Tensor]]:
    if kind == "none":
        return [], []
    if kind == "zero":
        return [torch.zeros(WIDTH, dtype=torch.float64)], [torch.zeros(WIDTH, dtype=torch.float64)]
    return [weights[f"{name}.slot.key"].flatten()], [weights[f"{name}.slot.value"].flatten()]


def tower(xs: list[Tensor], weights: Weights, name: str, given: Settings, backward: bool) -> list[list[Tensor]]:
    activation = {"relu": F.relu, "gelu": F.gelu}[given.activation]
    found = []
    for layer in range(given.layers):
        place = f"{name}.attention.{layer}"
        triples = [linear(norm(x, weights, f"{place}.norm"), weights, f"{place}.qkv").split(WIDTH) for x in xs]
        keys, values = slot_of(given.slot, weights, place)
        after = []
        for i, x in enumerate(xs):
            seen = range(i, len(xs)) if backward else range(i + 1)
            mixed = mix(
                triples[i][0],
                keys + [triples[j][1] for j in seen],
                values + [triples[j][2] for j in seen],
                given.heads,
                (WIDTH / given.heads) ** -0.5,
            )
            after.append(x + linear(mixed, weights, f"{place}.out"))
        xs = [feed(x, weights, f"{name}.feedforward.{layer}", activation) for x in after]
        found.append(xs)
    return found


def combine(ahead: list[Tensor], back: list[Tensor], weights: Weights, given: Settings, mask: str) -> list[Tensor]:
    size, zero = len(ahead), torch.zeros(WIDTH, dtype=torch.float64)
    if given.combiner == "linear":
        return [
            linear(
                torch.cat([ahead[i - 1] if i else zero, back[i + 1] if i + 1 < size else zero]),
                weights,
                "combiner.project",
            )
            for i in range(size)
        ]
    ahead = [norm(one, weights, "combiner.norm_forward") for one in ahead]
    back = [norm(one, weights, "combiner.norm_backward") for one in back]
    pairs = [linear(one, weights, "combiner.keys").split(WIDTH) for one in ahead + back]  # F then B
    heads = given.combiner_heads or given.heads
    scale = (WIDTH / heads) ** -0.5 if given.combiner_scaled else 1.0
    activation = {"relu": F.relu, "gelu": F.gelu}[given.activation]
    found = []
    for i in range(size):
        left, right = ahead[i - 1] if i else zero, back[i + 1] if i + 1 < size else zero
        query = linear(
            torch.cat([left, right]) if given.combiner_query == "concat" else left + right, weights, "combiner.query"
        )
        seen = [
            j
            for j in range(2 * size)
            if mask == "none"
            or (mask == "full" and (j < i if j < size else j - size > i))
            or (mask == "current" and (j <= i if j < size else j - size >= i))
        ]
        keys, values = slot_of(given.combiner_slot, weights, "combiner")
        mixed = mix(query, keys + [pairs[j][0] for j in seen], values + [pairs[j][1] for j in seen], heads, scale)
        found.append(feed(linear(mixed, weights, "combiner.out"), weights, "combiner.feedforward", activation))
    return found


def by_hand(weights: Weights, given: Settings, batch: Packed, mask: str) -> tuple[Tensor, list[Tensor]]:
    """The output, and the states of all layers."""
    lasts: list[Tensor] = []
    layers: list[list[Tensor]] = [[] for _ in range(given.layers + 2)]
    for start, stop in zip(batch.layout.host[:-1].tolist(), batch.layout.host[1:].tolist(), strict=True):
        xs = []
        for i in range(stop - start):
            x = math.sqrt(WIDTH) * weights["embedding.tokens.weight"][batch.tokens[start + i]]
            if given.positions == "learned":
                x = x + weights["embedding.positions.weight"][i]
            else:
                angles = [i / 10_000 ** (2 * (k // 2) / WIDTH) for k in range(WIDTH)]
                waves = [math.cos(angle) if k % 2 else math.sin(angle) for k, angle in enumerate(angles)]
                x = x + torch.tensor(waves, dtype=torch.float64)
            if given.segments:
                assert batch.segments is not None
                x = x + weights["embedding.segments.weight"][batch.segments[start + i]]
            xs.append(x)
        ahead = tower(xs, weights, "forwards", given, backward=False)
        back = tower(xs, weights, "forwards" if given.share_towers else "backwards", given, backward=True)
        layers[0] += [torch.cat([x, x]) for x in xs]
        for layer in range(given.layers):
            layers[layer + 1] += [torch.cat(both) for both in zip(ahead[layer], back[layer], strict=True)]
        if given.combiner == "none":
            lasts += [torch.cat(both) for both in zip(ahead[-1], back[-1], strict=True)]
            continue
        top = combine(ahead[-1], back[-1], weights, given, mask)
        lasts += top
        layers[-1] += [torch.cat([one, one]) for one in top]
    return torch.stack(lasts), [torch.stack(some) for some in layers if some]


def compared(name: str, mask: two_tower.Mask, path: str | None = None) -> None:
    model, batch = model_of(**VARIANTS[name]), batch_of()
    model.mask, model.path = mask, path
    weights = {key: value.detach().double().requires_grad_() for key, value in model.named_parameters()}
    expected, layers = by_hand(weights, model.settings, batch, mask)
    found = model(batch, layers=True)
    torch.testing.assert_close(found.last.double(), expected, rtol=1e-5, atol=1e-5)
    assert found.layers is not None and len(found.layers) == len(layers) == model.state_count
    for one, other in zip(found.layers, layers, strict=True):
        assert one.shape[1] == model.state_width
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted = torch.autograd.grad(expected, list(weights.values()), slope, allow_unused=True)
    got = torch.autograd.grad(found.last, list(model.parameters()), slope.float(), allow_unused=True)
    for key, one, other in zip(weights, got, wanted, strict=True):
        largest = 0.0 if other is None else float(other.abs().max())
        if one is None or not largest:
            assert largest == 0 and (one is None or not one.abs().max() > 1e-6), key
        else:
            torch.testing.assert_close(one.double() / largest, other / largest, rtol=0, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_the_formulas_of_the_paper(name: str) -> None:
    compared(name, "full")


@pytest.mark.parametrize("mask", ["current", "none"])
@pytest.mark.parametrize("name", ["base", "large", "slot in the combiner"])
def test_other_masks_are_the_formulas_of_the_paper(name: str, mask: two_tower.Mask) -> None:
    compared(name, mask)


# --- what an output depends on ----------------------------------------------------------------------


def jacobian(model: TwoTower, batch: Packed) -> Tensor:
    """(N, N): how far output i moves with the embedding of token j."""
    x = model.embedding(batch.tokens, batch.positions, batch.segments)[0].detach()
    rows = []
    for place in range(len(x)):
        leaf = x.clone().requires_grad_()
        out = from_embedding(model, batch, leaf)[place]
        rows.append(torch.autograd.grad(out.square().sum(), leaf)[0].abs().sum(1))
    return torch.stack(rows)


def from_embedding(model: TwoTower, batch: Packed, x: Tensor) -> Tensor:
    ahead = model.forwards(x, batch.layout, model.path)[-1]
    assert model.backwards is not None and model.combiner is not None
    back = model.backwards(x.flip(0), reverse(batch.layout), model.path)[-1].flip(0)
    return model.combiner(ahead, back, batch.layout, model.mask, model.path)


def company(batch: Packed) -> Tensor:
    """(N, N): of one sequence."""
    owner = torch.from_numpy(np.repeat(np.arange(len(batch.layout.lengths)), batch.layout.lengths))
    return owner[:, None] == owner[None, :]


@pytest.mark.parametrize(
    ("name", "path"),
    [("base", "grouped"), ("base", "reference"), ("large", "grouped"), ("slot in the combiner", "grouped")],
)
def test_an_output_moves_with_every_other_token_of_its_sequence_and_with_nothing_else(name: str, path: str) -> None:
    model, batch = model_of(**VARIANTS[name]), batch_of()
    model.path = path
    moved = jacobian(model, batch)
    expected = company(batch) & ~torch.eye(len(moved), dtype=torch.bool)
    assert torch.equal(moved > 1e-7, expected)
    assert not moved[~expected].any()  # to the last bit


def test_a_changed_token_changes_every_output_of_its_sequence_but_its_own() -> None:
    model, batch = model_of(), batch_of()
    before, together = model(batch).last, company(batch)
    for place in range(len(batch.tokens)):
        batch.tokens[place] = (batch.tokens[place] + 1) % VOCAB
        moved = (model(batch).last - before).abs().amax(1)
        batch.tokens[place] = (batch.tokens[place] - 1) % VOCAB
        others = together[place].clone()
        others[place] = False
        assert moved[place] == 0
        assert (moved[others] > 1e-6).all()
        assert not moved[~together[place]].any()


def test_unmasked_an_output_moves_with_its_own_token() -> None:
    """The leak test can fail: at fine-tuning the combiner sees everything."""
    model, batch = model_of(), batch_of()
    for mask in ("current", "none"):
        model.mask = mask  # type: ignore[assignment]
        assert (jacobian(model, batch).diagonal() > 1e-7).all()
        assert torch.equal(jacobian(model, batch) > 0, company(batch))


@pytest.mark.parametrize("name", ["base", "linear", "bilm", "no slots", "slot in the combiner"])
def test_one_token_gives_numbers(name: str) -> None:
    model = model_of(**VARIANTS[name])
    for sequences in ([[3]], [[3], [4]], [[3], [5, 6, 7], [4]]):
        out = model(pack(sequences)).last
        assert torch.isfinite(out).all()
        out.sum().backward()
    assert all(torch.isfinite(one.grad).all() for one in model.parameters() if one.grad is not None)


def test_company_changes_nothing() -> None:
    model = model_of().eval()
    sequences = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    together = model(pack(sequences)).last
    alone = torch.cat([model(pack([one])).last for one in sequences])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_reversed_layouts_are_the_same_sequences() -> None:
    layout = Layout.from_bounds(np.array([0, 3, 3, 4, 9, 9]), 6)
    turned = reverse(layout)
    assert turned.host.tolist() == [0, 0, 5, 6, 6, 9] == turned.bounds.tolist()
    assert reverse(layout) is turned and reverse(turned).host.tolist() == layout.host.tolist()


# --- cost and errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["base", "large", "no slots", "linear", "bilm", "one tower read twice"])
def test_flops_are_those_of_torchs_counter(name: str) -> None:
    """Of the slow path, which computes all scores: products of matrices, and those of attention over all pairs."""
    from torch.utils.flop_counter import FlopCounterMode

    model, batch = model_of(**VARIANTS[name]), batch_of([7, 5])
    model.path = "reference"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(batch)
    assert model.flops(batch.layout.lengths) == counter.get_total_flops()


def test_published_sizes() -> None:
    """Baevski et al. 2019, table 1 (370M with a table of 55,000 sub-words)."""
    big = {"width": 1024, "heads": 16, "feedforward": 4096, "context": 512, "layers": 12}
    with torch.device("meta"):
        model = TwoTower(Settings(**big, vocab=55_000, combiner_query="concat", combiner_heads=32))
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(370e6, rel=0.01)


def test_impossible_models_are_told() -> None:
    with pytest.raises(ValueError, match="combiner_heads=3"):
        settings(combiner_heads=3)
    with pytest.raises(ValueError, match="heads=3"):
        settings(heads=3)
    with pytest.raises(UserError, match="vocab"):
        TwoTower(settings(vocab=None))
    with pytest.raises(UserError, match="context of 12"):
        model_of()(batch_of([13]))


def test_dropout_is_drawn_in_training_alone() -> None:
    model, batch = model_of(dropout=0.2, attention_dropout=0.2, inner_dropout=0.2), batch_of()
    assert not torch.equal(model(batch).last, model(batch).last)
    model.eval()
    assert torch.equal(model(batch).last, model(batch).last)


def test_slots_start_as_small_as_the_released_code_draws_them() -> None:
    """One row of `width` numbers by Glorot's rule; as a matrix of heads they would be several times as large."""
    torch.manual_seed(0)
    model = TwoTower(settings(width=256, heads=16, layers=8, combiner_slot="learned"))
    slots = [tensor.detach().flatten() for name, tensor in model.named_parameters() if ".slot." in name]
    assert len(slots) == 2 * (2 * 8 + 1)
    assert torch.cat(slots).std() == pytest.approx(256**-0.5, rel=0.05)


@pytest.mark.parametrize("query", ["sum", "concat"])
def test_the_projections_of_the_combiner_start_as_the_released_code_draws_them(query: str) -> None:
    """By Glorot's rule for the matrices that it has: all three in one for a sum; for both sides, queries apart."""
    width = 256
    torch.manual_seed(0)
    combiner = TwoTower(settings(width=width, layers=1, combiner_query=query)).combiner
    assert isinstance(combiner, Combiner)
    scale = 4 * width if query == "sum" else 3 * width
    assert combiner.query.weight.std().item() == pytest.approx((2 / scale) ** 0.5, rel=0.02)
    assert combiner.keys.weight.std().item() == pytest.approx((2 / scale) ** 0.5, rel=0.02)
    assert combiner.out.weight.std().item() == pytest.approx((2 / (2 * width)) ** 0.5, rel=0.02)
