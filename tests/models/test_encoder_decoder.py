"""The Transformer encoder-decoder: equal to torch.nn.Transformer on padded pairs, without leaks, decoded as trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from etude.errors import UserError
from etude.models.encoder_decoder import EncoderDecoder, Settings, build
from etude.nn.embedding import sinusoidal_positions
from etude.nn.packed import pack

SOURCES = [[5, 6, 7, 3], [8, 9, 3], [4, 11, 12, 13, 14, 3]]
TARGETS = [[2, 15, 16], [2, 17, 18, 19, 20], [2, 21]]
SHAPE = {"layers": 2, "decoder_layers": 3, "width": 16, "heads": 4, "vocab": 30, "context": 12, "dropout": 0.0}


def make(**settings: object) -> EncoderDecoder:
    torch.manual_seed(0)
    model = build(Settings(**(SHAPE | settings)))
    with torch.no_grad():
        for parameter in model.parameters():  # biases and gains, too, must matter
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def as_torch(model: EncoderDecoder) -> nn.Transformer:
    """torch's own module with the same weights."""
    settings = model.settings
    reference = nn.Transformer(
        settings.width, settings.heads, settings.layers, settings.decoder_layers or settings.layers,
        model.inner, dropout=0.0, activation="relu", batch_first=True, norm_first=settings.norm == "pre",
        layer_norm_eps=settings.epsilon,
    )  # fmt: skip
    if settings.norm == "post":  # torch adds a norm behind each stack, which the paper has not
        reference.encoder.norm = reference.decoder.norm = None
    weights: dict[str, Tensor] = {}

    def put(name: str, module: nn.Module) -> None:
        weights.update({f"{name}.{key}": value for key, value in module.state_dict().items()})

    for stack in ("encoder", "decoder"):
        cross = stack == "decoder"
        for number, attention in enumerate(getattr(model, f"{stack}_attention")):
            layer, feedforward = f"{stack}.layers.{number}", getattr(model, f"{stack}_feedforward")[number]
            weights[f"{layer}.self_attn.in_proj_weight"] = attention.qkv.weight
            weights[f"{layer}.self_attn.in_proj_bias"] = attention.qkv.bias
            put(f"{layer}.self_attn.out_proj", attention.out)
            put(f"{layer}.norm1", attention.norm)
            if cross:
                branch = model.cross_attention[number]
                for kind in ("weight", "bias"):
                    both = [getattr(part, kind) for part in (branch.query, branch.key_value)]
                    weights[f"{layer}.multihead_attn.in_proj_{kind}"] = torch.cat(both)
                put(f"{layer}.multihead_attn.out_proj", branch.out)
                put(f"{layer}.norm2", branch.norm)
            put(f"{layer}.linear1", feedforward.up)
            put(f"{layer}.linear2", feedforward.down)
            put(f"{layer}.{'norm3' if cross else 'norm2'}", feedforward.norm)
        if settings.norm == "pre":
            put(f"{stack}.norm", getattr(model, f"{stack}_norm"))
    reference.load_state_dict(weights)
    return reference.eval()


