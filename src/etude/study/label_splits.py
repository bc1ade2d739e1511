"""Train, dev and test files of a study's tasks.

The three splits never share an example where they are made here; where files do, a warning says so. The number of
training labels is part of the grid; which examples they are is drawn by the seed, the same for every contender and
balanced over classes: with few labels, the draw is a large part of the noise.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from etude.chance import Permutation, fold
from etude.errors import UserError, explain_no_file
from etude.runs.task_plan import task_module
from etude.study.sections import Task
from etude.study.settings import Study
from etude.study.text_source import TextSource, make_sentence_pairs, open_world
from etude.tasks import classify
from etude.tasks.data import candidates
from etude.tasks.data.decoding import EncodingError, decoding
from etude.tasks.data.examples import MissingColumnError, check_columns
from etude.tasks.data.records import dump_record
from etude.tasks.data.shared_examples import content_of, warn_of_shared
from etude.text.prepare.sources import find_sources
from etude.text.remote.urls import is_url
from etude.train import checkpoint

DEV_SIZE, TEST_SIZE = 200, 500  # examples of the world, where the study does not say
WORLD_LABELS = 100_000  # of the built-in town at most: it draws four times as many, and has few facts to draw from
POOL_FACTOR = 4  # times the most labels that are learnt from: what a draw of the world draws from
Record = dict[str, Any]
log = logging.getLogger("etude")


@dataclass(frozen=True)
class TaskFiles:
    """The files of one task."""

    task: Task
    folder: Path
    pool: list[Record]
    name: str

    @property
    def dev(self) -> Path:
        return self.folder / "dev.jsonl"

    @property
    def test(self) -> Path:
        return self.folder / "test.jsonl"

    def write_train(self, labels: int | None, seed: int) -> Path:
        """Write the training file with `labels` examples, drawn by the seed, and return its path."""
        takes_all = labels is None or labels >= len(self.pool)
        path = self.folder / ("train.jsonl" if takes_all else f"train-{labels}-{seed}.jsonl")
        if not path.is_file():  # the folder is named by what it holds, so a file that is there is the same draw
            if labels is None or takes_all:
                _write_records(path, self.pool)
            else:
                _write_records(path, draw_examples(self._strata, self.pool, labels, fold("labels", self.name, seed)))
        return path

    @cached_property
    def _strata(self) -> list[frozenset[str]]:
        """Classes of each example of the pool: its label or its tags; empty where answers are no classes."""
        kind = task_module(self.task.kind)
        strata = []
        for number, record in enumerate(self.pool):
            example = kind.parse(record, self.task.columns, f"{self.name}: example {number + 1}", True)
            strata.append(kind.strata(example))
        return strata


def draw_examples(labels: Sequence[frozenset[str]], pool: Sequence[Record], count: int, key: int) -> list[Record]:
    """Draw `count` examples at random: every label at least once, classes balanced."""
    order: list[int] = Permutation(len(pool), key)(np.arange(len(pool))).tolist()
    all_classes = set().union(*labels)
    single = all(len(classes) == 1 for classes in labels)
    if single and len(all_classes) > count:
        raise UserError(f"{count} labels are fewer than the {len(all_classes)} classes of the task: ask for more.")
    if single:
        groups: dict[str, list[int]] = {name: [] for name in sorted(all_classes)}
        for index in order:
            groups[next(iter(labels[index]))].append(index)
        rounds = zip_longest(*groups.values())
        chosen = [index for classes in rounds for index in classes if index is not None][:count]
    else:  # sentences of tags: those that bring a tag nobody has brought yet come first
        covered: set[str] = set()
        first_of_class = []
        for index in order:
            if labels[index] - covered:
                first_of_class.append(index)
                covered |= labels[index]
        if len(first_of_class) > count:
            raise UserError(
                f"{count} labels are fewer than the {len(first_of_class)} examples that it takes to have each of the "
                f"{len(all_classes)} classes of the task once: ask for more."
            )
        covering = set(first_of_class)
        rest = [index for index in order if index not in covering]
        chosen = [*first_of_class, *rest][:count]
    return [pool[index] for index in chosen]


# --- making them ------------------------------------------------------------------------------------


def prepare_labels(study: Study, name: str, source: TextSource, tokenizer: str) -> TaskFiles:
    """Write dev and test of a task into the study's folder; training files are written on demand."""
    task = study.tasks[name]
    if task.world is not None and _max_labels(task) > WORLD_LABELS:
        raise UserError(
            f"The task {name} asks for {_max_labels(task):,} labels: the built-in world gives {WORLD_LABELS:,} at most."
        )
    if task.world is not None:
        parts, key = _with_key(_from_world(study, task), task)
    elif task.made is not None:
        parts, key = _with_key(_from_text(study, task, source, tokenizer), task)
    else:
        parts, key = _read_files(study, task)
    most = max((amount for amount in task.amounts if amount is not None), default=0)
    if most > len(parts["train"]):
        raise UserError(
            f"The task {name} asks for {most:,} labels, and there are {len(parts['train']):,} examples to learn from, "
            "those for dev and test left out. Ask for fewer, or leave labels out to learn from all."
        )
    folder = source.folder / "tasks" / f"{name}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    files = TaskFiles(task, folder, parts["train"], name)
    for file, part in ((files.dev, "dev"), (files.test, "test")):
        if not file.is_file():
            _write_records(file, parts[part])
    return files


