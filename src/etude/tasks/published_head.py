"""The head of a fine-tuned task as a class of `transformers` has it.

    ForSequenceClassification   one vector a text: BERT and ALBERT read the pooler; DistilBERT has a layer with a ReLU
                                of its own before the last, which is our MLP of that width; GPT-1 reads the last state;
                                ELECTRA has a layer with a GELU, ModernBERT one with a norm: they hand on what ours does
    ForMultipleChoice           the same, one score an answer
    ForTokenClassification      a linear layer over every state
    ForQuestionAnswering        the same, a start and an end score

What else a head may be here (a CRF, a biLSTM, a mix of layers, another pooling) has no place there: `misfits` names it.
Each task describes its own (`Task.published_head`); hub/task_heads.py writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class EncoderFamily:
    """What a task has to know of the classes of one family of encoders."""

    system: str  # its name in messages: BERT
    # what their sequence classifiers have between the first state and the last layer; None: a layer that ours has not;
    # last: they read the last state, through a layer without a bias; gelu: a layer with a GELU (`pass_through_gelu`);
    # norm: all heads have a layer and a norm, which can be left without effect (hub/task_heads.py)
    vector: Literal["pooler", "mlp", "last", "gelu", "norm"] | None
    endings: tuple[str, ...] | None = None  # of the classes with heads that it has; None: all of the above
    span_layer: str = "qa_outputs"  # the last of ForQuestionAnswering


@dataclass(frozen=True)
class PublishedHead:
    """The linear layers of a task under the names that a class of transformers has for them, and what it lacks."""

    ending: str  # of the name of the class: ForTokenClassification
    layers: Mapping[str, str]  # linear layers: their name -> the name in the task
    weights: Mapping[str, Tensor]  # under the names in the task
    config: Mapping[str, object] = field(default_factory=dict)  # what config.json says of the outputs
    has_bias: bool = True  # whether their last layer has one; else ours goes into the model's last norm
    reads_pooler: bool = False  # whether the class has the pooler of its encoder
    misfits: tuple[str, ...] = ()  # what of this head their class has no place for, in words
    notes: tuple[str, ...] = ()  # what a person should know of the export


@dataclass(frozen=True)
class Readout:
    """A head over pooled or single hidden states, where no class of a family has such a one: hub/readout.py."""

    ending: Literal["ForSequenceClassification", "ForTokenClassification"]
    layers: Mapping[str, str]  # "classifier", and "hidden" where there is an MLP -> the name in the task
    weights: Mapping[str, Tensor]  # under the names in the task
    config: Mapping[str, object]
    pooling: str | None = None  # None: every token has logits
    scale: float = 1.0  # of the pooled vector
    reading: str = "joint"  # of a pair
    misfits: tuple[str, ...] = ()  # what has no place there either, in words
    notes: tuple[str, ...] = ()  # what a person should know of the export


def pass_through_gelu(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two layers with a GELU between them that do what one does: gelu(z) - gelu(-z) = z, for every GELU.

    (outputs, D), (outputs,) -> the first, (D, D) and (D,), and the last, (outputs, D) and (outputs,). It takes two of
    the D between them for each output.
    """
    outputs, width = weight.shape
    rest = weight.new_zeros(width - 2 * outputs, width)
    first = torch.cat([weight, -weight, rest]), torch.cat([bias, -bias, rest[:, 0]])
    last = torch.zeros_like(weight)
    numbers = torch.arange(outputs)
    last[numbers, numbers], last[numbers, outputs + numbers] = 1.0, -1.0
    return *first, last, torch.zeros_like(bias)


def label_config(labels: Sequence[str]) -> dict[str, object]:
    """What config.json says of outputs that are labels."""
    return {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


SCORE_CONFIG: dict[str, object] = {
    "id2label": {"0": "score"},
    "label2id": {"score": 0},
    "problem_type": "regression",
}
