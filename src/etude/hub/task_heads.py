"""A fine-tuned run in the published form: the encoder's table, and one more rule for the head.

    classify, pair, relation, similarity, rank   ...ForSequenceClassification
    choice                                       ...ForMultipleChoice
    tag                                          ...ForTokenClassification
    span                                         ...ForQuestionAnswering

Their heads are linear layers over the states; over one vector, BERT and ALBERT read the pooler, and DistilBERT has a
layer with a ReLU of its own before the last, which is our MLP of that width. What else a head may be here (a CRF, a
biLSTM, an answerable-first classifier, a mix of layers, another pooling) has no place there and is refused by name.
Similarity is trained here in units of deviation: scale and mean go into the weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from etude.errors import UserError
from etude.hub import mapping
from etude.hub.checkpoint_writer import Published, special_ids
from etude.hub.families import of_recipe
from etude.hub.family import Family
from etude.hub.mapping import Rule, linear
from etude.hub.tokenizer_files import companions, with_markers
from etude.inference.task_model import Tuned
from etude.runs.run import Run

CLASSES = {"bert": "Bert", "albert": "Albert", "distilbert": "DistilBert", "electra": "Electra"}
ENDINGS = {
    "classify": "ForSequenceClassification",
    "pair": "ForSequenceClassification",
    "relation": "ForSequenceClassification",
    "similarity": "ForSequenceClassification",
    "rank": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "tag": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}


def publish_tuned(run: Run) -> Published:
    """The model and its head as transformers has them; UserError where it has no such class."""
    tuned = Tuned.open(run.folder, device="cpu")
    family, why = of_recipe(run.recipe)
    if family is None:
        raise UserError(f"{run.folder} cannot be exported to transformers: {why}.")
    faults = _misfits(tuned, family)
    if faults:
        raise UserError(f"{run.folder} cannot be exported to transformers: it has no class for {'; '.join(faults)}.")
    kind, settings = tuned.plan.kind, run.recipe.model
    pooled = ENDINGS[kind] in ("ForSequenceClassification", "ForMultipleChoice")
    rules = tuple(rule for rule in family.table.rules if rule.part in ("", "pooler" if pooled else ""))
    table = replace(family.table, rules=rules + _head(family, kind), copies=())
    weights = {f"model.{name}": one for name, one in tuned.model.state_dict().items()}
    if not pooled:
        weights = {name: one for name, one in weights.items() if not name.startswith("model.pooler.")}
    tensors = mapping.write(table, settings, weights | _scaled(tuned), f"{run.folder} as {family.system}")
    config = family.config(settings, set()) | special_ids(run.tokenizer.special, causal=False)
    config |= {"architectures": [CLASSES[family.name] + ENDINGS[kind]], **_labels(tuned)}
    tokenizer = with_markers(run.tokenizer)
    files = companions(tokenizer, settings.context, segments=settings.segments > 0)
    files["tokenizer.json"] = tokenizer.content
    notes = ("the threshold for questions without an answer is not part of that class: "
             f"{tuned.plan.facts['threshold']:.4f}",) if tuned.plan.facts.get("null") else ()  # fmt: skip
    return Published(config, {name: one.detach() for name, one in tensors.items()}, files, notes=notes)


def _misfits(tuned: Tuned, family: Family) -> list[str]:
    """What of a run has no place in the classes of its family."""
    kind, settings, way = tuned.plan.kind, tuned.plan.settings, tuned.plan.transfer
    if family.name not in CLASSES or kind not in ENDINGS:
        return [f"the task {kind} over {family.system}"]
    faults = []
    if way.frozen or way.layers != "last":
        faults.append("features (transfer.frozen, transfer.layers): there the last layer is read, with its pooler")
    if kind == "tag":
        return faults if settings.head == "linear" else [*faults, f"task.head={settings.head}"]
    if kind == "span":
        absent = getattr(tuned.task, "absent", None) is not None
        return (
            [*faults, "task.null=head (a classifier of its own for questions without an answer)"] if absent else faults
        )
    if family.name == "electra":
        return [*faults, f"the task {kind}: the head of its ELECTRA has a layer that ours has not"]
    pooled: Any = tuned.task.pooled
    wanted = "mlp" if family.name == "distilbert" else "linear"
    if settings.head != wanted or (wanted == "mlp" and pooled.hidden.out_features != pooled.width):
        faults.append(f"task.head={settings.head} (its {family.system} has the head that is task.head={wanted} here)")
    if pooled.pooling != "start":
        faults.append(f"task.pooling={pooled.pooling} (it reads the first state)")
    if pooled.way != "joint":
        faults.append(f"texts read {pooled.way}")
    if family.name != "distilbert" and getattr(tuned.model, "pooler", None) is None:
        faults.append("a model without a pooler")
    return faults


def _head(family: Family, kind: str) -> tuple[Rule, ...]:
    if kind == "tag":
        return linear("classifier", "objective.head.output")
    if kind == "span":
        return linear("qa_outputs", "objective.head")
    before = linear("pre_classifier", "objective.pooled.hidden") if family.name == "distilbert" else ()
    return (*before, *linear("classifier", "objective.pooled.head"))


def _scaled(tuned: Tuned) -> dict[str, Tensor]:
    """The weights of the head; of similarity with the scale of its values in them."""
    weights = {
        f"objective.{name}": one for name, one in tuned.task.state_dict().items() if not name.startswith("head.crf")
    }
    if tuned.plan.kind == "similarity":
        mean, deviation = tuned.plan.facts["mean"], tuned.plan.facts["deviation"]
        weights["objective.pooled.head.weight"] = weights["objective.pooled.head.weight"] * deviation
        weights["objective.pooled.head.bias"] = weights["objective.pooled.head.bias"] * deviation + mean
    return weights


def _labels(tuned: Tuned) -> dict[str, Any]:
    """What config.json says of the outputs."""
    labels = tuned.plan.facts.get("labels")
    if labels is None:
        alone = tuned.plan.kind in ("similarity", "rank")
        return {"id2label": {"0": "score"}, "label2id": {"score": 0}, "problem_type": "regression"} if alone else {}
    names = {str(number): name for number, name in enumerate(labels)}
    kind = {} if tuned.plan.kind == "tag" else {"problem_type": "single_label_classification"}
    return {"id2label": names, "label2id": {name: int(number) for number, name in names.items()}, **kind}
