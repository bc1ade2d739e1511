"""Eight real tasks as a user would have them: few labels, a pile of text, and a test set that neither has seen.

Everything is a function of the files: examples are ordered by a hash of their text, so the test set, each draw of
labels and each pile of text are the same on every machine. Texts are compared by their letters and digits alone: an
example whose text occurs in the test set goes neither into the labels nor into the text.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]
LABELS = (100, 400)
DRAWS = (0, 1, 2)
MIN_PER_CLASS = 2
MAX_TEST = 2_000
WIKI_BYTES = 6_000_000  # of plain Wikipedia text beside the task's own
MIN_QUOTE = 40  # letters and digits: a shorter text that occurs in Wikipedia is a common phrase, not a copy
WIKI = {"en": "enwiki_train", "ko": "kowiki_train"}


@dataclass(frozen=True)
class Task:
    """A task of the table; `text` and `label` are the fields of its files."""

    name: str
    language: str
    has_valid: bool
    kind: str = "classify"
    text: str = "text"
    label: str = "label"

    @property
    def columns(self) -> dict[str, str]:
        """Role and column of the files written here: pick's `-c role=column`."""
        return {"tokens": "tokens", "tags": "ner"} if self.kind == "tag" else {"text": "text", "label": "label"}


TASKS = {
    task.name: task
    for task in (
        Task("sst2", "en", True),
        Task("trec6", "en", False),
        Task("snips_intent_slots", "en", False, label="intent"),
        Task("imdb", "en", True),
        Task("ynat", "ko", True),
        Task("nsmc_rebuilt", "ko", True),
        Task("3i4k_intent", "ko", False),
        Task("wikigold_ner", "en", False, kind="tag", text="tokens", label="ner"),
    )
}


@dataclass(frozen=True)
class Split:
    """Test examples, and the pool that labels and text are drawn from; no text is in both."""

    task: Task
    test: list[Record]
    pool: list[Record]


def list_files(tasks: Iterable[Task]) -> list[str]:
    """The files of the data folder that these tasks are made of."""
    tasks = list(tasks)
    files = [f"tasks/{task.name}/train.jsonl.xz" for task in tasks]
    files += [f"tasks/{task.name}/valid.jsonl.xz" for task in tasks if task.has_valid]
    return files + [f"corpora/{name}.txt.xz" for name in sorted({WIKI[task.language] for task in tasks})]


def read_split(task: Task, data: Path) -> Split:
    """Split a task once: test is `valid` where there is one, else a third of `train`; 2,000 examples at most."""
    train = _drop_repeated(_read_records(task, data / "tasks" / task.name / "train.jsonl.xz"))
    if task.has_valid:
        valid = _drop_repeated(_read_records(task, data / "tasks" / task.name / "valid.jsonl.xz"))
        test = sorted(valid, key=lambda record: _hash("test", compare_key(record)))[:MAX_TEST]
        test_keys = {compare_key(record) for record in valid}
    else:
        order = sorted(train, key=lambda record: _hash("test", compare_key(record)))
        test = order[: min(MAX_TEST, len(order) // 3)]
        test_keys = {compare_key(record) for record in test}
    return Split(task, test, [record for record in train if compare_key(record) not in test_keys])


def draw_labels(split: Split, count: int, draw: int) -> list[Record]:
    """Draw labelled examples, each class by its share and at least twice, in an order that the draw alone decides."""
    order = sorted(split.pool, key=lambda record: _hash("draw", split.task.name, draw, compare_key(record)))
    if split.task.kind == "tag":
        labels = order[:count]
        sentences = Counter(kind for record in labels for kind in _entity_types(record))
        types = {kind for record in split.pool for kind in _entity_types(record)}
        if rare := [kind for kind in types if sentences[kind] < MIN_PER_CLASS]:
            raise ValueError(f"{split.task.name}, draw {draw}: too few sentences with {sorted(rare)}.")
        return labels
    quota = share_out(Counter(record["label"] for record in split.pool), count)
    counts: Counter[str] = Counter()
    labels = []
    for record in order:
        if counts[record["label"]] < quota[record["label"]]:
            counts[record["label"]] += 1
            labels.append(record)
    return labels


def share_out(sizes: Counter[str], count: int) -> dict[str, int]:
    """Share `count` out by the sizes of classes, by largest remainders; each class gets at least two."""
    total = sum(sizes.values())
    exact = {name: count * size / total for name, size in sizes.items()}
    quota = {name: max(MIN_PER_CLASS, math.floor(share)) for name, share in exact.items()}
    while sum(quota.values()) < count:
        name = max(sorted(quota), key=lambda label: exact[label] - quota[label])
        quota[name] += 1
    while sum(quota.values()) > count:  # rare classes were raised to two
        name = max(sorted(quota), key=lambda label: (quota[label] > MIN_PER_CLASS, quota[label] - exact[label]))
        quota[name] -= 1
    return quota


def write_text(split: Split, labels: Sequence[Record], path: Path) -> None:
    """Write the texts of the pool that are not among the labels, a blank line between texts."""
    labelled = {compare_key(record) for record in labels}
    texts = [plain_text(record) for record in split.pool if compare_key(record) not in labelled]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def write_wiki(split: Split, data: Path, path: Path) -> int:
    """Write the first 6 MB of Wikipedia without the documents that quote a test example; how many were left out."""
    documents, squeezed = _read_wiki(data / "corpora" / f"{WIKI[split.task.language]}.txt.xz")
    whole, copies = "\n".join(squeezed), set()
    for record in split.test:
        quote = _squeeze(plain_text(record))
        if len(quote) >= MIN_QUOTE and quote in whole:
            copies |= {number for number, document in enumerate(squeezed) if quote in document}
    clean = [document for number, document in enumerate(documents) if number not in copies]
    path.write_text("\n\n".join(clean) + "\n", encoding="utf-8")
    return len(copies)


def write_records(records: Iterable[Record], path: Path) -> None:
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")


def plain_text(record: Record) -> str:
    """The text of an example, without blank lines."""
    lines = (" ".join(record["tokens"]) if "tokens" in record else record["text"]).splitlines()
    return "\n".join(line for line in (" ".join(line.split()) for line in lines) if line)


def compare_key(record: Record) -> str:
    """What makes two texts the same: letters and digits; whole texts where there are none."""
    text = plain_text(record)
    return _squeeze(text) or text


def _entity_types(record: Record) -> set[str]:
    return {tag[2:] for tag in record["ner"] if tag != "O"}


def _squeeze(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _hash(*parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


def _read_records(task: Task, path: Path) -> list[Record]:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = [json.loads(line) for line in file]
    if task.kind == "tag":
        return [{"tokens": line[task.text], "ner": line[task.label]} for line in lines]
    return [{"text": line[task.text], "label": str(line[task.label])} for line in lines if line[task.text].strip()]


def _drop_repeated(records: Iterable[Record]) -> list[Record]:
    """The first record of each text."""
    return list({compare_key(record): record for record in reversed(list(records))}.values())[::-1]


@functools.cache
def _read_wiki(path: Path) -> tuple[list[str], list[str]]:
    """The first documents, and their letters and digits; the same for all tasks of a language."""
    documents, size = [], 0
    for document in _read_documents(path):
        size += len(document.encode()) + 2
        if size > WIKI_BYTES:
            break
        documents.append(document)
    return documents, [_squeeze(document) for document in documents]


def _read_documents(path: Path) -> Iterable[str]:
    lines: list[str] = []
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            if line.strip():
                lines.append(line.rstrip("\n"))
            elif lines:
                yield "\n".join(lines)
                lines = []
    if lines:
        yield "\n".join(lines)
