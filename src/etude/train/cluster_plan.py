"""What a run in shards needs on a cluster: memory of a GPU by part, bytes sent a step, tokens a second.

Memory and bytes follow from the shapes of the model and from what FSDP2 does (train/sharding.py):

    weights, gradients, optimiser   in float32, one share of `shards`
    gathered      the root's weights (tables, heads) in float32 with their whole gradients, and of two layers, the one
                  that runs and the one that is fetched for it, the weights in the compute precision; of one layer the
                  whole gradients in that precision and, to be reduced, in float32
    sent          for each micro-batch every layer is gathered twice and the root once, and all gradients are reduced
                  in float32; between copies the shares of gradients are added up once a step

Where the whole model is gathered (`train.gather`), all of it is the root, gathered and reduced once a step: weights,
casts of them by autocast, and the buffer that they were received in, which is freed after the forward pass; then whole
gradients, and a copy of them to be reduced.

Time is a model of the machine, not a measurement: computing takes what train/cluster_time.py says, what is sent moves
at NETWORK of the published bandwidth in one direction. Layers are sent while others compute, so a step takes as long as
the slower of both; a whole model is not. The sums between copies follow. A start is that of drawing this process's
share of the weights on one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from etude.errors import UserError, suggest_name
from etude.models.base import Model
from etude.nn.generator_jump import FEWEST
from etude.nn.recompute import RecomputePolicy
from etude.objectives.base import Objective
from etude.train.cluster_time import TokenWork, compute_seconds, weight_seconds
from etude.train.memory import Estimate
from etude.train.strategy import USABLE_SHARE

NETWORK = 0.8  # the share of the published bandwidth that is assumed to be reached
DRAW, JUMP = 20e-9, 0.015  # seconds of one core for a normal value and for a jump in a stream of them (docs/scale.md)


@dataclass(frozen=True)
class Machine:
    """A kind of GPU in machines of eight, and its network."""

    name: str
    memory: float  # bytes
    peak: float  # FLOPs a second in bf16, dense
    bandwidth: float  # bytes a second of its memory
    within: float  # bytes a second of one GPU to the others of its machine (NVLink)
    between: float  # bytes a second of one GPU to other machines


MACHINES = {
    "a100": Machine("A100 80 GB", 80e9, 312e12, 2.04e12, 300e9, 25e9),  # NVLink 3; 200 Gbit/s a GPU
    "h100": Machine("H100 80 GB", 80e9, 989.5e12, 3.35e12, 450e9, 50e9),  # NVLink 4; 400 Gbit/s a GPU
    "h200": Machine("H200 141 GB", 141e9, 989.5e12, 4.8e12, 450e9, 50e9),
    "b200": Machine("B200 180 GB", 180e9, 2250e12, 8e12, 900e9, 50e9),  # NVLink 5
}


@dataclass(frozen=True)
class Parts:
    """Numbers of parameters: of each layer, and of the root."""

    layers: list[int]
    root: int
    gathers_model: bool = False  # once a step, rather than layer by layer

    @property
    def total(self) -> int:
        return sum(self.layers) + self.root


@dataclass(frozen=True)
class Mesh:
    """So many copies of the model, each in so many shards."""

    copies: int
    shards: int

    def __str__(self) -> str:
        return f"fsdp over {self.shards}" if self.copies == 1 else f"hybrid: {self.copies} copies in {self.shards}"


@dataclass(frozen=True)
class Memory:
    """Peak bytes of one GPU by part."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    output: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations + self.output


@dataclass(frozen=True)
class Traffic:
    """Payload of one GPU's collectives in a step, in bytes."""

    gathered: int
    reduced: int
    copies: int  # all-reduced between copies


@dataclass(frozen=True)
class ClusterPlan:
    """A mesh with its memory, traffic and time."""

    mesh: Mesh
    recompute: RecomputePolicy
    micro_batches: int  # of a step
    memory: Memory
    traffic: Traffic
    tokens_per_second: float
    is_fitting: bool
    bound: str  # what takes longer: computing or network
    gathers_model: bool  # `train.gather`


def count_parts(model: Model, objective: Objective, layers: Sequence[Sequence[int]]) -> Parts:
    """Return the parameters of each layer, `layers` being those of its modules, and of everything else."""
    sizes = [sum(modules) for modules in layers]
    total = sum(p.numel() for part in (model, objective) for p in part.parameters())
    return Parts(sizes, total - sum(sizes))


def plan_memory(
    needs: Estimate,
    parts: Parts,
    mesh: Mesh,
    element_size: int,
    layer_activations: int,
    micro_batches: int,
    recompute: RecomputePolicy,
) -> Memory:
    """Return the peak of one GPU; `needs` is that of a process that holds everything.

    In the backward pass shares of gradients come as activations go. So with one micro-batch the peak is either where
    it begins, or where it ends; with several, all shares of gradients are there from the first micro-batch on.

    Gradients of a layer, `layer_activations` being all it keeps, take the place of what they were computed from.
    """
    if parts.gathers_model:
        return _plan_whole_memory(needs, parts, mesh, layer_activations, micro_batches, recompute)
    largest = max(parts.layers, default=0)
    layers = max(2 * element_size * largest, (3 * element_size + 4) * largest - layer_activations)
    # in the backward pass of a layer, about half of its activations have a gradient at a time: those of the inner
    # states of a feed-forward branch, before and after the activation
    activations, half = needs.activations or 0, layer_activations // 2
    first = Memory(
        weights=needs.parameters // mesh.shards,
        gradients=(needs.gradients if micro_batches > 1 else 4 * largest) // mesh.shards,
        optimizer=needs.optimizer // mesh.shards,
        gathered=2 * 4 * parts.root + layers,
        activations=activations + half,
        output=0,
    )
    # logits are gone when the backward pass gathers its first layer
    loss = replace(first, activations=needs.output_activations + half, output=max(0, needs.output - layers))
    last = replace(
        first,
        gradients=needs.gradients // mesh.shards,
        gathered=2 * 4 * parts.root + max(layers, 4 * parts.root),  # the root's gradients are reduced at the end
        activations=min(activations, layer_activations) + half,
    )
    return max(loss, first, last, key=lambda memory: memory.total)


