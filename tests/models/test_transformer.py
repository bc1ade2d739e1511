"""One Transformer: its counts, its settings, its leaks, its cost, its first values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from etude.errors import UserError
from etude.models.transformer import Settings, Transformer, build
from etude.nn.packed import Packed, pack

TOY: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "vocab": 50, "context": 32}
BERT: dict[str, Any] = {"norm": "post", "embedding_norm": True, "segments": 2, "pooler": True, "context": 512}
GPT: dict[str, Any] = {"direction": "causal", "activation": "gelu_tanh"}
ALBERT = BERT | {"vocab": 30_000, "embedding_width": 128, "share": "all"}

# An independent sum for each would repeat the code; these are the numbers of the papers and released weights.
EXACT = {
    "gpt-1": (
        GPT | {"layers": 12, "width": 768, "heads": 12, "vocab": 40_478, "context": 512, "norm": "post"},
        116_534_784,
    ),
    "gpt-2": (GPT | {"layers": 12, "width": 768, "heads": 12, "vocab": 50_257, "context": 1024}, 124_439_808),
    "gpt-2-medium": (GPT | {"layers": 24, "width": 1024, "heads": 16, "vocab": 50_257, "context": 1024}, 354_823_168),
    "gpt-2-large": (GPT | {"layers": 36, "width": 1280, "heads": 20, "vocab": 50_257, "context": 1024}, 774_030_080),
    "gpt-2-xl": (GPT | {"layers": 48, "width": 1600, "heads": 25, "vocab": 50_257, "context": 1024}, 1_557_611_200),
    "bert-base": (BERT | {"layers": 12, "width": 768, "heads": 12, "vocab": 30_522}, 109_482_240),
    "bert-large": (BERT | {"layers": 24, "width": 1024, "heads": 16, "vocab": 30_522}, 335_141_888),
    "albert-base": (ALBERT | {"layers": 12, "width": 768, "heads": 12}, 11_683_584),
    "albert-large": (ALBERT | {"layers": 24, "width": 1024, "heads": 16}, 17_683_968),
    "albert-xlarge": (ALBERT | {"layers": 24, "width": 2048, "heads": 16}, 58_724_864),
    "albert-xxlarge": (ALBERT | {"layers": 12, "width": 4096, "heads": 64}, 222_595_584),
}
ROUNDED = {
    "electra-small": (
        BERT | {"layers": 12, "width": 256, "heads": 4, "vocab": 30_522, "embedding_width": 128, "pooler": False},
        14e6,
    ),
    "albert, attention shared, E=128": (ALBERT | {"layers": 12, "width": 768, "heads": 12, "share": "attention"}, 64e6),
    "albert, feed-forward shared, E=128": (
        ALBERT | {"layers": 12, "width": 768, "heads": 12, "share": "feedforward"},
        38e6,
    ),
    "albert, none shared, E=128": (ALBERT | {"layers": 12, "width": 768, "heads": 12, "share": "none"}, 89e6),
    "albert, all shared, E=768": (ALBERT | {"layers": 12, "width": 768, "heads": 12, "embedding_width": 768}, 31e6),
    "gpt-3-small": (GPT | {"layers": 12, "width": 768, "heads": 12, "vocab": 50_257, "context": 2048}, 125e6),
    "gpt-3-xl": (GPT | {"layers": 24, "width": 2048, "heads": 16, "vocab": 50_257, "context": 2048}, 1.3e9),
    "gpt-3-13b": (GPT | {"layers": 40, "width": 5120, "heads": 40, "vocab": 50_257, "context": 2048}, 13e9),
    "gpt-3": (GPT | {"layers": 96, "width": 12_288, "heads": 96, "vocab": 50_257, "context": 2048}, 175e9),
}


def parameters(settings: dict[str, Any]) -> int:
    with torch.device("meta"):
        model = build(Settings(**settings))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", EXACT)
def test_published_sizes_have_the_published_parameters(name: str) -> None:
    settings, count = EXACT[name]
    assert parameters(settings) == count


@pytest.mark.parametrize("name", ROUNDED)
def test_published_sizes_have_about_the_published_parameters(name: str) -> None:
    settings, count = ROUNDED[name]
    assert abs(parameters(settings) / count - 1) < 0.04


def model_of(seed: int = 0, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    return build(Settings(**TOY | changes)).eval()


def batch_of(lengths: list[int], vocab: int = 50, segments: int = 0) -> Packed:
    draw = np.random.default_rng(3)
    packed = pack([draw.integers(0, vocab, length) for length in lengths])
    if segments:
        packed.segments = torch.from_numpy(draw.integers(0, segments, len(packed.tokens)))
    return packed


AXES: dict[str, dict[str, Any]] = {
    "encoder": {},
    "decoder": {"direction": "causal"},
    "post": {"norm": "post", "embedding_norm": True, "segments": 2},
    "banded": {"direction": "causal", "window": 2},
    "banded both": {"window": 2, "dense_every": 3},
    "rotary": {"positions": "rotary", "direction": "causal", "window": 3, "rotary_window_base": 100.0},
    "sinusoidal": {"positions": "sinusoidal"},
    "no positions": {"positions": "none", "direction": "causal"},
    "albert": {"norm": "post", "embedding_width": 8, "share": "all", "embedding_norm": True, "segments": 2},
    "share attention": {"share": "attention"},
    "share feedforward": {"share": "feedforward", "gated": True, "activation": "silu"},
    "modern": {"gated": True, "bias": False, "positions": "rotary", "embedding_norm": True, "first_norm": False},
    "llama": {"gated": True, "bias": False, "positions": "rotary", "norm_kind": "rms", "direction": "causal"},
}


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_a_sequence_gives_the_same_alone_and_in_company(axes: dict[str, Any]) -> None:
    model = model_of(**axes)
    together = batch_of([7, 1, 0, 20, 7, 13], segments=axes.get("segments", 0))
    states = model(together).last
    model.path = "reference"
    torch.testing.assert_close(model(together).last, states, rtol=1e-4, atol=1e-5)
    model.path = None
    for start, stop in zip(together.layout.host[:-1], together.layout.host[1:], strict=True):
        alone = pack([together.tokens[start:stop].numpy()])
        if together.segments is not None:
            alone.segments = together.segments[start:stop]
        torch.testing.assert_close(model(alone).last, states[start:stop], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_no_token_sees_another_sequence_or_the_future(axes: dict[str, Any]) -> None:
    model = model_of(**axes)
    packed = batch_of([6, 1, 9])
    before = model(packed).last
    for token in (0, 3, 6, 8, 15):
        packed.tokens[token] = (packed.tokens[token] + 1) % 50
        after = model(packed).last
        changed = (after != before).any(-1)
        owner = int(np.searchsorted(packed.layout.host, token, side="right")) - 1
        start, stop = packed.layout.host[owner : owner + 2]
        inside = torch.zeros(16, dtype=torch.bool)
        inside[token if axes.get("direction") == "causal" else start : stop] = True
        assert not changed[~inside].any()
        assert changed[token]
        assert bool(changed[inside].all()) or axes.get("window") is not None
        packed.tokens[token] = (packed.tokens[token] - 1) % 50


def test_bands_reach_exactly_as_far_as_they_should() -> None:
    """Two banded layers of window 2 between dense ones would reach everywhere; alone, one reaches 2 back."""
    model = model_of(layers=2, direction="causal", window=2, dense_every=2)
    assert [model.window_of(layer) for layer in range(2)] == [None, 2]
    model.attention[0].out.weight.data.zero_()  # the dense layer moves nothing between tokens
    packed = batch_of([12])
    before = model(packed).last
    packed.tokens[4] = (packed.tokens[4] + 1) % 50
    changed = (model(packed).last != before).any(-1)
    assert changed.nonzero().flatten().tolist() == [4, 5, 6]


def test_all_layers_on_request() -> None:
    packed = batch_of([5, 3])
    for norm in ("pre", "post"):
        model = model_of(norm=norm)
        states = model(packed, layers=True)
        assert states.layers is not None
        assert len(states.layers) == 4
        assert torch.equal(states.layers[-1], states.last)
        first, _ = model.embedding(packed.tokens, packed.positions, None)
        assert torch.equal(states.layers[0], first)
        assert model(packed).layers is None


def test_attention_weights_on_request() -> None:
    model = model_of(direction="causal")
    packed = batch_of([5, 0, 3])
    states = model(packed, weights=True)
    assert states.weights is not None
    assert len(states.weights) == 3
    assert [tuple(weights.shape) for weights in states.weights[0]] == [(4, 5, 5), (4, 0, 0), (4, 3, 3)]
    torch.testing.assert_close(states.weights[1][0].sum(-1), torch.ones(4, 5))
    assert states.weights[2][2].triu(1).abs().max().item() == 0.0
    torch.testing.assert_close(states.last, model(packed).last, rtol=1e-4, atol=1e-5)


def test_shared_branches_exist_once() -> None:
    shared = model_of(share="all", layers=5)
    names = [name for name, _ in shared.named_parameters()]
    assert {name.split(".")[1] for name in names if name.startswith(("attention", "feedforward"))} == {"0"}
    unrolled = model_of(share="none", layers=5)
    state = shared.state_dict()
    for name in list(unrolled.state_dict()):
        kind, _, rest = name.partition(".")
        if kind in ("attention", "feedforward"):
            state[name] = state[f"{kind}.0.{rest.partition('.')[2]}"]
    unrolled.load_state_dict(state)
    packed = batch_of([6, 9])
    assert torch.equal(unrolled(packed).last, shared(packed).last)


def test_parameter_names_are_the_contract() -> None:
    model = model_of(norm="pre", segments=2, embedding_norm=True, embedding_width=8, gated=True, pooler=True, layers=1)
    assert {name for name in model.state_dict() if name.endswith("weight")} == {
        *(f"embedding.{part}.weight" for part in ("tokens", "positions", "segments", "norm", "project")),
        *(f"attention.0.{part}.weight" for part in ("norm", "qkv", "out")),
        *(f"feedforward.0.{part}.weight" for part in ("norm", "up", "gate", "down")),
        "norm.weight",
        "pooler.weight",
    }


def test_the_pooler_is_tanh_of_the_first_state() -> None:
    model = model_of(pooler=True)
    packed = batch_of([4, 0, 3])
    last = model(packed).last
    pooled = model.pool(last, packed.layout)
    assert model.pooler is not None
    torch.testing.assert_close(pooled[[0, 2]], torch.tanh(model.pooler(last[[0, 4]])))
    with pytest.raises(UserError, match="pooler=true"):
        model_of().pool(last, packed.layout)


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_flops_are_what_torch_counts(axes: dict[str, Any]) -> None:
    """By the reference path, which torch's counter can see; a band is counted as it is, not as that path does it."""
    model = model_of(**axes, pooler=True)
    lengths = [7, 1, 0, 20, 13]
    packed = batch_of(lengths)
    model.path = "reference"
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        last = model(packed).last
        model.pool(last[packed.layout.bounds[:-1].long().clamp(max=40)][:1], pack([[1]]).layout)
    expected = model.flops(np.array(lengths)) + 2 * 32 * 32  # one pooled sequence
    window = axes.get("window")
    if window is not None:
        band = window + 1 if axes.get("direction") == "causal" else 2 * window + 1
        banded = sum(model.window_of(layer) is not None for layer in range(3))
        expected += banded * 4 * 32 * sum(length * (length - min(length, band)) for length in lengths)
    assert counter.get_total_flops() == expected
    assert model.flops(np.array(lengths), pooled=True) - model.flops(np.array(lengths)) == 4 * 2 * 32 * 32


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_the_states_asked_for_are_those_among_all(axes: dict[str, Any]) -> None:
    """With their gradients; and what is not asked for is neither computed nor counted."""
    model, packed = model_of(**axes).double(), batch_of([7, 1, 0, 20, 13])
    only = torch.tensor([40, 3, 0, 8, 8])  # in any order, and one twice
    slope = torch.randn(5, 32, dtype=torch.float64)
    parameters = list(model.parameters())
    chosen = model(packed, only=only).last
    every = model(packed).last[only]
    torch.testing.assert_close(chosen, every, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(last, parameters, slope, allow_unused=True) for last in (chosen, every)]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    model.path, lengths = "reference", np.array([7, 1, 0, 20, 13])
    with torch.no_grad(), FlopCounterMode(display=False) as whole:
        model(packed)
    with torch.no_grad(), FlopCounterMode(display=False) as part:
        model(packed, only=only)
    saved = model.flops(lengths) - model.flops(lengths, only=5)
    assert whole.get_total_flops() - part.get_total_flops() == saved > 0
    for more in ({"layers": True}, {"queries": True}):
        with pytest.raises(ValueError, match="ask for all"):
            model(packed, only=only, **more)


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_queries_and_keys_are_those_of_the_attention(axes: dict[str, Any]) -> None:
    """Weights made of them are the weights that the slow path shows."""
    model, lengths = model_of(**axes).double(), [7, 1, 12]
    packed = batch_of(lengths)
    states, bounds = model(packed, queries=True, weights=True), np.cumsum([0, *lengths])
    assert states.queries is not None and states.weights is not None
    assert len(states.queries) == len(states.weights) == model.settings.layers
    for layer, (asked, shown) in enumerate(zip(states.queries, states.weights, strict=True)):
        for start, stop, weights in zip(bounds[:-1], bounds[1:], shown, strict=True):
            query, key = asked[start:stop].transpose(0, 2).unbind(1)  # (H, L, d)
            scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
            made = scores.masked_fill(weights == 0, -torch.inf).softmax(-1)
            torch.testing.assert_close(made, weights, msg=f"layer {layer}")
    torch.testing.assert_close(model(packed, queries=True).last, model(packed).last)


