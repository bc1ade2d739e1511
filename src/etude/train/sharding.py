"""Sharded training by torch's FSDP2: each process holds a share of weights, gradients and optimiser state.

A layer's weights are gathered when it runs and freed after it; its gradients are reduced in float32, whatever the
precision of the products (ZeRO stage 3: Rajbhandari et al. 2020). `hybrid` shards over some processes, those of one
machine by default, and keeps copies between them, so that only gradients cross machines (Zhao et al. 2023, "PyTorch
FSDP", section 3.2.2). Layers that are used several times (ALBERT), embeddings and heads belong to the root: they are
gathered once a step. With `train.gather=model` everything does: the model is one unit.

Only a run of several processes imports this file: torch's machinery takes a second to load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._pytree import register_dataclass

from etude.errors import UserError
from etude.nn.recompute import Recomputable
from etude.objectives.base import Term
from etude.train.parallel import Ranks
from etude.train.settings import Settings

# FSDP2 begins its backward pass at the tensors that a module returns. torch up to 2.11 finds those in dictionaries and
# lists, but in a dataclass only if it is registered.
register_dataclass(Term)


def build_mesh(ranks: Ranks, device: torch.device, hybrid: bool, shard_ranks: int | None = None) -> DeviceMesh:
    """Return the mesh of all processes: one axis of shards, or with `hybrid` copies x shards."""
    if not hybrid:
        return init_device_mesh(device.type, (ranks.size,), mesh_dim_names=("shard",))
    shards = shard_ranks or ranks.local_size
    if ranks.size % shards:
        raise UserError(
            f"{ranks.size} processes cannot be divided into groups of {shards} that share one copy of the model. "
            f"Set train.shard_ranks to a divisor of {ranks.size}, or train.parallel=fsdp."
        )
    return init_device_mesh(device.type, (ranks.size // shards, shards), mesh_dim_names=("replicate", "shard"))


def separate_layers(layers: Sequence[Sequence[Recomputable]]) -> list[list[nn.Module]]:
    """Return the modules of each layer that no other layer uses; what is shared is left to the root."""
    uses: dict[nn.Module, int] = {}
    for layer in layers:
        for module in layer:
            uses[module] = uses.get(module, 0) + 1
    separate: list[list[nn.Module]] = [[module for module in layer if uses[module] == 1] for layer in layers]
    return [layer for layer in separate if layer]


def shard(
    learner: nn.Module,
    layers: Sequence[Sequence[Recomputable]],
    mesh: DeviceMesh,
    settings: Settings,
    methods: Sequence[str] = (),
) -> None:
    """Shard a learner in place, layer by layer; parameters become DTensors on the device of the mesh.

    Without `layers` it is one unit, gathered in float32 and cast by autocast, as in one process. `methods` of the
    learner gather weights as its `forward` does.
    """
    half = settings.precision == "bf16"
    # Weights of layers are gathered in half precision, as autocast would cast them; those of the root, where tables
    # are summed and norms are few, in float32. Inputs are cast by autocast alone.
    layer_policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    root_policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in separate_layers(layers):
        fully_shard(layer, mesh=mesh, mp_policy=layer_policy)
    # the root's weights are used again at the end of the forward pass, where the backward pass begins
    fully_shard(learner, mesh=mesh, mp_policy=root_policy, reshard_after_forward=False)
    for name in methods:
        register_fsdp_forward_method(learner, name)


def reduce_with_last(learner: nn.Module, is_last: bool, gathers_model: bool) -> None:
    """Leave to the last micro-batch of a step what one reduction can do for all of them.

    Where a model is gathered as a whole, its weights stay and gradients are added up until then. Layer by layer they
    are reduced after every micro-batch, as whole gradients would not fit, and only the sum between the copies of a
    hybrid mesh is left to the last.
    """
    assert isinstance(learner, FSDPModule)
    if gathers_model:
        learner.set_requires_gradient_sync(is_last, recurse=False)
        learner.set_reshard_after_backward(is_last, recurse=False)
    else:
        learner.set_requires_all_reduce(is_last)


def join_norms(norm: Tensor, gradient: Tensor) -> Tensor:
    """Return the norm of all gradients from that of this rank's shares; `gradient` is one of those in shards.

    Copies of a hybrid mesh have equal gradients: only the shares of one copy are added up, in float64.
    """
    assert isinstance(gradient, DTensor)
    mesh = gradient.device_mesh
    if mesh.size(mesh.ndim - 1) == 1:
        return norm
    squares = norm.double().square()
    dist.all_reduce(squares, group=mesh.get_group(mesh.ndim - 1))
    return squares.sqrt().to(norm.dtype)


class MatrixExchange:
    """Matrices (B, R, C) in shards of rows become whole ones on a rank each, and back (`train.muon.Exchange`)."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.shards = mesh.size(mesh.ndim - 1)  # the last axis is that of shards

    def local(self, tensor: Tensor) -> Tensor:
        assert isinstance(tensor, DTensor)
        return tensor.to_local()

    def __call__(self, shares: Tensor, like: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        assert isinstance(like, DTensor)
        mesh, shape = like.device_mesh, torch.Size([len(shares), *like.shape])
        stride = torch.empty(shape, device="meta").stride()
        by_rows = [Shard(1) if isinstance(place, Shard) else place for place in like.placements]
        by_matrix = [Shard(0) if isinstance(place, Shard) else place for place in like.placements]
        parts = DTensor.from_local(shares, mesh, by_rows, run_check=False, shape=shape, stride=stride)
        result = function(parts.redistribute(placements=by_matrix).to_local())
        whole = DTensor.from_local(result, mesh, by_matrix, run_check=False, shape=shape, stride=stride)
        return whole.redistribute(placements=by_rows).to_local()


def distribute_like(whole: Tensor, target: Tensor) -> Tensor:
    """Return this rank's share of a tensor that every rank holds, placed as `target` is."""
    if not isinstance(target, DTensor):
        return whole
    whole = whole.to(target.device_mesh.device_type, target.dtype)
    # every rank has read the same file: nothing is sent
    return distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)


def find_share(parameter: Tensor) -> tuple[Tensor, int]:
    """Return what this rank holds of a parameter in shards of rows, and the place of its first value in the whole."""
    assert isinstance(parameter, DTensor)
    mesh, share = parameter.device_mesh, parameter.to_local()
    assert parameter.placements[-1] == Shard(0), f"{parameter.placements}: not in shards of rows"
    rows, index = len(parameter), mesh.get_local_rank(mesh.ndim - 1)
    size = -(-rows // mesh.size(mesh.ndim - 1))  # as torch.chunk does: all but the last shares are equal
    first = min(rows, index * size)
    assert len(share) == min(rows, first + size) - first, f"{len(share)} of {rows} rows in shard {index}"
    return share, first * (parameter.numel() // max(1, rows))