def _plan_whole_memory(
    needs: Estimate, parts: Parts, mesh: Mesh, layer_activations: int, micro_batches: int, recompute: RecomputePolicy
) -> Memory:
    """Return the peak where the whole model is gathered.

    It lies where the loss is computed, where the backward pass begins, where it ends, or where gradients are reduced
    and the weights are gone.
    """
    model, root, activations = 4 * parts.total, 4 * parts.root, needs.activations or 0
    earlier = model if micro_batches > 1 else 0  # gradients of the micro-batches before
    received = model if mesh.shards > 1 else 0  # with the first micro-batch
    loss = Memory(
        weights=needs.parameters // mesh.shards,
        gradients=0,
        optimizer=needs.optimizer // mesh.shards,
        gathered=model + needs.casts + max(received, earlier),
        # what is computed again comes later
        activations=activations - (min(activations, layer_activations) if recompute == "all" else 0),
        output=needs.table_gradient,
    )
    scores = replace(
        loss,
        activations=min(loss.activations, needs.output_activations),
        output=needs.output + needs.table_gradient,
    )
    first = replace(
        loss,
        gathered=model + needs.casts + root + earlier,  # tables have their gradients first
        activations=activations + layer_activations // 2,
        output=0,
    )
    last = replace(first, gathered=2 * model, activations=min(activations, layer_activations) + layer_activations // 2)
    reduced = replace(last, gradients=needs.gradients // mesh.shards, activations=0)
    return max(loss, scores, first, last, reduced, key=lambda memory: memory.total)


def plan_traffic(parts: Parts, mesh: Mesh, element_size: int, micro_batches: int) -> Traffic:
    """Return the payload of one GPU in a step of so many micro-batches."""
    copies = 4 * parts.total // mesh.shards if mesh.copies > 1 else 0
    if mesh.shards == 1:  # a GPU that has all weights gathers nothing
        return Traffic(0, 0, copies)
    if parts.gathers_model:
        return Traffic(4 * parts.total, 4 * parts.total, copies)
    return Traffic(
        gathered=micro_batches * (2 * element_size * sum(parts.layers) + 4 * parts.root),
        reduced=micro_batches * 4 * parts.total,
        copies=copies,
    )


def plan_start(sizes: Sequence[int], mesh: Mesh) -> float:
    """Return the seconds in which a process draws its share of parameters of these sizes (nn/deferred_weights.py).

    Large parameters take two jumps: over what torch's own modules would draw, and to the share.
    """
    return DRAW * sum(sizes) / mesh.shards + 2 * JUMP * sum(size >= FEWEST for size in sizes)


def plan_mesh(
    needs: Estimate,
    parts: Parts,
    mesh: Mesh,
    machine: Machine,
    *,
    gpus: int,
    batch_tokens: int,
    micro_tokens: int,
    work: TokenWork,
    recompute: RecomputePolicy,
    layer_activations: int,
    element_size: int = 2,
) -> ClusterPlan:
    """Return the plan of one mesh over machines of `gpus`."""
    ranks = mesh.copies * mesh.shards
    micro_batches = max(1, round(batch_tokens / ranks / micro_tokens))
    memory = plan_memory(needs, parts, mesh, element_size, layer_activations, micro_batches, recompute)
    traffic = plan_traffic(parts, mesh, element_size, micro_batches)
    computing = compute_seconds(work, batch_tokens / ranks, machine.peak, machine.bandwidth, recompute)
    computing += weight_seconds(
        sum(parts.layers), parts.root, mesh.shards, micro_batches, machine.bandwidth, gathers_model=parts.gathers_model
    )
    bandwidth = machine.within if mesh.shards <= gpus else machine.between
    share = (mesh.shards - 1) / mesh.shards
    network = (traffic.gathered + traffic.reduced) * share / (NETWORK * bandwidth)
    copies = 2 * (mesh.copies - 1) / mesh.copies * traffic.copies / (NETWORK * machine.between)
    return ClusterPlan(
        mesh, recompute, micro_batches, memory, traffic,
        tokens_per_second=batch_tokens
        / ((computing + network if parts.gathers_model else max(computing, network)) + copies),
        is_fitting=memory.total <= USABLE_SHARE * machine.memory,
        bound="computing" if computing >= network else "network",
        gathers_model=parts.gathers_model,
    )  # fmt: skip


def find_machine(name: str) -> Machine:
    """Return a kind of GPU by its name; UserError with the nearest name otherwise."""
    if name not in MACHINES:
        raise UserError(f"--gpu {name}: known are {', '.join(MACHINES)}.{suggest_name(name, MACHINES)}")
    return MACHINES[name]


def list_meshes(nodes: int, gpus: int) -> list[Mesh]:
    """Return the meshes to compare: shards over all, over one machine, and over powers of two of machines between."""
    ranks = nodes * gpus
    shards = [gpus * 2**power for power in range(20) if ranks % (gpus * 2**power) == 0 and gpus * 2**power <= ranks]
    return [Mesh(ranks // size, size) for size in sorted({*shards, ranks}, reverse=True)]
