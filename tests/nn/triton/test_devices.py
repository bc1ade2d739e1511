"""Kernels run on the device of their tensors, also where another GPU is the current one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import etude

SOURCE = Path(etude.__file__).parent


def list_kernel_files() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if "@triton.jit" in path.read_text(encoding="utf-8")]


def find_launches(node: ast.AST, is_guarded: bool = False) -> Iterator[tuple[int, bool]]:
    """Yield the line of each kernel[grid](...), and whether it stands under `torch.cuda.device_of`."""
    if isinstance(node, ast.With):
        is_guarded |= any(ast.unparse(item.context_expr).startswith("torch.cuda.device_of(") for item in node.items)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
        yield node.lineno, is_guarded
    for child in ast.iter_child_nodes(node):
        yield from find_launches(child, is_guarded)


def test_every_kernel_is_launched_on_the_device_of_its_tensors() -> None:
    """Triton launches on the current device: with train.device=cuda:1 that is another one, whose memory is not here."""
    launches = 0
    for path in list_kernel_files():
        found = list(find_launches(ast.parse(path.read_text(encoding="utf-8"))))
        assert all(is_guarded for _, is_guarded in found), f"{path.name}: {found}"
        launches += len(found)
    assert launches > 30


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_kernels_on_a_gpu_that_is_not_the_current_one() -> None:
    from etude.nn.attention.step import attend_step
    from etude.nn.top_tokens import choose_likeliest
    from tests.nn.test_top_tokens import check_top

    assert torch.cuda.current_device() == 0
    check_top("cuda:1", torch.bfloat16, 64, 8000, 8)
    logits = torch.randn(8, 8000)
    assert choose_likeliest(logits.to("cuda:1")).tolist() == logits.argmax(-1).tolist()
    states = torch.randn(3, 4, 2, 16)
    buffers, places = torch.zeros(2, 4, 8, 2, 16), torch.full((4,), 3)
    mixed = [
        attend_step(*states.to(device), *buffers.clone().to(device), places.to(device)).cpu()
        for device in ("cpu", "cuda:1")
    ]
    torch.testing.assert_close(*mixed, rtol=1e-4, atol=1e-4)
