"""A joined encoder-decoder: what its decoder starts with, cached decoding, no leak across pairs, FLOPs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from etude.errors import UserError
from etude.models import recurrent, transformer
from etude.models.base import Model
from etude.models.joined_seq2seq import CrossDecoder, JoinedSeq2Seq, build_decoder, redraw
from etude.nn.packed import pack

VOCAB = 30
OPTIONS = {"layers": None, "width": None, "heads": None, "dropout": None}
SOURCES = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
TARGETS = [[2, 20, 21], [2, 22, 23, 24, 25], [2, 26]]


def make_transformer(**settings: object) -> transformer.Transformer:
    sizes = {"layers": 2, "width": 16, "heads": 2, "vocab": VOCAB, "context": 16, "init_deviation": 0.3}
    return transformer.build(transformer.Settings(**(sizes | settings)))


def make_recurrent() -> Model:
    return recurrent.build(recurrent.Settings(layers=1, width=8, cells=12, vocab=VOCAB))


def join(encoder: Model, copied: bool = False) -> JoinedSeq2Seq:
    torch.manual_seed(1)
    return JoinedSeq2Seq(encoder, build_decoder(encoder, copied=copied, **OPTIONS)).eval()


READERS = {
    "bert": lambda: make_transformer(segments=2, norm="post", embedding_norm=True, pooler=True),
    "gpt": lambda: make_transformer(direction="causal"),
    "rotary": lambda: make_transformer(positions="rotary", norm_kind="rms", bias=False, gated=True),
    "albert": lambda: make_transformer(share="all", embedding_width=8),
    "bilm": make_recurrent,
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@torch.no_grad()
def test_decoding_step_by_step_gives_the_states_of_whole_targets_and_no_pair_sees_another(name: str) -> None:
    torch.manual_seed(0)
    model = join(READERS[name](), copied=name != "bilm")
    together = model(pack(TARGETS), source=pack(SOURCES)).last.split([len(target) for target in TARGETS])
    for source, target, states in zip(SOURCES, TARGETS, together, strict=True):
        alone = model(pack([target]), source=pack([source])).last
        torch.testing.assert_close(alone, states, atol=1e-5, rtol=1e-5)
        decoding = model.start_decoding(pack([source]))
        steps = torch.cat([decoding.step(torch.tensor([token])) for token in target])
        torch.testing.assert_close(steps, states, atol=1e-5, rtol=1e-5)
        later = model(pack([[*target[:-1], 29]]), source=pack([source])).last
        torch.testing.assert_close(later[:-1], states[:-1], atol=1e-5, rtol=1e-5)  # no target token sees a later one
        other = model(pack([target]), source=pack([[*source[:-1], 28]])).last
        assert not torch.allclose(other[0], states[0], atol=1e-4)  # all of them see the whole source


@torch.no_grad()
def test_a_copied_decoder_is_the_language_model_until_it_attends_to_the_source() -> None:
    torch.manual_seed(0)
    writer = make_transformer(direction="causal").eval()
    model = join(writer, copied=True)
    for branch in model.decoder.cross_attention:
        torch.nn.init.zeros_(branch.out.weight)
    states = model(pack(TARGETS), source=pack(SOURCES)).last
    torch.testing.assert_close(states, writer(pack(TARGETS)).last)
    fresh = join(writer)
    assert not torch.equal(fresh.target_table, writer.embedding.tokens.weight)
    shallow = build_decoder(writer, copied=True, **(OPTIONS | {"layers": 1}))
    assert len(shallow.cross_attention) == 1
    torch.testing.assert_close(shallow.stack.attention[0].qkv.weight, writer.attention[0].qkv.weight)


def test_an_encoder_is_drawn_anew_where_the_decoder_alone_starts() -> None:
    writer = make_transformer(direction="causal")
    before = writer.embedding.tokens.weight.detach().clone()
    decoder = build_decoder(writer, copied=True, **OPTIONS)
    redraw(writer)
    assert not torch.equal(writer.embedding.tokens.weight, before)
    torch.testing.assert_close(decoder.stack.embedding.tokens.weight, before)


def test_what_cannot_start_a_decoder_is_refused() -> None:
    with pytest.raises(UserError, match="cannot write a target"):
        build_decoder(make_recurrent(), copied=True, **OPTIONS)
    with pytest.raises(UserError, match="cannot write a target"):
        redraw(make_recurrent())
    with pytest.raises(UserError, match="has 2 layers"):
        build_decoder(make_transformer(), copied=True, **(OPTIONS | {"layers": 3}))
    with pytest.raises(UserError, match="width and heads"):
        build_decoder(make_transformer(), copied=False, **(OPTIONS | {"width": 8}))
    banded = build_decoder(make_transformer(window=2), copied=False, **OPTIONS)
    assert isinstance(banded, CrossDecoder) and banded.stack.settings.positions == "sinusoidal"


def test_flops_are_those_of_pytorch() -> None:
    model = join(make_transformer())
    model.encoder.path = model.decoder.stack.path = "reference"  # type: ignore[assignment]
    source, target = pack([[5, 6, 7, 8]]), pack([[2, 20, 21]])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(target, source=source)
    lengths = np.array([4]), np.array([3])
    assert model.pair_flops(*lengths) == counter.get_total_flops()
