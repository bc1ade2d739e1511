"""Everything that can be known before anything is computed: text, columns, labels, encodings.

A pick takes minutes to hours; what is wrong with its input is said in its first second, with the user's own file and
line, and every problem at once; what the text holds, which takes the longest to read, is looked at where all else is
right. What a pick can live with is a warning: a label with one example stays in training, an example of the test file
that also trains is taken out of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.errors import UserError, suggest_name
from etude.pick.labels import Labelled, read_labels
from etude.pick.problems import MAX_LINES, Problem, cut_label, merge_alike, quote_label, raise_all
from etude.pick.text_pile import TextPile, find_text, read_text
from etude.runs.task_plan import task_module
from etude.settings import Strict
from etude.tasks.base import TaskKind
from etude.tasks.data.decoding import decoding
from etude.tasks.data.single_labels import find_single_labels
from etude.text.checked_files import MANIFEST
from etude.text.corpus.corpus import Corpus

MIN_EXAMPLES = 10  # distinct inputs to learn from: two in each of five folds
MIN_WITH_TEST = 20  # where the examples to report on are taken from the same file
MIN_TEST = 50  # below, an interval of the score spans 28 points at 50 % accuracy, and is worth a warning


@dataclass(frozen=True)
class Inputs:
    """Inputs of a pick that passed every check."""

    text: TextPile | None  # None where no files of text were named
    corpus: Path | None  # a prepared corpus in their place
    train: Labelled
    dev: Labelled | None
    test: Labelled | None
    warnings: list[Problem]


def check_inputs(
    text: Sequence[str | Path],
    kind: str,
    train: str | Path,
    *,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    settings: Strict | None = None,
    text_field: str | Sequence[str] | None = None,
    errors: str = "strict",
    unique: bool = False,
    encoding: str | None = None,
    skip_bad: bool = False,
) -> Inputs:
    """Read all inputs and return them; one UserError lists every problem of the labels, or else of what the text holds.

    text: files, folders, patterns, or one prepared corpus; none where only labels are learnt from.
    settings: of the task; those of its kind unless given.
    text_field: the field of the text, for all files or as FILE=FIELD (text_fields.py).
    encoding: of the labelled files; UTF-8 for None.
    skip_bad: leaves bad lines out, and examples of dev and test with a label that train lacks.
    """
    problems: list[Problem] = []
    corpus, found = None, None
    prepared = [name for name in text if (Path(name) / MANIFEST).is_file()]
    if prepared and len(text) > 1:
        message = f"{prepared[0]} is a prepared corpus, which stands alone: name it without other text, or its files."
        problems.append(Problem(message))
    elif prepared:
        corpus = Path(text[0])
        problems += _check_corpus(corpus, bool(text_field), errors, unique)
    elif text:
        found, text_problems = find_text(text, text_field, errors)
        problems += text_problems
    try:
        module = task_module(kind)
    except UserError as error:
        raise_all([*problems, Problem(str(error))])
        raise
    problems += _check_columns(kind, module, columns or {})
    files = {name: path for name, path in (("train", train), ("dev", dev), ("test", test)) if path is not None}
    parts: dict[str, Labelled] = {}
    with decoding(encoding):
        for name, path in files.items():
            parts[name], part_problems = read_labels(kind, path, columns, skip_bad)
            problems += part_problems
    if all(map(len, parts.values())):
        problems += _check_labels(parts, settings or module.Settings(), skip_bad)
    raise_all(problems)  # before the text is read, which takes the longest
    pile = None
    if found is not None:
        pile, text_problems = read_text(found, errors, unique, skip_bad)
        problems += text_problems
        raise_all(problems)
    warnings = [problem for problem in problems if not problem.is_fatal]
    return Inputs(pile, corpus, parts["train"], parts.get("dev"), parts.get("test"), warnings)


def _check_corpus(corpus: Path, has_field: bool, errors: str, unique: bool) -> list[Problem]:
    """Check a prepared corpus; options that say how text is read come too late for it."""
    given = {"--text-field": has_field, "--errors": errors != "strict", "--unique": unique}
    problems = [
        Problem(f"{option} says how text is read, and {corpus} is a corpus that is prepared already: leave it out.")
        for option, is_given in given.items()
        if is_given
    ]
    try:
        Corpus.open(corpus)
    except UserError as error:
        problems.append(Problem(str(error)))
    return problems


def _check_columns(kind: str, module: TaskKind, columns: Mapping[str, str]) -> list[Problem]:
    return [
        Problem(f"--column {role}={name}: {kind} has no column '{role}'.{suggest_name(role, module.COLUMNS)}")
        for role, name in columns.items()
        if role not in module.COLUMNS
    ]


# --- labels -----------------------------------------------------------------------------------------


def _check_labels(parts: dict[str, Labelled], settings: Strict, skip_bad: bool) -> list[Problem]:
    """Check the parts against each other, and take out of them what overlaps or must be left out."""
    given = len(parts["train"])
    problems = _remove_overlaps(parts)
    train = parts["train"]
    if not all(map(len, parts.values())):  # the same file twice
        return problems + _check_counts(parts, given - len(train))
    module = task_module(train.kind)
    try:
        facts = module.learn(train.examples, settings)
        # a score that is no sum over examples cannot be compared by folds, and says so here
        some = train.examples.part(range(min(MIN_EXAMPLES, len(train))))
        module.scoring(settings, facts).outcome(some, module.majority(train.examples, some))
    except UserError as error:
        source = train.examples.source
        message = str(error)
        return [*problems, Problem(message if source in message else f"{source}: {message}")]
    known = {str(name) for name in facts.get("labels", ())} | set(train.classes)
    if "labels" in facts:  # the classes that a model of this task can answer
        for name in ("dev", "test"):
            if name in parts:
                problems += _check_unseen(parts, name, known, skip_bad)
    problems += _check_counts(parts, given - len(train))
    return problems + _find_rare(train)


def _remove_overlaps(parts: dict[str, Labelled]) -> list[Problem]:
    """Take inputs of dev and test out of train, and those of test out of dev.

    Where train would lose a class by that, the example stays there and leaves the other file instead.
    """
    problems = []
    for taken, scored in (("train", "dev"), ("train", "test"), ("dev", "test")):
        if taken not in parts or scored not in parts:
            continue
        first, second = parts[taken], parts[scored]
        shared = set(first.groups) & set(second.groups)
        if not shared:
            continue
        stays = _only_of_class(first, shared) if taken == "train" else set()
        pairs = [(first, shared - stays, taken, scored), (second, stays, scored, taken)]
        for part, groups, name, reason in pairs:
            indices = [index for index, group in enumerate(part.groups) if group in groups]
            if indices:
                place, count = part.examples.places[indices[0]], len(indices)
                what = f"{count} examples of --{name} are" if count > 1 else f"1 example of --{name} is"
                message = f"{place}: {what} also in --{reason} and left out of --{name}; this is the first."
                korean = f"{place}: --{name}의 예시 {count}개가 --{reason}에도 있어 뺐습니다. 그중 첫 예시입니다."
                problems.append(Problem(message, False, count, korean))
                parts[name] = _leave_out(part, set(indices))
    return problems


def _only_of_class(labelled: Labelled, shared: set[int]) -> set[int]:
    """One shared group for each class that has no other example."""
    remaining = frozenset().union(
        *(classes for classes, group in zip(labelled.strata, labelled.groups, strict=True) if group not in shared)
    )
    stays: set[int] = set()
    for classes, group in sorted(zip(labelled.strata, labelled.groups, strict=True), key=lambda pair: pair[1]):
        if group in shared and classes - remaining:
            stays.add(group)
            remaining |= classes
    return stays


def _leave_out(labelled: Labelled, indices: set[int]) -> Labelled:
    rest = labelled.take(index for index in range(len(labelled)) if index not in indices)
    rest.examples.bad.extend(labelled.examples.bad)
    return rest


def _check_unseen(parts: dict[str, Labelled], name: str, known: set[str], skip_bad: bool) -> list[Problem]:
    """Refuse labels that train lacks, since no model can answer them.

    Sequences of tags in --test are an exception: each further tag is one more wrong answer, not a wrong example.
    """
    part, train = parts[name], parts["train"]
    unseen = [(index, classes - known) for index, classes in enumerate(part.strata) if classes - known]
    if not unseen:
        return []
    is_sequence = any(len(classes) > 1 for classes in (*train.strata, *part.strata))
    if name == "test" and is_sequence:
        names = sorted(frozenset().union(*(classes for _, classes in unseen)))
        listed = ", ".join(map(quote_label, names[:5])) + (", ..." if len(names) > 5 else "")
        place = part.examples.places[unseen[0][0]]
        message = f"{place}: tags of --test that --train lacks count as wrong answers: {listed}."
        korean = f"{place}: --test에만 있고 --train에는 없는 태그는 오답으로 셉니다: {listed}."
        return [Problem(message, False, len(unseen), korean)]
    messages: list[tuple[str, str]] = []
    short_names = {cut_label(label) for label in known}
    nearest: dict[str, str] = {}  # like a label; of those that are listed: comparing thousands would take minutes
    for index, classes in unseen:
        place, label = part.examples.places[index], min(classes)
        if label not in nearest:
            nearest[label] = suggest_name(cut_label(label), short_names) if len(nearest) < MAX_LINES else ""
        hint = "Correct it, add examples of it to --train, or leave it out with --skip-bad."
        messages.append((place, f"{place}: the label {quote_label(label)} is not in --train.{nearest[label]} {hint}"))
    if not skip_bad:
        return merge_alike(messages)
    parts[name] = _leave_out(part, {index for index, _ in unseen})
    text = f"{part.examples.source}: {len(unseen)} examples with labels that --train lacks left out; the first: "
    source = part.examples.source
    korean = f"{source}: --train에 없는 레이블의 예시 {len(unseen)}개를 뺐습니다. 첫 예시: {messages[0][0]}"
    return [Problem(text + messages[0][1], False, len(unseen), korean)]


def _check_counts(parts: dict[str, Labelled], removed: int) -> list[Problem]:
    """Refuse too few examples; `removed` were taken out of train because dev or test has them, too."""
    train, problems = parts["train"], []
    count = len(set(train.groups))
    needed = MIN_EXAMPLES if "test" in parts else MIN_WITH_TEST
    if count < needed:
        more = "" if "test" in parts else f" (or {MIN_EXAMPLES}, with the examples to report on in --test)"
        message = (
            f"{train.examples.source}: {count} different examples to learn from; at least {needed} are needed{more}."
        )
        if removed:
            message += f" {removed} others are also in --dev or --test: give files that share no examples."
        problems.append(Problem(message))
    for name in ("dev", "test"):
        if name not in parts:
            continue
        size, source = len(parts[name]), parts[name].examples.source
        if not size:
            problems.append(Problem(f"{source}: no example is left for --{name}. Give others than those of --train."))
        elif name == "test" and size < MIN_TEST:
            text = f"{source}: a score on {size} examples says little: its interval will be wide."
            korean = f"{source}: 예시 {size}개로 잰 점수는 신뢰 구간이 넓어 알 수 있는 것이 적습니다."
            problems.append(Problem(text, False, korean=korean))
    return problems


def _find_rare(train: Labelled) -> list[Problem]:
    """Warn of labels with one example: they stay in training and are never scored (splits.py)."""
    rare = find_single_labels(train.strata, train.groups)
    if not rare:
        return []
    place = next(
        place for place, classes in zip(train.examples.places, train.strata, strict=True) if rare[0] in classes
    )
    if len(rare) == 1:
        label = quote_label(rare[0])
        text = f"{place}: the only example of {label}: it is learnt from, but no score will know of it. "
        korean = f"{place}: 레이블 {label}의 예시가 이것 하나뿐입니다. 학습에는 쓰지만 점수에는 반영되지 않습니다. "
        return [Problem(text + "Give more of it.", False, 1, korean + "예시를 더 주세요.")]
    listed = ", ".join(map(quote_label, rare[:5])) + (", ..." if len(rare) > 5 else "")
    text = f"{place}: {len(rare)} labels have one example each ({listed}): they are learnt from, but no score will "
    korean = f"{place}: 예시가 하나뿐인 레이블이 {len(rare)}개 있습니다({listed}). 학습에는 쓰지만 점수에는 반영되지 "
    text, korean = f"{text}know of them. Give more of them.", f"{korean}않습니다. 예시를 더 주세요."
    return [Problem(text, False, len(rare), korean)]
