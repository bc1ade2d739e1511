"""The learned mixes of a fine-tuned run: what a task takes of each layer (ELMo, equation 1 and section 5.1).

A task may mix layers once, under its head (`transfer.combine=mix`), or a tagger's own network at several places
(`task.network.mix`). Weights are those of the softmax, so they add up to 1; equal ones are where training began, as is
gamma = 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from etude.errors import UserError
from etude.inference.task_model import TaskModel
from etude.models.layer_features import chosen_layers
from etude.nn.layer_mix import LayerMix

PLACES = {"input": "at the input", "first": "behind the first biLSTM", "last": "behind the last biLSTM"}
BAR = 40  # characters of a weight of 1


@dataclass(frozen=True)
class Mix:
    """The softmax weights of layers, and the factor of their sum."""

    place: str  # where the task reads it
    layers: list[int]  # 0 is the embedding
    weights: list[float]
    gamma: float

    def json(self) -> dict[str, object]:
        return asdict(self)


def read_mixes(model: TaskModel) -> list[Mix]:
    """The mixes of a run, in the order of its task; UserError where it has none."""
    transfer, count = model.plan.transfer, model.model.base.state_count
    reads_chosen = transfer.frozen or transfer.layers != "last"
    layers = chosen_layers(transfer.layers, count) if reads_chosen else list(range(count))
    mixes = []
    for name, module in model.task.named_modules():
        if isinstance(module, LayerMix):
            place = PLACES.get(name.rpartition(".")[2], "under the head")
            mixes.append(Mix(place, layers, module.mixing_weights.tolist(), module.gamma.item()))
    if not mixes:
        raise UserError(
            f"{model.folder} mixes no layers. A fine-tuning does with transfer.frozen=true transfer.layers=all "
            "transfer.combine=mix, and a tagger with a network of its own with task.network.mix=true."
        )
    return mixes


def format_mixes(mixes: list[Mix]) -> str:
    """A block for each mix, a line for each layer."""
    blocks = []
    for mix in mixes:
        lines = [f"{mix.place}: gamma {mix.gamma:.3f}; equal weights would be {1 / len(mix.weights):.3f}"]
        for layer, weight in zip(mix.layers, mix.weights, strict=True):
            name = "layer 0 (embedding)" if layer == 0 else f"layer {layer}"
            lines.append(f"  {name:20} {weight:.3f} {'█' * round(BAR * weight)}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
