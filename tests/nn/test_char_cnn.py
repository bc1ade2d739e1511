"""The character CNN against plain loops, and the rows it reads."""

import numpy as np
import pytest
import torch

from etude.nn.char_cnn import CharacterCNN, Settings
from etude.recipes.schema import Recipe
from etude.text.tokenizer import char_ids
from etude.text.tokenizer.char_ids import words_to_char_ids

WORDS = ["a", "word", "한국", "x" * 60, "né"]


def small_settings(**changes):
    values = {"filters": [(1, 3), (2, 4), (5, 6)], "embedding": 4, "highways": 2, "project": 7, **changes}
    torch.manual_seed(3)
    return CharacterCNN(Settings(**values))


def test_a_word_is_its_bytes_between_marks():
    rows = words_to_char_ids([*WORDS, char_ids.SENTENCE_START, b"\xff"])
    assert rows.shape == (7, 50) and rows.dtype == np.int64
    assert rows[0, :4].tolist() == [259, ord("a") + 1, 260, 261]
    korean = "한국".encode()
    assert rows[2, : len(korean) + 2].tolist() == [259, *(byte + 1 for byte in korean), 260]
    assert rows[3].tolist() == [259, *[ord("x") + 1] * 48, 260]  # cut, and still ended
    assert rows[5, :4].tolist() == [259, 257, 260, 261]
    assert rows[6, 1] == 256
    assert words_to_char_ids([]).shape == (0, 50)


def plain(cnn, row):
    """One word, place by place, in numpy."""
    state = {name: item.detach().double().numpy() for name, item in cnn.state_dict().items()}
    letters = state["embedding.weight"][row]
    result = []
    for number, (width, channels) in enumerate(cnn.settings.filters):
        weight, bias = state[f"filters.{number}.weight"], state[f"filters.{number}.bias"]
        best = np.full(channels, -np.inf)
        for start in range(len(row) - width + 1):
            best = np.maximum(best, weight @ letters[start : start + width].reshape(-1) + bias)
        result.append(best)
    x = np.concatenate(result)
    x = np.maximum(x, 0) if cnn.settings.activation == "relu" else np.tanh(x)
    for number in range(cnn.settings.highways):
        own = {name: state[f"highways.{number}.{name}"] for name in
               ("gate.weight", "gate.bias", "transform.weight", "transform.bias")}  # fmt: skip
        gate = 1 / (1 + np.exp(-(own["gate.weight"] @ x + own["gate.bias"])))
        x = gate * np.maximum(own["transform.weight"] @ x + own["transform.bias"], 0) + (1 - gate) * x
    return state["project.weight"] @ x + state["project.bias"] if cnn.project is not None else x


@pytest.mark.parametrize("changes", [{}, {"activation": "tanh"}, {"highways": 0, "project": None}])
def test_equals_plain_loops(changes):
    cnn = small_settings(**changes)
    rows = words_to_char_ids(WORDS)
    expected = np.stack([plain(cnn, row) for row in rows])
    result = cnn(torch.from_numpy(rows)).detach().numpy()
    assert result.shape == (len(WORDS), cnn.width)
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_unneeded_padding_may_be_left_out():
    cnn = small_settings()
    words = ["a", "word", "né", "y" * 11]
    full, short = words_to_char_ids(words), words_to_char_ids(words, widest_filter=cnn.settings.widest)
    assert short.shape[1] == 11 + 2 + 5 < full.shape[1]
    np.testing.assert_allclose(
        cnn(torch.from_numpy(full)).detach(), cnn(torch.from_numpy(short)).detach(), atol=1e-6, rtol=0
    )
    assert (
        words_to_char_ids(["y" * 47], widest_filter=5).shape[1] == 50
    )  # no padding is left over: none may be left out


def test_mixed_precision_is_near_float32():
    """bf16 is the default on a GPU, and the highways refused to mix it with float32."""
    network, rows = small_settings(), torch.from_numpy(words_to_char_ids(WORDS))
    plain = network(rows)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = network(rows)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), plain, rtol=0.05, atol=0.02)
    mixed.float().sum().backward()
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in network.parameters())


def test_gradients_reach_every_parameter():
    cnn = small_settings(filters=[(1, 8), (2, 8)], highways=1)
    cnn(torch.from_numpy(words_to_char_ids(WORDS))).square().sum().backward()
    for name, parameter in cnn.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert not cnn.embedding.weight.grad[0].any()


def test_flops_are_those_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    cnn = small_settings()
    with FlopCounterMode(display=False) as counter:
        cnn(torch.from_numpy(words_to_char_ids(WORDS)))
    assert counter.get_total_flops() == cnn.flops(len(WORDS))


def test_a_filter_wider_than_words_is_refused():
    """It was accepted, and the first batch ended in a traceback."""
    with pytest.raises(ValueError, match="a filter of width 7 does not fit words of length=6 characters"):
        Settings(length=6)
    assert Settings(length=7).widest == 7


def test_gates_of_highways_start_where_each_paper_has_them() -> None:
    for name, bias in (("elmo", -2.0), ("two-tower-base", -1.0), ("two-tower-large", -1.0)):
        settings = Recipe.load(name).model.characters
        assert isinstance(settings, Settings)
        network = CharacterCNN(settings.model_copy(update={"filters": [(1, 3)], "project": 2}))
        assert [highway.gate.bias.detach().unique().item() for highway in network.highways] == [
            bias
        ] * settings.highways


@pytest.mark.parametrize("name", ["two-tower-base", "two-tower-large"])
def test_words_of_two_towers_start_about_as_large_as_positions(name: str) -> None:
    """A sinusoid is 0.7 in the mean square; with ELMo's first values words were 14, and positions hardly showed."""
    recipe = Recipe.load(name)
    settings, width = recipe.model.characters, recipe.model.width
    torch.manual_seed(0)
    network = CharacterCNN(settings.model_copy(update={"project": width}))
    rows = words_to_char_ids(["the", "cats", "of", "Vladivostok", "are", "21", ",", "한국"], settings.length)
    vectors = width**0.5 * network(torch.from_numpy(rows)).detach()
    assert 0.7 < vectors.square().mean().sqrt() < 3.0
    table, gate = (part.weight.detach() for part in (network.embedding, network.highways[0].gate))
    assert table[1:].std() == pytest.approx((2 / sum(table.shape)) ** 0.5, rel=0.02)
    assert gate.std() == pytest.approx((2 / (3 * settings.channels)) ** 0.5, rel=0.01)
    assert not network.embedding.weight[0].any()
