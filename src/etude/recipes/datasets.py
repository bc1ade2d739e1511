"""Published data sets by name: a task with the settings by which the set is scored.

    etude finetune runs/bert cola --train train.tsv --dev dev.tsv -o runs/cola

is the task `classify` with `task.score=mcc`. What a person sets counts before what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etude.recipes.document import Overrides, parse_overrides


@dataclass(frozen=True)
class Dataset:
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)


DATASETS: dict[str, Dataset] = {
    "ner": Dataset("tag"),
    "cola": Dataset("classify", {"task.score": "mcc"}),
    "sst2": Dataset("classify"),
    "nsmc": Dataset("classify"),
    "mrpc": Dataset("pair", {"task.score": "f1"}),
    "qqp": Dataset("pair", {"task.score": "f1"}),
    "mnli": Dataset("pair"),
    "qnli": Dataset("pair"),
    "rte": Dataset("pair"),
    "wnli": Dataset("pair"),
    "stsb": Dataset("similarity"),
    "swag": Dataset("choice"),
    "commonsenseqa": Dataset("choice"),
    "wikiqa": Dataset("rank", {"task.score": "map"}),
    "squad": Dataset("span", {"task.rules": "squad1"}),
    "squad2": Dataset("span", {"task.rules": "squad2"}),
    "korquad": Dataset("span", {"task.rules": "korquad"}),
    "klue-tc": Dataset("classify", {"task.score": "macro_f1"}),
    "klue-sts": Dataset("similarity", {"task.threshold": 3.0}),
    "klue-nli": Dataset("pair"),
    "klue-ner": Dataset("tag", {"task.score": "entity_macro_f1"}),
    "klue-re": Dataset("relation"),
    "klue-mrc": Dataset("span", {"task.rules": "klue", "task.score": "exact"}),
}


def resolve_dataset(task: str, overrides: Overrides) -> tuple[str, Overrides]:
    """The kind of a task and its settings; a name that is no data set's is taken for a kind."""
    if task not in DATASETS:
        return task, overrides
    overridden = {".".join(path): value for path, value in leaves(parse_overrides(overrides).values)}
    return DATASETS[task].kind, DATASETS[task].settings | overridden


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """(path, value) of every setting in nested groups."""
    pairs: list[tuple[tuple[str, ...], Any]] = []
    for key, value in values.items():
        pairs += leaves(value, (*path, key)) if isinstance(value, dict) else [((*path, key), value)]
    return pairs
