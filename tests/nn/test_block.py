"""Residual branches, embeddings, norms and rotary positions against plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn import embedding as embeddings
from etude.nn.activations import ACTIVATIONS
from etude.nn.block import AttentionBranch, FeedForwardBranch, Placement, pool_first
from etude.nn.embedding import Embedding, sinusoidal_positions
from etude.nn.norm import Norm
from etude.nn.packed import Layout, pack


def plain_norm(x: Tensor, norm: Norm) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    assert norm.bias is not None
    return (x - mean) / torch.sqrt(variance + norm.epsilon) * norm.weight + norm.bias


def randomize(module: nn.Module) -> None:
    """Random gains and biases too, so that a missing one shows."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.dim() == 1) * 0.5)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_attention_branch_is_the_plain_formula(placement: Placement) -> None:
    branch = AttentionBranch(8, 2, placement=placement, norm=Norm(8, 1e-5))
    randomize(branch)
    layout = Layout.from_bounds(np.array([0, 5]), 5)
    x = torch.randn(5, 8)

    def inner(x: Tensor) -> Tensor:
        projected = x @ branch.qkv.weight.T + branch.qkv.bias
        heads = []
        for head in range(2):
            query, key, value = (projected[:, 8 * part + 4 * head : 8 * part + 4 * head + 4] for part in range(3))
            scores = query @ key.T / 2.0  # sqrt of the head's size, 4
            heads.append((scores + torch.full((5, 5), -math.inf).triu(1)).softmax(-1) @ value)
        return torch.cat(heads, -1) @ branch.out.weight.T + branch.out.bias

    expected = x + inner(plain_norm(x, branch.norm)) if placement == "pre" else plain_norm(x + inner(x), branch.norm)
    torch.testing.assert_close(branch(x, layout, causal=True), expected)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu_squared", "silu"])
def test_feedforward_branch_is_the_plain_formula(placement: Placement, gated: bool, activation: str) -> None:
    formulas = {
        "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "relu": lambda x: x.clamp(min=0),
        "relu_squared": lambda x: x.clamp(min=0) ** 2,
        "silu": lambda x: x / (1 + torch.exp(-x)),
    }
    branch = FeedForwardBranch(6, 10, placement=placement, norm=Norm(6), activation=activation, gated=gated)
    randomize(branch)
    x = torch.randn(7, 6)
    bent = formulas[activation]

    def inner(x: Tensor) -> Tensor:
        up = x @ branch.up.weight.T + branch.up.bias
        if gated:
            assert branch.gate is not None
            middle = bent(x @ branch.gate.weight.T + branch.gate.bias) * up
        else:
            middle = bent(up)
        return middle @ branch.down.weight.T + branch.down.bias

    expected = x + inner(plain_norm(x, branch.norm)) if placement == "pre" else plain_norm(x + inner(x), branch.norm)
    torch.testing.assert_close(branch(x), expected)
    assert set(formulas) == set(ACTIVATIONS)


def test_no_biases_when_disabled() -> None:
    branches = nn.ModuleList(
        [
            AttentionBranch(8, 2, placement="pre", norm=Norm(8, bias=False), bias=False),
            FeedForwardBranch(8, 16, placement="pre", norm=Norm(8, bias=False), bias=False, gated=True),
        ]
    )
    assert [name for name, _ in branches.named_parameters() if "bias" in name] == []


@pytest.mark.parametrize("kind", ["attention", "feedforward"])
def test_dropout_falls_on_the_branch_and_only_in_training(kind: str) -> None:
    layout = Layout.from_bounds(np.array([0, 400]), 400)
    x = torch.randn(400, 8)
    if kind == "attention":
        branch: nn.Module = AttentionBranch(8, 2, placement="pre", norm=Norm(8), dropout=0.5)
        run = lambda: branch(x, layout, causal=False)  # noqa: E731
    else:
        branch = FeedForwardBranch(8, 16, placement="pre", norm=Norm(8), dropout=0.5)
        run = lambda: branch(x)  # noqa: E731
    torch.manual_seed(0)
    untouched = float((run() == x).float().mean())  # a dropped element leaves the residual stream alone
    assert abs(untouched - 0.5) < 0.05
    branch.eval()
    assert float((run() == x).float().mean()) == 0.0


