"""Recurrent encoder-decoders: the papers' steps by hand, no leaks, and decoding as trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from etude.chance import Chance
from etude.errors import UserError
from etude.models.recurrent_seq2seq import RecurrentSeq2Seq, Settings, build
from etude.nn.packed import pack
from etude.objectives import translate
from etude.objectives.rows.pairs import PairRow
from etude.text.tokenizer.special_tokens import Specials
from etude.train.padding import pad_batch
from etude.train.static_batch import hide_host_values

SOURCES = [[5, 6, 7, 3], [8, 9, 3], [4, 11, 12, 13, 14, 3]]
TARGETS = [[2, 15, 16], [2, 17, 18, 19, 20], [2, 21]]
BAHDANAU = {"cell": "gru", "bidirectional": True, "attention": "additive", "maxout": 5, "align": 7}
CASES: dict[str, dict[str, object]] = {
    "one context": {"layers": 2, "reverse": True},
    "one context at every step": {"layers": 2, "cell": "gru", "context_feeding": True},
    "one context, bidirectional": {"layers": 2, "cell": "gru", "bidirectional": True, "context_feeding": True},
    "bahdanau": BAHDANAU,
    "dot": {"attention": "dot", "layers": 2},
    "general, bidirectional": {"attention": "general", "bidirectional": True},
    "concat": {"attention": "concat", "tables": "separate"},
    "local, fed": {"attention": "general", "window": 2, "input_feeding": True, "reverse": True},
}


def make(case: str) -> RecurrentSeq2Seq:
    torch.manual_seed(0)
    return build(Settings(**({"width": 8, "embedding_width": 6, "vocab": 30} | CASES[case]))).eval()


@pytest.mark.parametrize("case", CASES)
def test_no_pair_sees_another_and_no_token_its_future(case: str) -> None:
    model = make(case)
    before = model(pack(TARGETS), source=pack(SOURCES)).last
    assert before.shape == (10, model.target_width)
    moved = (model(pack(TARGETS), source=pack([SOURCES[0], [8, 25, 3], SOURCES[2]])).last - before).abs().amax(1) > 1e-7
    assert moved.nonzero().flatten().tolist() == [3, 4, 5, 6, 7]
    changed = [TARGETS[0], [2, 17, 25, 19, 20], TARGETS[2]]
    moved = (model(pack(changed), source=pack(SOURCES)).last - before).abs().amax(1) > 1e-7
    assert moved.nonzero().flatten().tolist() == [5, 6, 7]
    alone = torch.cat([model(pack([t]), source=pack([s])).last for s, t in zip(SOURCES, TARGETS, strict=True)])
    torch.testing.assert_close(before, alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_decoding_step_by_step_gives_the_states_of_the_whole(case: str) -> None:
    model = make(case)
    whole = model(pack(TARGETS), source=pack(SOURCES), weights=True)
    decoding = model.start_decoding(pack(SOURCES), beams=2, weights=True)
    first = decoding.step(torch.full((6,), 2))
    torch.testing.assert_close(first, whole.last[[0, 0, 3, 3, 8, 8]], atol=1e-6, rtol=1e-5)
    decoding.select(torch.tensor([3, 2, 0, 0]), torch.tensor([1, 0]))
    second = decoding.step(torch.tensor([17, 3, 4, 15]))
    torch.testing.assert_close(second[[0, 3]], whole.last[[4, 1]], atol=1e-6, rtol=1e-5)
    if CASES[case].get("attention") is None:
        assert decoding.attention is None and model.alignments(pack(TARGETS), pack(SOURCES)) == []
        return
    [maps] = model.alignments(pack(TARGETS), pack(SOURCES))
    assert [tuple(pair.shape) for pair in maps] == [(1, 3, 4), (1, 5, 3), (1, 2, 6)]
    assert decoding.attention is not None
    torch.testing.assert_close(decoding.attention[3, :4], maps[0][0, 1], atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_a_context_vector_at_every_step_by_hand() -> None:
    """Cho et al. 2014: each step reads the last token, the state and the context vector."""
    model = make("one context at every step")
    _, start = model.encode(pack([SOURCES[0]]))
    context, states = start.layers[-1][0], list(start.layers)
    for place, token in enumerate(TARGETS[0]):
        x = torch.cat([model.embedding.weight[[token]], context], -1)
        for number, cell in enumerate(model.decoder):
            states[number] = cell.step(cell.input(x), states[number])
            x = states[number][0]
        expected = model(pack([TARGETS[0]]), source=pack([SOURCES[0]])).last[place]
        torch.testing.assert_close(x[0], expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_one_context_of_a_bidirectional_encoder_is_of_both_its_ends() -> None:
    """With one of them alone, half of the encoder would be computed and never read."""
    model = make("one context, bidirectional")
    layout = pack([SOURCES[0]]).layout
    x = model.embedding.weight[torch.tensor(SOURCES[0])]
    _, start = model.encode(pack([SOURCES[0]]))
    for number in range(2):
        forward, backward = model.forwards[number].scan(x, layout)[0], model.backwards[number].scan(x, layout, True)[0]
        expected = torch.tanh(model.start[number](torch.cat([forward[-1], backward[0]])))
        torch.testing.assert_close(start.layers[number][0][0], expected)
        x = torch.cat([forward, backward], -1)
    torch.testing.assert_close(start.fed, start.layers[-1][0])


@pytest.mark.parametrize("case", CASES)
def test_every_weight_learns(case: str) -> None:
    model = make(case)
    model(pack(TARGETS), source=pack(SOURCES)).last.square().sum().backward()
    idle = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert idle == []


@torch.no_grad()
def test_bahdanau_by_hand() -> None:
    """One pair, step by step, in the words of the paper's appendix; the recurrent layers are tested on their own."""
    model = make("bahdanau")
    source, target = SOURCES[0], TARGETS[0]
    vectors = model.embedding.weight[torch.tensor(source)]
    layout = pack([source]).layout
    annotations = torch.cat([
        model.forwards[0].scan(vectors, layout)[0], model.backwards[0].scan(vectors, layout, reverse=True)[0],
    ], -1)  # fmt: skip
    state = torch.tanh(model.start[0](annotations[0, 8:]))[None]
    for place, token in enumerate(target):
        alignment = model.alignment
        energy = alignment.value(torch.tanh(alignment.query(state) + alignment.key(annotations)))[:, 0]
        context = energy.softmax(0) @ annotations
        word = model.embedding.weight[token]
        cell = model.decoder[0]
        (state,) = cell.step(cell.input(torch.cat([word, context])[None]), (state,))
        inner = model.readout(torch.cat([state[0], word, context]))
        expected = torch.maximum(inner[0::2], inner[1::2])
        torch.testing.assert_close(model(pack([target]), source=pack([source])).last[place], expected)