def embed(model: EncoderDecoder, sequences: list[list[int]], target: bool) -> tuple[Tensor, Tensor]:
    """Padded inputs by hand, (S, L, D), and where the padding is."""
    words = model.target_embedding if target and model.target_embedding is not None else model.embedding
    longest = max(map(len, sequences))
    ids = torch.tensor([sequence + [0] * (longest - len(sequence)) for sequence in sequences])
    padding = torch.tensor([[place >= len(sequence) for place in range(longest)] for sequence in sequences])
    if model.settings.positions == "learned":
        position = words.positions.weight[:longest]
    else:
        position = sinusoidal_positions(torch.arange(longest), model.width)
    return words.tokens.weight[ids] * model.width**0.5 + position, padding


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("tables", ["shared", "separate"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_states_and_gradients_equal_torch(norm: str, tables: str, positions: str) -> None:
    model = make(norm=norm, tables=tables, positions=positions)
    reference = as_torch(model)
    source, source_padding = embed(model, SOURCES, target=False)
    target, _ = embed(model, TARGETS, target=True)
    causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
    padded = reference(
        source, target, tgt_mask=causal, src_key_padding_mask=source_padding, memory_key_padding_mask=source_padding,
        tgt_is_causal=True,
    )  # fmt: skip
    packed = model(pack(TARGETS), source=pack(SOURCES)).last
    expected = torch.cat([states[: len(tokens)] for states, tokens in zip(padded, TARGETS, strict=True)])
    torch.testing.assert_close(packed, expected, atol=1e-5, rtol=1e-5)
    weight = torch.randn(packed.shape, generator=torch.Generator().manual_seed(1))
    table = model.embedding.tokens.weight
    ours, theirs = (torch.autograd.grad((out * weight).sum(), table)[0] for out in (packed, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert (model.target_embedding is None) == (tables == "shared")


def test_no_pair_sees_another_and_no_token_its_future() -> None:
    model = make()
    before = model(pack(TARGETS), source=pack(SOURCES)).last
    changed_source = [SOURCES[0], [8, 25, 3], SOURCES[2]]
    moved = (model(pack(TARGETS), source=pack(changed_source)).last - before).abs().amax(1) > 1e-6
    assert moved.nonzero().flatten().tolist() == [3, 4, 5, 6, 7]
    changed_target = [TARGETS[0], [2, 17, 25, 19, 20], TARGETS[2]]
    moved = (model(pack(changed_target), source=pack(SOURCES)).last - before).abs().amax(1) > 1e-6
    assert moved.nonzero().flatten().tolist() == [5, 6, 7]
    alone = torch.cat([model(pack([t]), source=pack([s])).last for s, t in zip(SOURCES, TARGETS, strict=True)])
    torch.testing.assert_close(before, alone, atol=1e-5, rtol=1e-5)


def test_the_slow_path_is_the_same() -> None:
    model = make()
    fast = model(pack(TARGETS), source=pack(SOURCES)).last
    model.path = "reference"
    torch.testing.assert_close(fast, model(pack(TARGETS), source=pack(SOURCES)).last, atol=1e-5, rtol=1e-5)
    maps = model.alignments(pack(TARGETS), pack(SOURCES))
    assert len(maps) == 3 and [tuple(pair.shape) for pair in maps[0]] == [(4, 3, 4), (4, 5, 3), (4, 2, 6)]


@torch.no_grad()
def test_decoding_step_by_step_gives_the_states_of_the_whole() -> None:
    """Hypotheses are reordered and doubled on the way, as a beam search does."""
    model = make(norm="pre")
    whole = model(pack(TARGETS), source=pack(SOURCES), weights=True)
    decoding = model.start_decoding(pack(SOURCES), beams=2, weights=True)
    first = decoding.step(torch.full((6,), 2))
    torch.testing.assert_close(first, whole.last[[0, 0, 3, 3, 8, 8]], atol=1e-5, rtol=1e-5)
    decoding.select(torch.tensor([3, 2, 0, 0]), torch.tensor([1, 0]))
    second = decoding.step(torch.tensor([17, 3, 4, 15]))
    torch.testing.assert_close(second[[0, 3]], whole.last[[4, 1]], atol=1e-5, rtol=1e-5)
    assert whole.weights is not None
    expected = torch.zeros(2, 6)
    expected[0, :3], expected[1, :4] = whole.weights[-1][1][:, 1].mean(0), whole.weights[-1][0][:, 1].mean(0)
    assert decoding.attention is not None
    torch.testing.assert_close(decoding.attention[[0, 3]], expected, atol=1e-5, rtol=1e-5)


def test_flops_are_those_that_torch_counts() -> None:
    model = make()
    model.path = "reference"  # fused attention is not seen by the counter
    with FlopCounterMode(display=False) as counter:
        model(pack(TARGETS), source=pack(SOURCES))
    assert counter.get_total_flops() == model.pair_flops(np.array([4, 3, 6]), np.array([3, 5, 2]))


def test_lengths_and_heads_are_checked() -> None:
    model = make()
    with pytest.raises(UserError, match="longer than the model's context of 12"):
        model(pack([[2] * 13]), source=pack([[3]]))
    with pytest.raises(UserError, match="longer than the model's context of 12"):
        model(pack([[2]]), source=pack([[3] * 13]))
    with pytest.raises(ValidationError, match="heads=3 do not divide width=16"):
        Settings(**(SHAPE | {"heads": 3}))


@torch.no_grad()
def test_first_weights_suit_the_scale_of_the_vectors() -> None:
    """Tables start at width ** -0.5: times sqrt(width) they have the size of the positions. Matrices by Glorot."""
    torch.manual_seed(0)
    model = build(Settings(layers=1, width=64, heads=4, feedforward=256, vocab=2000, context=32)).eval()
    deviations = {name: float(weight.std()) for name, weight in model.named_parameters() if weight.dim() > 1}
    expected = dict.fromkeys(deviations, (2 / (64 + 64)) ** 0.5)
    expected |= {name: (2 / (64 + 256)) ** 0.5 for name in deviations if "feedforward" in name}
    expected["embedding.tokens.weight"] = 64**-0.5
    assert deviations == pytest.approx(expected, rel=0.05)
    first = model.encode(pack([list(range(30))] * 3), layers=True).layers
    assert first is not None
    words = first[0] - sinusoidal_positions(torch.arange(30).repeat(3), 64)
    assert float(words.square().mean()) == pytest.approx(1.0, rel=0.1)