def test_norms_run_in_float32_under_autocast() -> None:
    norm = Norm(64)
    x = (torch.randn(10, 64) * 0.01 + 100).bfloat16()  # a small spread around a large mean: hopeless in bfloat16
    exact = F.layer_norm(x.double(), (64,), eps=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(norm(x).double(), exact, rtol=1e-2, atol=1e-2)
        assert norm(x.float()).dtype == torch.float32
        torch.testing.assert_close(norm(x.float()).double(), exact, rtol=1e-4, atol=1e-4)


def test_root_mean_square_norm_is_its_formula() -> None:
    norm = Norm(16, 1e-6, kind="rms")
    randomize(norm)
    x = torch.randn(5, 16)
    expected = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * norm.weight
    torch.testing.assert_close(norm(x), expected)
    assert norm.bias is None


def test_sinusoids_are_the_papers() -> None:
    table = sinusoidal_positions(torch.tensor([0, 1, 7, 1000]), 6)
    for row, position in enumerate((0, 1, 7, 1000)):
        for column in range(6):
            angle = position / 10_000 ** (2 * (column // 2) / 6)
            expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            assert abs(float(table[row, column]) - expected) < 2e-5
    assert sinusoidal_positions(torch.arange(3), 5).shape == (3, 5)


def test_embedding_adds_normalises_and_projects_in_albert_s_order() -> None:
    embedding = Embedding(20, 8, table_width=4, context=10, segments=2, norm=Norm(4, 1e-12))
    randomize(embedding)
    tokens, positions, segments = torch.tensor([3, 19, 3]), torch.tensor([0, 1, 9]), torch.tensor([0, 1, 1])
    result, table = embedding(tokens, positions, segments)
    assert embedding.positions is not None
    assert embedding.segments is not None
    assert embedding.project is not None
    assert embedding.norm is not None
    summed = embedding.tokens.weight[tokens] + embedding.positions.weight[positions]
    normed = plain_norm(summed + embedding.segments.weight[segments], embedding.norm)
    torch.testing.assert_close(result, normed @ embedding.project.weight.T + embedding.project.bias)
    assert table is embedding.tokens.weight


def test_selecting_one_of_two_rows_equals_a_lookup() -> None:
    table, index = torch.randn(2, 6, requires_grad=True), torch.tensor([1, 0, 0, 1, 1])
    grad_out = torch.randn(5, 6)
    result, expected = embeddings._select_row(index, table), F.embedding(index, table)
    assert torch.equal(result, expected)
    gradients = [torch.autograd.grad(item, table, grad_out)[0] for item in (result, expected)]
    torch.testing.assert_close(*gradients)


def test_absent_segments_are_the_first() -> None:
    embedding = Embedding(20, 4, context=10, segments=2)
    tokens, positions = torch.tensor([3, 4]), torch.tensor([0, 1])
    assert torch.equal(embedding(tokens, positions, None)[0], embedding(tokens, positions, torch.zeros(2).long())[0])


def test_table_dropout_is_one_mask_for_input_and_output() -> None:
    """GPT-1 drops elements of the table: every use of a token, and its output row, lose the same ones."""
    embedding = Embedding(50, 64, positions="none", dropout=0.5, drop_table=True)
    with torch.no_grad():
        embedding.tokens.weight.fill_(1.0)
    torch.manual_seed(0)
    tokens = torch.tensor([7, 7, 9])
    states, table = embedding(tokens, torch.arange(3), None)
    assert torch.equal(states, table[tokens])
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
    assert set(table.unique().tolist()) == {0.0, 2.0}
    embedding.eval()
    assert embedding(tokens, torch.arange(3), None)[1] is embedding.tokens.weight


def test_state_dropout_draws_each_use_anew() -> None:
    embedding = Embedding(50, 64, positions="none", dropout=0.5)
    torch.manual_seed(0)
    states, _ = embedding(torch.tensor([7, 7]), torch.arange(2), None)
    assert not torch.equal(states[0] == 0, states[1] == 0)


def test_pooling_takes_first_tokens_and_bears_empty_sequences() -> None:
    packed = pack([[1, 2, 3], [], [4, 5], []])
    x = torch.arange(5.0)[:, None]
    pooled = pool_first(x, packed.layout)
    assert pooled.shape == (4, 1)
    assert pooled[[0, 2], 0].tolist() == [0.0, 3.0]
    assert pool_first(x[:0], pack([[], []]).layout).shape == (2, 1)
