"""Code behind each kind of cell: a result is recomputed when that code changes, and only then.

Each function names the modules a cell's work starts in; `code_hash.fingerprint` follows what they import. What a kind
of cell never runs is not named: an edit of beam search leaves every pre-training alone, an edit of how final weights
are read back does not touch the pre-training that wrote them, yet redoes every transfer that starts from them.
"""

from __future__ import annotations

from etude.kinds import find_module
from etude.study.code_hash import fingerprint


def world_text() -> str:
    return fingerprint("etude.world.world")


def corpus() -> str:
    """A prepared corpus: reading, sentence splitting, training and applying the tokenizer."""
    return fingerprint("etude.text.prepare.prepare", "etude.text.prepare.worker", "etude.text.tokenizer.tokenizer")


def altered_corpus() -> str:
    return fingerprint("etude.study.altered_corpus")


def initial_weights(model: str, objective: str) -> str:
    """The first weights of a model and its heads, written as a run."""
    return fingerprint("etude.recipes.learner", "etude.hub.run_weights", *_learner(model, objective))


def start() -> str:
    """A run that comes with its weights, copied, or a published folder imported."""
    return fingerprint("etude.study.starts")


def pretraining(model: str, objective: str) -> str:
    """A pre-training, from the rows of a corpus to the final weights."""
    return fingerprint(
        "etude.recipes.learner",
        "etude.pretraining.loop",
        *_learner(model, objective),
    )


def distillation(student: tuple[str, str], teacher: tuple[str, str]) -> str:
    """A pre-training with a teacher; of both, the kinds of model and objective."""
    return fingerprint(
        "etude.recipes.learner",
        "etude.pretraining.loop",
        "etude.pretraining.student",
        *_learner(*student),
        *_learner(*teacher),
    )


def first_weights() -> str:
    """What a pre-training begins with, where that is another model's weights or a graph's vectors."""
    return fingerprint("etude.pretraining.first_weights")


def transfer(model: str, objective: str, task: str) -> str:
    """A fine-tuning: the weights it starts from are read, a task is learnt, predictions are scored one by one."""
    return fingerprint("etude.transfer.finetune", "etude.tasks.outcomes", _task(task), *_learner(model, objective))


def direct(model: str, objective: str, task: str) -> str:
    """A run of pairs that translates as it is, scored one by one."""
    return fingerprint(
        "etude.inference.translation", "etude.inference.opening", "etude.tasks.outcomes", _task(task),
        *_learner(model, objective),
    )  # fmt: skip


def prompt(model: str, objective: str, task: str) -> str:
    """A run that answers prompts as it is, scored one by one."""
    return fingerprint(
        "etude.study.prompts", "etude.tasks.outcomes", _task(task), *_learner(model, objective)
    )  # fmt: skip


def baseline(task: str) -> str:
    """A linear model of plain text, scored one by one."""
    return fingerprint("etude.baselines.registry", "etude.tasks.outcomes", _task(task))


def majority(task: str) -> str:
    """The most frequent answer, scored one by one."""
    return fingerprint("etude.tasks.outcomes", _task(task))


def _learner(model: str, objective: str) -> tuple[str, str]:
    return find_module("models", model), find_module("objectives", objective)


def _task(task: str) -> str:
    return find_module("tasks", task)
