"""Going on from kept keys and values gives what the whole sequence gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.models.transformer import Settings, Transformer, build
from etude.nn.attention.kv_cache import KVCache
from etude.nn.packed import pack

AXES: dict[str, dict[str, Any]] = {
    "gpt-2": {},
    "gpt-1": {"norm": "post"},
    "gpt-3": {"window": 3, "dense_every": 2},
    "rotary": {"positions": "rotary", "window": 3, "rotary_window_base": 50.0, "gated": True},
    "shared": {"share": "all", "positions": "sinusoidal"},
}


def model_of(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    base = {"layers": 3, "width": 32, "heads": 4, "vocab": 50, "context": 200, "direction": "causal"}
    return build(Settings(**base | {"init_deviation": 0.2} | changes)).eval()


def sequences_of(lengths: list[int]) -> list[list[int]]:
    draw = np.random.default_rng(4)
    return [draw.integers(0, 50, length).tolist() for length in lengths]


def split(flat: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    return list(flat.split(lengths))


def check(model: Transformer, sequences: list[list[int]], cuts: list[list[int]]) -> None:
    """Feeds each sequence piece by piece, cut at the given places, and compares with the whole."""
    lengths = [len(sequence) for sequence in sequences]
    with torch.no_grad():
        full = split(model(pack(sequences)).last, lengths)
        cache = KVCache()
        result: list[list[torch.Tensor]] = [[] for _ in sequences]
        for number in range(len(cuts[0]) + 1):
            pieces = [
                sequence[([0, *cut])[number] : ([*cut, len(sequence)])[number]]
                for sequence, cut in zip(sequences, cuts, strict=True)
            ]
            states = model(cache.pack(pieces), cache=cache).last
            for row, piece in enumerate(split(states, [len(piece) for piece in pieces])):
                result[row].append(piece)
    assert cache.lengths.tolist() == lengths
    for row in range(len(sequences)):
        torch.testing.assert_close(torch.cat(result[row]), full[row], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_prompts_then_token_by_token(axes: dict[str, Any]) -> None:
    prompts, further = [5, 1, 12, 2], 8
    sequences = sequences_of([prompt + further for prompt in prompts])
    check(model_of(**axes), sequences, [[prompt + step for step in range(further)] for prompt in prompts])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_pieces_in_any_order(data: st.DataObject) -> None:
    """With empty pieces too: sequences that have ended, or that start later."""
    lengths = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=4))
    cuts = [sorted(data.draw(st.lists(st.integers(0, length), min_size=3, max_size=3))) for length in lengths]
    axes = data.draw(st.sampled_from(["gpt-2", "gpt-3"]))
    check(model_of(**AXES[axes]), sequences_of(lengths), cuts)


def test_the_buffer_grows() -> None:
    sequences = sequences_of([150, 70])
    check(model_of(), sequences, [[60, 63, 66, 149], [1, 63, 64, 70]])


def test_sequences_can_be_dropped_doubled_and_reordered() -> None:
    model = model_of()
    sequences = sequences_of([4, 9, 6])
    cache = KVCache()
    with torch.no_grad():
        model(cache.pack(sequences), cache=cache)
        cache.select(np.array([2, 0, 2]))
        new = [[7], [8], [9]]
        result = model(cache.pack(new), cache=cache).last
        for row, source in enumerate((2, 0, 2)):
            expected = model(pack([sequences[source] + new[row]])).last[-1]
            torch.testing.assert_close(result[row], expected, rtol=1e-4, atol=1e-5)


def test_a_hundred_prompts_together_are_one_by_one() -> None:
    model = model_of()
    prompts = sequences_of([1 + 7 * number % 23 for number in range(100)])
    with torch.no_grad():
        cache = KVCache()
        states = model(cache.pack(prompts), cache=cache)
        ends = np.cumsum([len(prompt) for prompt in prompts]) - 1
        table = model.embedding.tokens.weight
        together = [(states.last[ends] @ table.T).argmax(-1)]
        for _ in range(4):
            states = model(cache.pack([[int(token)] for token in together[-1]]), cache=cache)
            together.append((states.last @ table.T).argmax(-1))
        for number in range(0, 100, 9):
            sequence = list(prompts[number])
            for step in together:
                separate = int((model(pack([sequence])).last[-1] @ table.T).argmax())
                assert separate == int(step[number])
                sequence.append(separate)


def test_unsupported_uses_of_a_cache_are_errors() -> None:
    with pytest.raises(UserError, match="direction='causal'"):
        model_of(direction="both")(pack([[1]]), cache=KVCache())
    model, cache = model_of(context=6), KVCache()
    model(cache.pack([[1, 2, 3, 4], [5]]), cache=cache)
    with pytest.raises(ValueError, match="1 sequences, but the cache holds 2"):
        cache.pack([[1]])
    with pytest.raises(UserError, match="7 tokens is longer than the model's context of 6"):
        model(cache.pack([[1, 2, 3], [5]]), cache=cache)


def test_a_reset_sequence_restarts_beside_others() -> None:
    model = model_of()
    sequences = sequences_of([7, 4, 9])
    cache = KVCache()
    with torch.no_grad():
        model(cache.pack(sequences), cache=cache)
        cache.reset(np.array([0, 2]))
        new = sequences_of([3, 1, 5])
        result = split(model(cache.pack(new), cache=cache).last, [3, 1, 5])
        full = [new[0], sequences[1] + new[1], new[2]]
        for row, sequence in enumerate(full):
            expected = model(pack([sequence])).last[-len(new[row]) :]
            torch.testing.assert_close(result[row], expected, rtol=1e-4, atol=1e-5)
    assert cache.lengths.tolist() == [3, 5, 5]
