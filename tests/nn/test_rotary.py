"""Rotary positions: what a rotation is, that a compiled model computes it once, and that branches use it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.nn import block, rotary
from etude.nn.attention import dispatch
from etude.nn.block import AttentionBranch
from etude.nn.norm import Norm
from etude.nn.packed import pack
from etude.nn.rotary import Rotation, compute_rotation, rotate


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    query, key = torch.randn(1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 8, dtype=torch.float64)

    def score(at: int, other: int) -> float:
        rotated = (
            rotate(query, compute_rotation(torch.tensor([at]), 8)),
            rotate(key, compute_rotation(torch.tensor([other]), 8)),
        )
        assert abs(float(rotated[0].norm() - query.norm())) < 1e-5
        return float((rotated[0] * rotated[1]).sum())

    assert abs(score(3, 1) - score(103, 101)) < 1e-4
    assert abs(score(3, 1) - score(1, 3)) > 1e-3
    assert abs(score(3, 1) - score(4, 1)) > 1e-3


def test_rotation_is_a_complex_product() -> None:
    x = torch.randn(4, 2, 6)
    positions = torch.tensor([0, 1, 5, 300])
    rotated = rotate(x, compute_rotation(positions, 6, base=500.0))
    for index in range(3):
        angle = positions.double() * 500.0 ** (-2 * index / 6)
        pair = torch.complex(x[..., index].double(), x[..., index + 3].double())
        expected = pair * torch.polar(torch.ones(4).double(), angle)[:, None]
        torch.testing.assert_close(rotated[..., index].double(), expected.real, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(rotated[..., index + 3].double(), expected.imag, rtol=1e-4, atol=1e-4)


def test_a_compiled_model_computes_cosines_once() -> None:
    """A compiler that sees the formula computes it again wherever it is used."""
    graphs: list[list[str]] = []

    def record(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    def turn_twice(x: Tensor, positions: Tensor) -> Tensor:
        rotation = compute_rotation(positions, 8)
        return rotate(rotate(x, rotation), rotation)

    x, positions = torch.randn(5, 2, 8), torch.tensor([0, 3, 1, 700, 2])
    result = torch.compile(turn_twice, backend=record, fullgraph=True)(x, positions)
    assert torch.equal(result, turn_twice(x, positions))
    (names,) = graphs
    assert sum("compute_rotation" in name for name in names) == 1
    assert not any("cos" in name or "sin" in name or "pow" in name for name in names)


def test_rotation_outside_a_graph_has_the_shapes_it_says() -> None:
    torch.library.opcheck(torch.ops.etude.compute_rotation.default, (torch.tensor([3, 1, 4]), 6, 10_000.0))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("only", [None, [0, 3]])
@pytest.mark.parametrize("records", [False, True])
def test_a_branch_that_rotates_all_in_one_tensor(
    causal: bool, only: list[int] | None, records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, by the same formula: states and gradients are those of queries and keys apart.

    Where queries and keys are recorded, the branch rotates them, or else attention does.
    """
    torch.manual_seed(0)
    branch = AttentionBranch(16, 2, placement="pre", norm=Norm(16))
    packed = pack([[1, 2, 3], [4], [5, 6]])
    x = torch.randn(6, 16, requires_grad=True)
    rotation = compute_rotation(packed.positions, 8)
    chosen = None if only is None else torch.tensor(only)

    def run() -> list[Tensor]:
        recorded: list[Tensor] = []
        out = branch(
            x,
            packed.layout,
            causal=causal,
            rotation=rotation,
            only=chosen,
            record_query_key=recorded if records else None,
        )
        assert isinstance(out, Tensor)
        return [out, *recorded, *torch.autograd.grad(out.square().sum(), [x, *branch.parameters()])]

    def rotate_by_formula(qkv: Tensor, rotation: Rotation) -> Tensor:
        calls.append(qkv.shape)
        return torch.stack(rotary.rotate_query_key(qkv, rotation), 1)

    calls: list[torch.Size] = []
    apart = run()
    monkeypatch.setattr(block, "supports_packed", lambda qkv: True)
    monkeypatch.setattr(block if records else dispatch, "rotate_packed", rotate_by_formula)
    torch.testing.assert_close(run(), apart, rtol=1e-5, atol=1e-6)
    assert calls == [(6, 3, 2, 8)]