def test_flops_of_a_training_step_of_gpt_2_are_six_a_parameter_and_token() -> None:
    """The rule of thumb of the field, for a context so short that attention hardly counts."""
    settings, _ = EXACT["gpt-2"]
    with torch.device("meta"):
        model = build(Settings(**settings))
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name)
    assert model.flops(np.array([4])) / (2 * 4 * matrices) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, r"heads=5 do not divide width=32: set heads to 4, or width to 30"),
        ({"width": 36, "heads": 4, "positions": "rotary"}, r"= 9 is odd"),
        ({"vocab": 0}, r"vocab"),
        ({"context": 0}, r"context"),
        ({"layers": 0}, r"layers"),
        ({"dropout": 1.0}, r"dropout"),
        ({"positions": "relative"}, r"'learned', 'sinusoidal', 'rotary' or 'none'"),
        ({"norm": "post", "first_norm": False}, r"first_norm=true"),
        ({"window": 4, "dense_every": 1}, r"drop window"),
        ({"embedding_dropout_on": "table", "embedding_norm": True}, r"without embedding_norm"),
        ({"activation": "swish"}, r"silu"),
        ({"widht": 4}, r"widht"),
    ],
)
def test_impossible_settings_say_what_to_change(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**TOY | changes)


def test_a_model_without_a_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.vocab"):
        build(Settings(**TOY | {"vocab": None}))


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    with pytest.raises(UserError, match="33 tokens is longer than the model's context of 32"):
        model_of()(batch_of([4, 33]))


