"""GRU and LSTM cells over packed sequences: torch's own layers, with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from etude.nn.packed import pack
from etude.nn.recurrent_cell import CellKind, RecurrentCell

LENGTHS = [3, 0, 5, 1]


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_equals_torch_on_each_sequence(kind: CellKind, reverse: bool) -> None:
    torch.manual_seed(0)
    cell = RecurrentCell(4, 6, kind)
    nn.init.normal_(cell.recurrent.bias)
    reference = (nn.GRU if kind == "gru" else nn.LSTM)(4, 6)
    names = {"weight_ih_l0": cell.input.weight, "weight_hh_l0": cell.recurrent.weight}
    names |= {"bias_ih_l0": cell.input.bias, "bias_hh_l0": cell.recurrent.bias}
    reference.load_state_dict(names)
    layout = pack([[1] * length for length in LENGTHS]).layout
    x = torch.randn(9, 4, requires_grad=True)
    hidden, last = cell.scan(x, layout, reverse)
    expected, ends = [], []
    for part in x.split(LENGTHS):
        if not len(part):
            ends.append([torch.zeros(6)] * len(last))
            continue
        out, end = reference(part.flip(0) if reverse else part)
        expected.append(out.flip(0) if reverse else out)
        ends.append([side[0] for side in (end if kind == "lstm" else (end,))])
    plain = torch.cat(expected)
    torch.testing.assert_close(hidden, plain, atol=1e-6, rtol=1e-5)
    for number, part in enumerate(last):
        torch.testing.assert_close(part, torch.stack([end[number] for end in ends]), atol=1e-6, rtol=1e-5)
    left, right = (torch.autograd.grad(out.square().sum(), x)[0] for out in (hidden, plain))
    torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5)


def test_no_tokens_at_all() -> None:
    hidden, last = RecurrentCell(4, 6, "gru").scan(torch.zeros(0, 4), pack([[], []]).layout)
    assert hidden.shape == (0, 6) and last[0].shape == (2, 6)