def check_files(study: Study) -> None:
    """Raise UserError where files of a task are missing or damaged, before anything is prepared or measured."""
    for task in study.tasks.values():
        if task.train is not None:
            _read_files(study, task)


Parts = dict[str, list[Record]]
_READ: dict[str, tuple[Parts, str]] = {}  # files of this process: studies of one queue have tasks in common


def _read_files(study: Study, task: Task) -> tuple[Parts, str]:
    return _read_once(task, None if study.data is None else Path(study.data), Path(study.root or "."))


def _read_once(task: Task, data: Path | None, root: Path) -> tuple[Parts, str]:
    """Return the parts of a task's files and their key; read once while the files stay as they are."""
    paths = [resolve_path(name, data, root) for name in (task.train, task.dev, task.test) if name is not None]
    states = [(str(path.resolve()), path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
    task_parts = task.model_dump(mode="json", exclude={"label", "set", "labels"})
    identity = json.dumps([task_parts, states], sort_keys=True)
    if identity not in _READ:
        _READ[identity] = _with_key(split_files(task, data), task)
    return _READ[identity]


def _with_key(parts: Parts, task: Task) -> tuple[Parts, str]:
    return parts, hashlib.blake2b(json.dumps([parts, task.columns], sort_keys=True).encode(), digest_size=6).hexdigest()


def _max_labels(task: Task) -> int:
    return max((amount for amount in task.amounts if amount is not None), default=0)  # 0: a direct task learns nothing


def _from_world(study: Study, task: Task) -> dict[str, list[Record]]:
    assert task.world is not None
    town = open_world(study.text)
    sizes = {
        "train": DEV_SIZE if task.direct else POOL_FACTOR * _max_labels(task),  # of direct: what a majority is from
        "valid": task.dev_size or DEV_SIZE,
        "test": task.test_size or TEST_SIZE,
    }
    names = {"train": "train", "valid": "dev", "test": "test"}
    return {names[split]: town.task(task.world, split, count) for split, count in sizes.items()}


def _from_text(study: Study, task: Task, source: TextSource, tokenizer: str) -> dict[str, list[Record]]:
    assert task.made is not None
    _refuse_other_splits(study)
    sizes = [task.dev_size or DEV_SIZE, task.test_size or TEST_SIZE, POOL_FACTOR * _max_labels(task)]
    if source.text.world is None:
        sizes[2] = _max_labels(task)  # held-out text is dear
    records: list[Record]
    if task.made == "sense":
        _refuse_other_words(study)
        # a sentence that stands twice in the text would be learnt from and asked about
        records = list(islice(_drop_repeated(source.label_senses(tokenizer)), sum(sizes)))
        if len(records) < sum(sizes):
            raise UserError(
                f"The held-out text has only {len(records)} of {sum(sizes)} sentences with pseudo-words: ask for fewer "
                "labels, or for more text.pseudo_words."
            )
    else:
        records = list(make_sentence_pairs(source.unseen_documents(tokenizer), task.made, sum(sizes)))
    return {"dev": records[: sizes[0]], "test": records[sizes[0] : sizes[0] + sizes[1]], "train": records[-sizes[2] :]}


def _refuse_other_splits(study: Study) -> None:
    """Raise UserError where a contender would learn from documents that the study's text holds out for its tasks."""
    for name, contender in study.contenders.items():
        own, common = contender.text, study.text
        if own is None or own.files is None or common.files is None:
            continue
        if own.seed == common.seed and own.valid >= common.valid:  # a document is held out by its hash, wherever it is
            continue
        if own.files == common.files or _list_files(own.files) & _list_files(common.files):
            raise UserError(
                f"contenders.{name}.text: with its own seed, or a smaller share held out (valid), it would learn from "
                "documents that tasks are made from. Leave out seed and valid: they are the study's."
            )


def _list_files(names: Sequence[str]) -> set[str]:
    """List the files of folders, patterns and URLs by their whole names."""
    paths = [file.path for source in find_sources(list(names)) for file in source.files]
    return {path if is_url(path) else str(Path(path).resolve()) for path in paths}


def _refuse_other_words(study: Study) -> None:
    """Raise UserError where contenders have other pseudo-words than the task: which words are merged is a tokenizer's.

    A corpus has one tokenizer, whatever the recipes name.
    """
    if study.text.files is None:
        return
    entries = [entry for entry in study.entries() if entry.run(study) is None]
    tokenizers = {entry.contender: entry.recipe(study).tokenizer for entry in entries}
    first, *others = dict.fromkeys(tokenizers.values())
    if others:
        name = next(name for name, tokenizer in tokenizers.items() if tokenizer == others[0])
        raise UserError(
            f"contenders.{name}: pseudo-words are words of one token, and its tokenizer {others[0]} has others than "
            f"{first}. Give everybody one tokenizer (set: {{tokenizer: ...}}), or a prepared corpus (text.corpus)."
        )


def _drop_repeated(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records without those that were there before."""
    seen: set[str] = set()
    for record in records:
        content = json.dumps(record, sort_keys=True)
        if content not in seen:
            seen.add(content)
            yield record


def split_files(task: Task, data: Path | None) -> dict[str, list[Record]]:
    """Return the records of train, dev and test; a missing part is taken from the one before it by content hash."""
    assert task.train is not None
    train = read_records(task, resolve_path(task.train, data))
    dev = None if task.dev is None else read_records(task, resolve_path(task.dev, data))
    test = None if task.test is None else read_records(task, resolve_path(task.test, data))
    if dev is None:
        train, dev = _keep_classes(task, *split_by_hash(train, lambda tenth: tenth >= 2))
    if test is None:
        dev, test = split_by_hash(dev, lambda tenth: tenth % 2 == 0)
    for name, part in (("train", train), ("dev", dev), ("test", test)):
        if not part:
            raise UserError(f"{task.train}: too few examples to part: nothing is left for {name}. Name a file for it.")
    parts = {"train": train, "dev": _take(task, dev, task.dev_size), "test": _take(task, test, task.test_size)}
    _refuse_unknown_labels(task, parts)
    contents = {name: [content_of(record) for record in part] for name, part in parts.items()}
    warn_of_shared(contents, {part: getattr(task, part) or task.train for part in parts})
    _warn_of_sizes(task, parts)
    return parts


def _warn_of_sizes(task: Task, parts: Parts) -> None:
    """Log where dev or test has fewer examples than the study asks for: its scores settle less than was planned."""
    sizes = {"dev": task.dev_size or 0, "test": task.test_size or 0}
    short = [f"{len(parts[part])} of {size} for {part}" for part, size in sizes.items() if len(parts[part]) < size]
    if short:
        log.warning(
            "%s: fewer examples than dev_size and test_size ask for: %s. Name files of their own, or ask for fewer.",
            task.train, " and ".join(short),
        )  # fmt: skip


def _refuse_unknown_labels(task: Task, parts: Parts) -> None:
    """Raise UserError where dev or test has a label that nobody can learn: every cell would fail for it."""
    if task_module(task.kind).strata is not classify.strata:  # tags and types are missed, and others are no classes
        return
    learnt = frozenset().union(*(_classes_of(task, record) for record in parts["train"]))
    for part in ("dev", "test"):
        unknown = frozenset().union(*(_classes_of(task, record) for record in parts[part])) - learnt
        if unknown:
            raise UserError(
                f"{getattr(task, part) or task.train}: the label '{min(unknown)}' of {part} is none of an example to "
                "learn from. Correct it, or take such examples out of the file."
            )


def _take(task: Task, records: list[Record], size: int | None) -> list[Record]:
    """Return the first records; of a file whose first ones lack a class, as one that is sorted by it, every so many."""
    if size is None or size >= len(records):
        return records
    classes = [_classes_of(task, record) for record in records]
    if any(len(each) != 1 for each in classes) or set(classes[:size]) == set(classes):
        return records[:size]
    return [records[len(records) * number // size] for number in range(size)]


def _keep_classes(task: Task, train: list[Record], held: list[Record]) -> tuple[list[Record], list[Record]]:
    """Move examples back to train whose class it lacks: a hash does not know of rare labels.

    All else stays where it is, so that a split without a rare label is what it always was.
    """
    learnt = frozenset().union(*(_classes_of(task, record) for record in train))
    lacks_class = [bool(_classes_of(task, record) - learnt) for record in held]
    moved = [record for record, lacking in zip(held, lacks_class, strict=True) if lacking]
    return [*train, *moved], [record for record, lacking in zip(held, lacks_class, strict=True) if not lacking]


def _classes_of(task: Task, record: Record) -> frozenset[str]:
    kind = task_module(task.kind)
    return kind.strata(kind.parse(record, task.columns, "", True))


def resolve_path(name: str, data: Path | None, root: Path = Path()) -> Path:
    """Return the path of a file, relative to the data folder where one is given, and to `root` else."""
    path = Path(name)
    if data is not None and not path.is_absolute():
        path = data / path
    if not path.is_file():
        hint = " Where it lies under another folder, say --data FOLDER."
        if data is not None and (root / name).is_file():
            hint = f" Without --data it is {root / name}."
        raise UserError(explain_no_file(path) + ("" if path.is_dir() else hint))
    return path


def read_records(task: Task, path: Path) -> list[Record]:
    """Read the records of a file, one an example: pairs of one query become one record of all its candidates.

    Raises UserError at the first that is bad, with its place.
    """
    kind = task_module(task.kind)
    has_pairs = kind.parse is candidates.parse
    parse: Callable[..., object] = candidates.parse_row if has_pairs else kind.parse
    records: list[Record] = []
    with decoding(task.encoding, option="encoding:"):
        read = check_columns(kind.records(path), lambda record, where: parse(record, task.columns, where, True))
        if has_pairs:  # else one query could be on two sides
            read = candidates.group_pairs(read, task.columns)
        try:  # here: a cell would say so after its pre-training
            for where, record in read:
                if isinstance(record, UserError):
                    raise record
                kind.parse(record, task.columns, where, True)
                records.append(dict(record))
        except MissingColumnError as problem:
            raise UserError(problem.message, f"Name yours in the task, as in {problem.setting}.") from None
        except EncodingError:
            raise
        except UserError as problem:
            raise UserError(problem.message, "Correct it, or take it out of the file.") from None
    return records


def split_by_hash(examples: list[Record], is_first: Callable[[int], bool]) -> tuple[list[Record], list[Record]]:
    """Split examples by a hash of their content, so that equal examples fall on the same side."""
    sides: tuple[list[Record], list[Record]] = ([], [])
    for record in examples:
        tenth = fold("part", content_of(record)) % 10
        sides[0 if is_first(tenth) else 1].append(record)
    return sides


def _write_records(path: Path, examples: Sequence[Mapping[str, Any]]) -> None:
    checkpoint.write_text(path, "".join(dump_record(dict(record)) + "\n" for record in examples))