@torch.no_grad()
def test_luong_by_hand_with_input_feeding() -> None:
    model = build(Settings(width=8, vocab=30, attention="dot", input_feeding=True))
    source, target = SOURCES[0], TARGETS[0]
    states, end = model.forwards[0].scan(model.embedding.weight[torch.tensor(source)], pack([source]).layout)
    state, fed = end, torch.zeros(8)
    for place, token in enumerate(target):
        cell = model.decoder[0]
        state = cell.step(cell.input(torch.cat([model.embedding.weight[token], fed])[None]), state)
        hidden = state[0][0]
        context = (states @ hidden).softmax(0) @ states
        fed = torch.tanh(model.join(torch.cat([context, hidden])))
        torch.testing.assert_close(model(pack([target]), source=pack([source])).last[place], fed)


@torch.no_grad()
def test_a_reversed_source_is_read_from_its_end() -> None:
    model = make("one context")
    plain = build(Settings(width=8, embedding_width=6, vocab=30, layers=2)).eval()
    weights = {name.replace("backwards", "forwards"): value for name, value in model.state_dict().items()}
    plain.load_state_dict(weights)
    turned = [source[::-1] for source in SOURCES]
    torch.testing.assert_close(
        model(pack(TARGETS), source=pack(SOURCES)).last, plain(pack(TARGETS), source=pack(turned)).last
    )


@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_that_torch_counts(case: str) -> None:
    """For pairs of one length, since attention reads sources side by side."""
    model = make(case)
    sources, targets = [[5, 6, 7, 3], [8, 9, 4, 3]], [[2, 15, 16], [2, 17, 18]]
    with FlopCounterMode(display=False) as counter:
        model(pack(targets), source=pack(sources))
    assert counter.get_total_flops() == model.pair_flops(np.array([4, 4]), np.array([3, 3]))


def test_the_output_layer_has_the_width_of_the_decoder() -> None:
    model = make("bahdanau")
    special = Specials(0, 1, 2, 3, 4, 5)
    objective = translate.build(translate.Settings(length=10, tied=False), model, special)
    assert objective.output is not None and objective.output.shape == (30, 5)
    with pytest.raises(UserError, match="no output layer over states"):
        translate.build(translate.Settings(length=10), model, special)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bidirectional": True, "reverse": True}, "leave out reverse"),
        ({"input_feeding": True}, "belong to attention dot, general or concat"),
        ({"attention": "dot", "maxout": 4}, "maxout is the output of attention=additive"),
        ({"attention": "dot", "bidirectional": True}, "attention=dot needs states of one width"),
        ({"embedding_width": 9}, "embedding_width is larger"),
        ({"attention": "dot", "context_feeding": True}, "context_feeding is for attention=none"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**({"width": 8} | settings))


@pytest.mark.parametrize("case", CASES)
def test_rectangles_give_the_loss_and_gradients_of_packed_pairs_and_read_no_host(case: str) -> None:
    """What a GPU records must not depend on lengths of the host; tokens behind the last bound belong to nobody."""
    model = make(case)
    objective = translate.build(translate.Settings(length=8, tied=False), model, Specials(0, 1, 2, 3, None, 3))
    sides = [side for pair in zip(SOURCES, [[*target[1:], 3] for target in TARGETS], strict=True) for side in pair]
    bounds = np.cumsum([0, *map(len, sides)]).astype(np.int32)
    batch = objective.batch([PairRow(0, np.concatenate(sides).astype(np.int32), bounds)], Chance(0, 0))
    padded = pad_batch(batch)
    assert padded.layout.rectangular and len(padded.tokens) == 16 * 8 and len(padded.source.tokens) == 16 * 8
    assert (padded.size, padded.lengths.tolist()) == (batch.size, batch.lengths.tolist())
    assert objective.flops(model, padded) == objective.flops(model, batch)
    hide_host_values(padded)
    parameters = [*model.parameters(), *objective.parameters()]
    plain, static = (
        (total := objective.loss(model, each)["loss"].sum, *torch.autograd.grad(total, parameters, allow_unused=True))
        for each in (batch, padded)
    )
    for left, right in zip(plain, static, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)
