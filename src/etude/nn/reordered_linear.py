"""Linear layers whose weights lie in the order in which oneDNN multiplies them on Arm CPUs.

`nn.Linear` hands oneDNN a weight as it is stored, and there oneDNN writes it in an order of its own before every
product. That is a quarter of the time of a pass over one short text, and little beside a batch of many. A model that
only answers gets its weights in that order once; results are the same up to the rounding of float32.
"""

from __future__ import annotations

import platform
import sys

import torch
from torch import Tensor, nn

MIN_ROWS = 9  # below, torch multiplies without oneDNN and reorders nothing, which is as fast
MOST_BYTES = 2**31  # of weights that are held twice


class ReorderedLinear(nn.Linear):
    """A linear layer for inference: the parameters of another one, and its weight once more in oneDNN's order."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._constant_bias = None if linear.bias is None else linear.bias.detach()
        self._reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b, (..., out); by the reordered weight where there are enough rows for it to pay."""
        if x.dtype != torch.float32 or x.numel() < MIN_ROWS * self.in_features:
            return super().forward(x)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._reordered, self._constant_bias, "none", [], "")
        return result


def reorders_products() -> bool:
    """Whether torch's linear layers reorder their weights in each product: on Linux on Arm, with oneDNN."""
    return sys.platform == "linux" and platform.machine() == "aarch64" and torch.backends.mkldnn.is_available()


def reorder_weights(module: nn.Module) -> int:
    """Replace the float32 linear layers below a module by reordered ones, in place; return how many.

    For a model on the CPU that is trained no further: gradients do not reach these weights. Where torch reorders
    nothing, or the weights are too large to be held twice, nothing is replaced.
    """
    if not reorders_products():
        return 0
    places = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent._modules.items()  # named_children names a layer once
        if type(child) is nn.Linear and child.weight.dtype == torch.float32 and child.weight.device.type == "cpu"
    ]
    if sum(child.weight.nbytes for child in {child for _, _, child in places}) > MOST_BYTES:
        return 0
    layers: dict[nn.Linear, ReorderedLinear] = {}  # a layer that stands at several places is reordered once
    for parent, name, child in places:
        if child not in layers:
            layers[child] = ReorderedLinear(child)
        setattr(parent, name, layers[child])
    return len(layers)
