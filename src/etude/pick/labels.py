"""Labelled examples of the user's files: all problems are collected, and every example keeps its file and line.

Equal inputs share a *group*: a hash of what the model reads, without labels and ids. Splits move groups whole, so no
text is learnt on one side and scored on the other; and since the group is a hash of content, a split does not depend on
the order of a file.
"""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.chance import fold
from etude.errors import UserError
from etude.pick.problems import Problem, merge_alike, quote_label
from etude.runs.task_plan import task_module
from etude.tasks.base import TaskKind
from etude.tasks.data import candidates, conll
from etude.tasks.data.examples import Examples, Record, check_columns
from etude.tasks.data.records import Records, dump_record
from etude.train import checkpoint

IDS = ("id", "guid", "qid", "idx", "query_id", "question_id", "QuestionID")  # columns that are no input


@dataclass(frozen=True)
class Labelled:
    """Usable examples of the user's files."""

    kind: str
    columns: dict[str, str]
    examples: Examples[Any]  # parsed; places are the user's own file:line
    records: list[Record]  # the raw record of each example, which `write` gives to fine-tuning
    strata: list[frozenset[str]]  # the label, or the tags, of each; empty where answers are no classes
    groups: list[int]  # a hash of each input: equal inputs share a group

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def classes(self) -> list[str]:
        """All labels or tags, sorted."""
        return sorted(frozenset().union(*self.strata))

    @property
    def bad(self) -> list[str]:
        """Messages about examples that were left out."""
        return self.examples.bad

    def take(self, indices: Iterable[int] | np.ndarray) -> Labelled:
        """Return some of the examples, in the order given."""
        chosen = [int(index) for index in indices]
        return Labelled(
            self.kind,
            self.columns,
            self.examples.part(chosen),
            [self.records[index] for index in chosen],
            [self.strata[index] for index in chosen],
            [self.groups[index] for index in chosen],
        )

    def join(self, more: Labelled) -> Labelled:
        """Return these examples and behind them those of another file of the same task."""
        if (self.kind, self.columns) != (more.kind, more.columns):
            raise ValueError("examples of different tasks or columns cannot be joined")
        examples = Examples(
            [*self.examples.items, *more.examples.items],
            self.examples.source,
            [*self.examples.places, *more.examples.places],
            [*self.examples.bad, *more.examples.bad],
        )
        strata = [*self.strata, *more.strata]
        return Labelled(
            self.kind, self.columns, examples, [*self.records, *more.records], strata, [*self.groups, *more.groups]
        )

    def write(self, path: str | Path) -> Path:
        """Write the records as JSON lines, complete or not at all; the kind reads them back with `columns`."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_text(path, "".join(dump_record(record) + "\n" for record in self.records))
        return path


def read_labels(
    kind: str, path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False
) -> tuple[Labelled, list[Problem]]:
    """Read the labelled examples of a file, and everything that is wrong with it.

    Nothing is raised for the content of the file: bad records are left out of the result and each is a problem, a
    fatal one unless `skip_bad`, with which they are only counted. What makes the rest of a file unreadable is fatal
    always.
    """
    module, named, source = task_module(kind), dict(columns or {}), str(path)
    items: list[Any] = []
    places: list[str] = []
    records: list[Record] = []
    bad: list[tuple[str, str]] = []
    problems: list[Problem] = []
    try:
        for place, record in _read_records(module, source, named, skip_bad):
            try:
                if isinstance(record, UserError):
                    raise record
                item = module.parse(record, named, place, True)
                items.append(item)
                places.append(place)
                records.append(record)
            except UserError as error:
                bad.append((place, str(error)))
    except UserError as error:
        problems.append(Problem(str(error)))
    if not problems and items:
        items = _reread(module, source, named, places) or items
    if bad and items and skip_bad:
        left_out = f"{source}: {len(bad)} bad examples left out; the first: {bad[0][1]}"
        korean = f"{source}: 잘못된 예시 {len(bad)}개를 뺐습니다. 첫 예시: {bad[0][0]}"
        problems.append(Problem(left_out, False, len(bad), korean))
    else:
        problems += merge_alike(bad)
    if not items and not any(problem.is_fatal for problem in problems):
        problems.append(Problem(f"{source} holds no examples. Give a file with labelled examples."))
    examples = Examples(items, source, places, [message for _, message in bad])
    strata = [module.strata(item) for item in items]
    groups = [hash_input(module, record, named) for record in records]
    labelled = Labelled(kind, named, examples, records, strata, groups)
    if module.parse is candidates.parse and items:
        labelled, silent = _leave_out_silent(labelled)
        problems += silent
    return labelled, [*problems, *_find_contradictions(labelled), *_find_similar_labels(labelled)]


def _leave_out_silent(labelled: Labelled) -> tuple[Labelled, list[Problem]]:
    """Leave out queries whose candidates are all relevant, or none: no order of them is better than another.

    They are neither learnt from nor scored (tasks/rank.py), so a split must not count on them either.
    """
    silent = [n for n, query in enumerate(labelled.examples) if len(set(query.relevant)) < 2]
    source, count = labelled.examples.source, len(silent)
    if not silent:
        return labelled, []
    if count == len(labelled):
        message = f"{source}: no query has both a relevant candidate and another: nothing to learn."
        return labelled.take([]), [Problem(message)]
    place = labelled.examples.places[silent[0]]
    what = f"{count} queries have" if count > 1 else "1 query has"
    message = f"{place}: {what} no relevant candidate, or nothing else: left out; this is the first."
    korean = f"{place}: 후보가 모두 정답이거나 정답이 없는 질의 {count}개를 뺐습니다. 그중 첫 질의입니다."
    rest = labelled.take(n for n in range(len(labelled)) if n not in set(silent))
    rest.examples.bad.extend(labelled.examples.bad)
    return rest, [Problem(message, False, count, korean)]


def _read_records(module: TaskKind, path: str, columns: Mapping[str, str], skip_bad: bool) -> Records:
    """The records of a file, one an example: pairs of one query become one record of all its candidates."""
    has_pairs = module.parse is candidates.parse
    parse: Callable[..., object] = candidates.parse_row if has_pairs else module.parse
    records = module.records(path)
    if not skip_bad:
        records = check_columns(records, lambda record, place: parse(record, columns, place, True))
    return candidates.group_pairs(records, columns) if has_pairs else records


def _reread(module: TaskKind, path: str, columns: Mapping[str, str], places: Sequence[str]) -> list[Any] | None:
    """Tagged sentences as the kind reads a whole file: all of them together decide whether a word is a character."""
    if module.records is not conll.sentences:
        return None
    examples = module.read(path, columns, True)
    return examples.items if examples.places == places else None


# --- equal inputs -----------------------------------------------------------------------------------


def hash_input(module: TaskKind, record: Record, columns: Mapping[str, str], labelled: bool = False) -> int:
    """Hash what the model reads of a record: NFC, runs of white space as one space, no id; labels only if asked."""
    named = {name for role, name in columns.items() if role != "id"}  # a user may call a label `idx`
    ids = {*IDS, *module.COLUMNS.get("id", ()), columns.get("id", "id")} - named
    inputs = {name: value for name, value in record.items() if name not in ids}
    example = module.parse(inputs, columns, "", labelled)
    content = example if dataclasses.is_dataclass(example) else inputs
    return fold("input", json.dumps(_normalise(content), sort_keys=True, default=str))


def _normalise(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join((value if value.isascii() else unicodedata.normalize("NFC", value)).split())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _normalise(inner) for name, inner in vars(value).items()}
    if isinstance(value, Mapping):
        return {str(name): _normalise(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_normalise(inner) for inner in value]
    return value


# --- warnings ---------------------------------------------------------------------------------------


def _find_contradictions(labelled: Labelled) -> list[Problem]:
    """Warn of equal inputs with different labels: no model can answer both."""
    module = task_module(labelled.kind)
    counts = Counter(labelled.groups)
    first: dict[int, tuple[int, int]] = {}
    messages: list[tuple[str, str]] = []
    for index, group in enumerate(labelled.groups):
        if counts[group] == 1:
            continue
        answer = hash_input(module, labelled.records[index], labelled.columns, labelled=True)
        earlier, other_answer = first.setdefault(group, (index, answer))
        if answer != other_answer:
            strata = labelled.strata[earlier], labelled.strata[index]
            names = f": {' and '.join(map(_name_classes, strata))}" if strata[0] != strata[1] else ""
            places = labelled.examples.places[index], labelled.examples.places[earlier]
            text = f"{places[0]}: the same input as {places[1]}, with another answer{names}."
            names = f": {', '.join(map(_name_classes, strata))}" if strata[0] != strata[1] else ""
            messages.append((text, f"{places[0]}: {places[1]}의 예시와 입력은 같은데 정답이 다릅니다{names}."))
    if not messages:
        return []
    (text, korean), number = messages[0], len(messages)
    if number > 1:
        text, korean = f"{text} ({number} such examples)", f"{korean} (이런 예시 {number}개)"
    return [Problem(text, False, number, korean)]


def _name_classes(strata: frozenset[str]) -> str:
    names = sorted(strata)
    return ", ".join(map(quote_label, names[:3])) + (", ..." if len(names) > 3 else "")


def _find_similar_labels(labelled: Labelled) -> list[Problem]:
    """Warn of labels that differ in capitals, spaces, Unicode form or the writing of a number only."""
    spellings: dict[str, list[str]] = {}
    for name in labelled.classes:
        spellings.setdefault(_simplify_label(name), []).append(name)
    source = labelled.examples.source
    return [
        Problem(
            f"{source}: {_name_classes(frozenset(names))} are different labels. Is it one, written in two ways?",
            False,
            korean=f"{source}: {_name_classes(frozenset(names))}: 서로 다른 레이블로 읽었습니다. 같은 레이블의 다른 "
            "표기인지 확인하세요.",
        )
        for names in spellings.values()
        if len(names) > 1
    ]


def _simplify_label(name: str) -> str:
    plain = "".join(unicodedata.normalize("NFKC", name).casefold().split())
    try:
        return repr(float(plain))
    except ValueError:
        return plain
