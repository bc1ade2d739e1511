"""Published data sets by name: a task with the settings by which the set is scored.

    etude finetune runs/bert cola --train train.tsv --dev dev.tsv -o runs/cola

is the task `classify` with `task.score=mcc`. What a person sets counts before what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etude.recipes.document import Overrides, from_overrides


@dataclass(frozen=True)
class Named:
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)


NAMED: dict[str, Named] = {
    "ner": Named("tag"),
    "cola": Named("classify", {"task.score": "mcc"}),
    "sst2": Named("classify"),
    "nsmc": Named("classify"),
    "mrpc": Named("pair", {"task.score": "f1"}),
    "qqp": Named("pair", {"task.score": "f1"}),
    "mnli": Named("pair"),
    "qnli": Named("pair"),
    "rte": Named("pair"),
    "wnli": Named("pair"),
    "stsb": Named("similarity"),
    "swag": Named("choice"),
    "commonsenseqa": Named("choice"),
    "wikiqa": Named("rank", {"task.score": "map"}),
    "squad": Named("span", {"task.rules": "squad1"}),
    "squad2": Named("span", {"task.rules": "squad2"}),
    "korquad": Named("span", {"task.rules": "korquad"}),
    "klue-tc": Named("classify", {"task.score": "macro_f1"}),
    "klue-sts": Named("similarity", {"task.threshold": 3.0}),
    "klue-nli": Named("pair"),
    "klue-ner": Named("tag", {"task.score": "entity_macro_f1"}),
    "klue-re": Named("relation"),
    "klue-mrc": Named("span", {"task.rules": "klue", "task.score": "exact"}),
}


def resolve(task: str, overrides: Overrides) -> tuple[str, Overrides]:
    """The kind of a task and its settings; a name that is no data set's is taken for a kind."""
    if task not in NAMED:
        return task, overrides
    given = {".".join(path): value for path, value in leaves(from_overrides(overrides).values)}
    return NAMED[task].kind, NAMED[task].settings | given


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """(path, value) of every setting in nested groups."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in values.items():
        found += leaves(value, (*path, key)) if isinstance(value, dict) else [((*path, key), value)]
    return found
