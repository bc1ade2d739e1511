"""The backward pass of a feed-forward's second half on a Hopper GPU: product and GELU's slope in one kernel, or apart.

    python benchmarks/lowered_product.py [--tokens 32768] [--width 768] [--inner 3072] [--json out.json]

Milliseconds in bf16. `kernel` is the gradient of the inner states and the partial sums of the bias before the GELU
(nn/triton/gelu_linear.py), against cuBLAS and the kernel of nn/triton/gelu.py after it; `all` is forward and backward
of down(GELU(raised)) with every gradient, both compiled. Errors are the largest difference from float64, as a share
of the largest value, over the first 2,048 tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tiled_attention import milliseconds
from torch import Tensor

from etude.nn.triton.gelu import gelu_biased, gelu_biased_backward
from etude.nn.triton.gelu_linear import gelu_linear, gelu_linear_backward, gelu_values

SHOWN = 2048  # tokens that are computed in float64, too


def apart(grad: Tensor, raised: Tensor, weight: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    by_raised, sums = gelu_biased_backward(grad @ weight, raised, tanh)
    return by_raised, sums


def truth(grad: Tensor, raised: Tensor, weight: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    exact = raised.double().requires_grad_()
    curve = F.gelu(exact, approximate="tanh" if tanh else "none")
    (by_raised,) = torch.autograd.grad(curve, exact, grad.double() @ weight.double())
    return by_raised, by_raised


def error(found: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> float:
    """Of the gradient, and of its sums over the tokens."""
    pairs = [(found[0], exact[0]), (found[1].double().sum(0), exact[1].sum(0))]
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def whole(fused: bool, tanh: bool) -> Callable[..., list[Tensor]]:
    """Forward and backward with every gradient, as a compiled model has them."""

    @torch.compile(dynamic=False)
    def forward(raised: Tensor, raised_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if fused:
            lowered: Tensor = gelu_linear(raised, gelu_values(raised.detach(), tanh), raised_bias, weight, bias, tanh)
            return lowered
        return F.linear(gelu_biased(raised, raised_bias, tanh), weight, bias)

    def step(grad: Tensor, *given: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(forward(*given), given, grad))

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--inner", type=int, default=3072)
    parser.add_argument("--json", help="also write the rows")
    asked = parser.parse_args()
    torch.manual_seed(0)
    tokens, width, inner = asked.tokens, asked.width, asked.inner
    grad, raised, weight, raised_bias, bias = (
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((tokens, width), (tokens, inner), (width, inner), (inner,), (width,))
    )
    weight.mul_(inner**-0.5)
    for learnt in (raised, raised_bias, weight, bias):
        learnt.requires_grad_()
    rows: list[dict[str, Any]] = []
    print(f"{'form':6} {'kernel':>7} {'apart':>7}   {'all':>7} {'apart':>7}   error: one kernel, apart")
    for tanh in (True, False):
        row: dict[str, Any] = {"form": "tanh" if tanh else "exact"}
        given = (grad, raised.detach(), weight.detach(), tanh)
        row["kernel"], row["apart"] = (milliseconds(side, *given) for side in (gelu_linear_backward, apart))
        everything = (grad, raised, raised_bias, weight, bias)
        row["all"], row["all apart"] = (milliseconds(whole(fused, tanh), *everything) for fused in (True, False))
        few = (grad[:SHOWN], raised.detach()[:SHOWN], weight.detach(), tanh)
        row["errors"] = [error(side(*few), truth(*few)) for side in (gelu_linear_backward, apart)]
        again = [gelu_linear_backward(*given) for _ in range(2)]
        row["repeats"] = all(torch.equal(a, b) for a, b in zip(*again, strict=True))
        rows.append(row)
        print(
            f"{row['form']:6} {row['kernel']:7.3f} {row['apart']:7.3f}   {row['all']:7.3f} {row['all apart']:7.3f}   "
            f"{row['errors'][0]:.1e} {row['errors'][1]:.1e}  repeats to the bit: {row['repeats']}",
            flush=True,
        )
    if asked.json:
        Path(asked.json).write_text(json.dumps({"torch": torch.__version__} | vars(asked) | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