def test_first_values_come_from_the_seed() -> None:
    one, same, other = model_of(1), model_of(1), model_of(2)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, same.get_parameter(name))
        if parameter.dim() > 1:
            assert not torch.equal(parameter, other.get_parameter(name))


@pytest.mark.parametrize(("init", "factor"), [("none", 1.0), ("paper", 1 / math.sqrt(6)), ("depth", None)])
def test_first_values_have_the_deviations_of_the_paper(init: Any, factor: float | None) -> None:
    model = model_of(init=init, width=128, feedforward=256, position_deviation=0.01, context=256, vocab=500)

    def deviation(name: str) -> float:
        return model.get_parameter(name).std().item()

    for layer in range(3):
        scale = 1 / math.sqrt(2 * (layer + 1)) if factor is None else factor
        assert deviation(f"attention.{layer}.out.weight") == pytest.approx(0.02 * scale, rel=0.03)
        assert deviation(f"feedforward.{layer}.down.weight") == pytest.approx(0.02 * scale, rel=0.03)
        assert deviation(f"attention.{layer}.qkv.weight") == pytest.approx(0.02, rel=0.03)
        assert deviation(f"feedforward.{layer}.up.weight") == pytest.approx(0.02, rel=0.03)
    assert deviation("embedding.tokens.weight") == pytest.approx(0.02, rel=0.03)
    assert deviation("embedding.positions.weight") == pytest.approx(0.01, rel=0.03)
    assert model.attention[0].qkv.bias.abs().sum().item() == 0.0
    assert (model.attention[0].norm.weight - 1).abs().sum().item() == 0.0


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 says so, and goes on
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_autocast_keeps_the_residual_stream_in_its_precision(placement: str) -> None:
    """Half the traffic; that it learns the same is shown by benchmarks/same_learning.py."""
    model = model_of(norm=placement)
    packed = batch_of([9, 5])
    with torch.autocast("cpu", torch.bfloat16):
        states = model(packed)
    assert states.last.dtype == torch.bfloat16
    assert (states.last - model(packed).last).abs().max().item() < 0.1


def test_dropout_axes_each_act_in_training_and_none_in_evaluation() -> None:
    packed = batch_of([9, 5])
    for axis in ("dropout", "attention_dropout", "embedding_dropout"):
        model = model_of(**{axis: 0.4})
        still = model(packed).last
        assert torch.equal(still, model(packed).last)
        model.train()
        torch.manual_seed(1)
        first = model(packed).last
        torch.manual_seed(1)
        assert torch.equal(first, model(packed).last)
        assert not torch.equal(first, still)


def test_table_dropout_travels_to_the_output_layer() -> None:
    model = model_of(embedding_dropout=0.5, embedding_dropout_on="table").train()
    states = model(batch_of([9]))
    assert states.table is not None
    assert 0.4 < float((states.table == 0).float().mean()) < 0.6
    model.eval()
    assert model(batch_of([9])).table is model.embedding.tokens.weight
    assert model_of()(batch_of([9])).table is not None


def test_every_parameter_gets_a_gradient() -> None:
    for axes in AXES.values():
        model = model_of(**axes).train()
        model(batch_of([7, 3], segments=axes.get("segments", 0))).last.square().sum().backward()
        missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        assert missing == []
