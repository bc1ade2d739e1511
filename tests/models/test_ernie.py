"""ERNIE: equal to a plain reading of its specification, without leaks, its cost, its frozen table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from etude.errors import UserError
from etude.hub.families.ernie import make_table, unused_names
from etude.hub.mapping import to_published_names
from etude.models import transformer
from etude.models.ernie import Ernie, Settings, build
from etude.models.layer_features import LayerFeatures
from etude.models.transformer import Transformer
from etude.models.transformer import build as build_transformer
from etude.nn.entity_stream import build_stream
from etude.nn.packed import Layout, Packed, pack
from tests.models.ernie_reference import Reference

KINDS = ("sim", "mix", "norm", "norm")
TOY: dict[str, Any] = {
    "layers": 4, "width": 24, "heads": 3, "feedforward": 40, "vocab": 60, "context": 16, "norm": "post",
    "embedding_norm": True, "segments": 2, "pooler": True, "epsilon": 1e-12, "init_deviation": 0.3,
    "layer_kinds": KINDS, "entity_width": 12, "entity_heads": 4, "entities": 9,
}  # fmt: skip
LENGTHS = (7, 16, 1, 11)


def make_model(**changes: Any) -> Ernie:
    torch.manual_seed(3)
    model = build(Settings(**{**TOY, **changes})).eval()
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():  # biases and gains too: a bias of 0 would hide where it is added
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    entities, width = model.settings.entities or 0, model.settings.entity_width
    model.set_entity_vectors(np.random.default_rng(5).normal(size=(entities, width)).astype(np.float32))
    return model


def make_batch(
    lengths: tuple[int, ...] = LENGTHS, share: float = 0.4, size: int | None = None
) -> tuple[Packed, np.ndarray]:
    """A packed batch and the rows of the entity table at its tokens; the first tokens have none."""
    random = np.random.default_rng(1)
    packed = pack([random.integers(0, 60, length) for length in lengths], 16)
    packed.segments = torch.from_numpy(random.integers(0, 2, len(packed.tokens)))
    rows = np.where(random.random(len(packed.tokens)) < share, random.integers(1, 10, len(packed.tokens)), 0)
    rows[packed.layout.host[:-1]] = 0
    packed.entities = build_stream(rows, packed.layout, size)
    return packed, rows


def published_tensors(model: Ernie) -> dict[str, Tensor]:
    own = {
        f"model.{name}": tensor for name, tensor in model.state_dict(keep_vars=True).items() if name != "entity_table"
    }
    unused = {name: torch.randn(shape) for name, shape in unused_names(model.settings).items()}
    return {**to_published_names(make_table(model.settings), model.settings, own, "a test"), **unused}


def reference_states(model: Ernie, packed: Packed, rows: np.ndarray) -> list[Tensor]:
    """The states of all layers by the padded reading, packed again."""
    settings = model.settings
    kinds = [settings.kind_of(layer) for layer in range(settings.layers)]
    reference = Reference(published_tensors(model), kinds, settings.heads, settings.entity_heads)
    lengths = packed.layout.lengths
    present = torch.arange(int(lengths.max()))[None, :] < torch.from_numpy(lengths)[:, None]  # (B, L)

    def pad(values: Tensor) -> Tensor:
        padded = values.new_zeros(*present.shape, *values.shape[1:])
        padded[present] = values
        return padded

    assert packed.segments is not None
    row = torch.from_numpy(rows)
    entity_mask = pad((row > 0).long())
    entity_mask[:, 0] = 1
    states = reference.states(
        pad(packed.tokens), pad(packed.segments), present.long(), pad(model.entity_table[row]), entity_mask
    )
    return [state[present] for state in states]


@pytest.mark.parametrize("kinds", [KINDS, ("norm",) * 4, ("mix", "sim", "norm", "sim"), ("sim",) * 3, ("norm", "mix")])
@pytest.mark.parametrize("size", [None, 60])
def test_equals_a_plain_reading_of_the_specification(kinds: tuple[str, ...], size: int | None) -> None:
    model = make_model(layer_kinds=kinds)
    packed, rows = make_batch(size=size)
    with torch.no_grad():
        states, expected = model(packed, layers=True), reference_states(model, packed, rows)
    assert states.layers is not None
    for ours, theirs in zip(states.layers, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(packed).last, expected[-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [None, 60])
def test_gradients_equal_those_of_the_plain_reading(size: int | None) -> None:
    model = make_model()
    packed, rows = make_batch(size=size)
    weight = torch.randn(len(packed.tokens), 24, generator=torch.Generator().manual_seed(0))
    parameters = {name: parameter for name, parameter in model.named_parameters() if "pooler" not in name}
    ours = torch.autograd.grad((model(packed).last * weight).sum(), list(parameters.values()))
    theirs = torch.autograd.grad(
        (reference_states(model, packed, rows)[-1] * weight).sum(), list(parameters.values()), allow_unused=True
    )
    for name, own, expected in zip(parameters, ours, theirs, strict=True):
        torch.testing.assert_close(own, expected, atol=2e-4, rtol=2e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("kinds", [KINDS, ("norm", "mix", "sim", "sim")])
def test_states_of_some_tokens_are_those_of_all(kinds: tuple[str, ...]) -> None:
    model = make_model(layer_kinds=kinds)
    packed, _ = make_batch()
    only = torch.tensor([0, 0, 5, 9, 23, 24, 9])
    weight = torch.randn(len(only), 24)
    full, some = model(packed).last[only], model(packed, only=only).last
    torch.testing.assert_close(some, full, atol=1e-5, rtol=1e-5)
    parameters = [parameter for name, parameter in model.named_parameters() if "pooler" not in name]
    gradients = zip(
        torch.autograd.grad((full * weight).sum(), parameters),
        torch.autograd.grad((some * weight).sum(), parameters),
        strict=True,
    )
    assert all(torch.allclose(one, other, atol=2e-4, rtol=1e-3) for one, other in gradients)


# --- leaks --------------------------------------------------------------------------------------------


def test_entities_of_another_sequence_change_nothing() -> None:
    model = make_model()
    packed, rows = make_batch()
    other = rows.copy()
    start, stop = packed.layout.host[1], packed.layout.host[2]
    changed = np.flatnonzero(rows[start:stop]) + start
    assert len(changed) > 2
    other[changed] = 1 + rows[changed] % 9
    other[changed[0]] = 0
    packed_again = Packed(
        packed.tokens, packed.positions, packed.segments, packed.layout, entities=build_stream(other, packed.layout)
    )
    before, after = model(packed).last, model(packed_again).last
    outside = np.r_[0:start, stop : len(rows)]
    assert torch.equal(before[outside], after[outside])
    assert not torch.allclose(before[start:stop], after[start:stop], atol=1e-3)


def test_a_position_without_entity_is_not_seen_by_entities() -> None:
    """Entity states depend on tokens with an entity and on the first; a single layer shows it: no token attention."""
    model = make_model(layers=2, layer_kinds=("norm", "norm"))
    for attention in model.attention:  # tokens do not mix, so that only the entity stream carries anything across
        torch.nn.init.zeros_(attention.out.weight)
    packed, rows = make_batch()
    without = int(np.flatnonzero(rows[8:] == 0)[1] + 8)
    assert without not in packed.layout.host
    tokens = packed.tokens.clone()
    tokens[without] = (tokens[without] + 1) % 60
    changed = Packed(tokens, packed.positions, packed.segments, packed.layout, entities=packed.entities)
    difference = (model(packed).last - model(changed).last).abs().amax(-1)
    assert difference[without] > 1e-3
    difference[without] = 0
    assert difference.max() == 0
    carries = int(np.flatnonzero(rows[8:])[0] + 8)  # a token with an entity does reach the others of its sequence
    tokens = packed.tokens.clone()
    tokens[carries] = (tokens[carries] + 1) % 60
    changed = Packed(tokens, packed.positions, packed.segments, packed.layout, entities=packed.entities)
    difference = (model(packed).last - model(changed).last).abs().amax(-1)
    sequence = int(np.searchsorted(packed.layout.host, carries, side="right")) - 1
    inside = slice(*packed.layout.host[sequence : sequence + 2])
    assert difference[inside][1:].gt(1e-6).sum() > 1
    assert difference[: inside.start].max() == 0 and (inside.stop == len(rows) or difference[inside.stop :].max() == 0)


def test_a_batch_without_entities_has_the_first_tokens_alone() -> None:
    model = make_model()
    packed, rows = make_batch(share=0.0)
    plain = Packed(packed.tokens, packed.positions, packed.segments, packed.layout)
    torch.testing.assert_close(model(plain).last, model(packed).last, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(model(plain).last, reference_states(model, packed, rows)[-1], atol=1e-5, rtol=1e-5)


def test_empty_sequences_of_a_static_shape_change_nothing() -> None:
    model = make_model()
    packed, rows = make_batch()
    bounds = np.concatenate([packed.layout.host, np.full(3, len(rows))])
    layout = Layout.from_bounds(bounds, 16)
    padded = Packed(
        packed.tokens, packed.positions, packed.segments, layout, entities=build_stream(rows, layout, size=50)
    )
    torch.testing.assert_close(model(padded).last, model(packed).last, atol=1e-5, rtol=1e-5)
    plain = Packed(packed.tokens, packed.positions, packed.segments, layout)
    assert torch.isfinite(model(plain).last).all()


# --- parameters, cost, table --------------------------------------------------------------------------


def test_published_size_has_about_the_published_parameters() -> None:
    kinds = ("sim",) * 5 + ("mix",) + ("norm",) * 6
    sizes = {"layers": 12, "width": 768, "heads": 12, "feedforward": None, "vocab": 28_996, "context": 512}
    with torch.device("meta"):
        model = build(Settings(**{**TOY, **sizes, "layer_kinds": kinds, "entity_width": 100}))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert abs(count / 114e6 - 1) < 0.02  # paper, section 4.1


def test_names_of_a_bert_are_among_its_own() -> None:
    model = make_model()
    plain = {key: value for key, value in TOY.items() if "entit" not in key and key != "layer_kinds"}
    from etude.models.transformer import Settings as Plain

    bert = build_transformer(Plain(**plain))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    assert all(shapes[name] == tensor.shape for name, tensor in bert.state_dict().items())
    assert isinstance(model, Transformer)


def test_the_table_is_no_parameter_and_row_0_is_zero() -> None:
    model = make_model()
    assert "entity_table" not in dict(model.named_parameters())
    assert model.entity_table.shape == (10, 12) and not model.entity_table[0].any()
    with pytest.raises(UserError, match="shape"):
        model.set_entity_vectors(np.zeros((3, 12), np.float32))


def test_the_last_entity_output_is_no_parameter() -> None:
    names = dict(make_model().named_parameters())
    assert "feedforward.2.entity_down.weight" in names and "feedforward.3.entity_down.weight" not in names
    packed, _ = make_batch()
    model = make_model()
    model(packed).last.sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == [
        "pooler.weight", "pooler.bias"
    ]  # fmt: skip


@pytest.mark.parametrize("selected", [None, 5])
def test_flops_are_those_that_torch_counts(selected: int | None) -> None:
    model = make_model()
    packed, _ = make_batch(lengths=(16, 16))  # equal lengths, so that no padding is counted by torch
    assert packed.entities is not None
    model.path = "reference"
    only = None if selected is None else torch.arange(selected)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(packed, only=only)
    counted = model.flops(packed.layout.lengths, only=selected, entity_lengths=packed.entities.layout.lengths)
    assert counter.get_total_flops() == counted


def test_banded_layers_turn_by_a_base_of_their_own() -> None:
    """`rotary_window_base` was read, and changed nothing."""
    options: dict[str, Any] = {"layer_kinds": (), "positions": "rotary", "window": 2, "rotary_window_base": 7.0}
    ernie = make_model(**options)
    shared = {name: value for name, value in {**TOY, **options}.items() if name in transformer.Settings.model_fields}
    plain = build_transformer(transformer.Settings(**shared)).eval()
    plain.load_state_dict({name: tensor for name, tensor in ernie.state_dict().items() if name != "entity_table"})
    packed, _ = make_batch()
    torch.testing.assert_close(ernie(packed).last, plain(packed).last)


def test_wrong_settings_are_refused() -> None:
    for changes, word in (
        ({"layer_kinds": ("norm",) * 5}, "layers"),
        ({"entity_heads": 5}, "entity_heads"),
        ({"norm": "pre"}, "norm=post"),
    ):
        with pytest.raises(ValueError, match=word):
            Settings(**{**TOY, **changes})


def test_frozen_features_are_those_of_the_text_with_its_entities() -> None:
    """A cached sequence is told from one of the same tokens with other entities, and from one without any."""
    model, (packed, rows) = make_model(), make_batch()
    features = LayerFeatures(model, "all")
    for entities in (rows, np.where(rows > 0, rows % 9 + 1, 0), np.zeros_like(rows), rows):
        packed.entities = build_stream(entities, packed.layout)
        with torch.no_grad():
            expected = torch.cat(model.layer_states(packed), dim=-1)
        torch.testing.assert_close(features(packed).last, expected)
