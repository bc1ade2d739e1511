"""Transfer: `finetune` trains a task on a run, `augment` makes more examples, `prompt` asks without training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from etude.errors import UserError
from etude.verbs.columns import name_columns
from etude.verbs.limits import require_at_least, require_device, require_folder_of
from etude.verbs.opened import PRETRAINED, open_language_model
from etude.verbs.paths import require_path
from etude.verbs.random_state import keeps_random_state

if TYPE_CHECKING:
    from etude.runs.run import Run
    from etude.tasks.base import TaskKind
    from etude.transfer.prompt import PromptResult
    from etude.verbs.opened import OpenedModel
    from etude.verbs.task_run import SuiteRun, TaskRun

EXAMPLES = "a file of examples"


@keeps_random_state
def finetune(
    run: str | Path | Run,
    task: str,
    *,
    train: str | Path,
    out: str | Path,
    dev: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    teacher: str | Path | Run | None = None,
    columns: Mapping[str, str] | None = None,
    text: str | None = None,
    label: str | None = None,
    lr: float | Sequence[float] | None = None,
    vary: Mapping[str, Sequence[object]] | None = None,
    compare_poolings: bool = False,
    seeds: int = 1,
    parallel: int = 1,
    encoding: str | None = None,
    skip_bad: bool = False,
    quiet: bool = False,
) -> TaskRun:
    """Fine-tune a run on a task, or train a head on its features.

    Several values of a setting (--vary train.lr=1e-4,1e-3), or several seeds (--seeds 3), are as many runs: the best
    setting is chosen on dev, and the spread over seeds is stored in trials.json; in Python what is returned has it as
    `trials`, `mean` and `deviation`.

    Args:
        run: A run, or a folder of transformers.
        task: A task, or a data set by its name: 'etude tasks' lists them.
        train: A file of labelled examples to train on; of a suite (glue), its folder.
        out: The folder of the new run.
        dev: A file of labelled examples, on which the best checkpoint is chosen and scored.
        settings: Settings to change: train.lr=3e-5 task.dropout=0.2 transfer.frozen=true
        teacher: Distil the task from this run, which was fine-tuned on it; settings such as distill.soft_weight=0.5 say
            how.
        columns: Which column holds what, as role=name: -c text=review -c label=stars
        text: Name of the column that holds the text.
        label: Name of the column that holds the label.
        lr: A learning rate, or several to choose from on dev: 2e-5,3e-5,5e-5
        vary: Values of a setting to compare on dev: task.pooling=start,mean,max,last
        compare_poolings: Compare features and fine-tuning under all four poolings, in one table.
        seeds: Number of runs, each with another seed; their mean and standard deviation are printed.
        parallel: Number of these runs at a time, each in a process of its own, with the same result: small models
            share a GPU, best where NVIDIA's MPS runs, which this does not start.
        encoding: Encoding of labelled files that are not UTF-8: cp1252 (Windows), cp949 (Korean), utf-16 or another of
            Python's names.
        skip_bad: Leave out invalid examples and count them, instead of stopping.
        quiet: Print no progress.
    """
    require_at_least("seeds", seeds, 1)
    require_at_least("parallel", parallel, 1)
    run, train = require_path("run", run, PRETRAINED), require_path("train", train, EXAMPLES)
    dev = None if dev is None else require_path("dev", dev, EXAMPLES)
    from etude.recipes.datasets import resolve_dataset
    from etude.runs.task_plan import task_module
    from etude.text.encodings import check_encoding
    from etude.transfer import finetune as single
    from etude.transfer import search, suite, trial_processes
    from etude.verbs.task_run import TaskRun

    if task in suite.SUITES:
        raise UserError(f"'{task}' is a suite of tasks: use etude.finetune_suite.")
    overrides = dict(settings or {})
    kind = resolve_dataset(task, {})[0]
    task_module(kind)  # an unknown name is refused before the run is opened
    search.refuse_lists(kind, overrides)
    if teacher is not None:
        overrides["distill.teacher"] = str(require_path("teacher", teacher, "a run of the task"))
    varied: dict[str, Sequence[object]] = dict(search.POOLING_GRID) if compare_poolings else {}
    if lr:
        varied["train.lr"] = [lr] if isinstance(lr, (int, float)) else lr
    varied.update(vary or {})
    named = name_columns(columns, text=text, label=label)
    encoding = check_encoding(encoding)
    if dev is not None:
        _warn_of_shared(task_module(kind), train, dev, encoding)
    if seeds > 1 or any(len(values) > 1 for values in varied.values()):
        tuned = search.search(
            run, task, train, out, dev=dev, vary=varied, seeds=seeds, columns=named, overrides=overrides,
            skip_bad=skip_bad, quiet=quiet, encoding=encoding, parallel=parallel,
        )  # fmt: skip
    else:
        trial_processes.refuse_single(parallel)
        search.refuse_set_twice(varied, overrides)
        overrides |= {key: values[0] for key, values in varied.items()}
        tuned = single.finetune(
            run, task, train, out, dev=dev, columns=named, overrides=overrides, skip_bad=skip_bad, quiet=quiet,
            encoding=encoding,
        )  # fmt: skip
    return TaskRun(tuned.folder)


def _warn_of_shared(kind: TaskKind, train: str | Path, dev: str | Path, encoding: str | None) -> None:
    """Log how many examples of dev are learnt from, too; what is wrong with a file is left to its reader."""
    from etude.tasks.data.decoding import decoding
    from etude.tasks.data.shared_examples import contents_of, warn_of_shared

    try:
        with decoding(encoding):
            contents = {name: contents_of(kind.records(path)) for name, path in (("train", train), ("dev", dev))}
    except UserError:
        return
    warn_of_shared(contents, {"train": train, "dev": dev})


@keeps_random_state
def finetune_suite(
    run: str | Path | Run,
    suite: str,
    *,
    train: str | Path,
    out: str | Path,
    settings: Mapping[str, object] | None = None,
    skip_bad: bool = False,
    quiet: bool = False,
) -> SuiteRun:
    """Fine-tune a run on every task of a suite (glue), with one score; called again, it goes on.

    Args:
        run: A run, or a folder of transformers.
        suite: The suite: glue.
        train: The folder of all its tasks.
        out: The folder of the new runs.
        settings: Settings to change: train.lr=3e-5
        skip_bad: Leave out invalid examples and count them, instead of stopping.
        quiet: Print no progress.
    """
    from etude.transfer.suite import run_suite
    from etude.verbs.task_run import SuiteRun

    run, train = require_path("run", run, PRETRAINED), require_path("train", train, "the folder of all its tasks")
    return SuiteRun(Path(out), run_suite(run, suite, train, out, dict(settings or {}), skip_bad, quiet))


def is_finetuning(folder: str | Path) -> bool:
    """Whether a folder holds a fine-tuning, or a comparison of several."""
    from etude.transfer import search

    return (Path(folder) / "task.yaml").is_file() or search.is_search(folder)


@keeps_random_state
def resume_finetune(run: str | Path, *, parallel: int = 1, quiet: bool = False) -> TaskRun:
    """Continue a fine-tuning, or with a comparison of several, that was stopped.

    Args:
        run: The folder of the run.
        parallel: Number of runs of a comparison at a time; it may be another one than before.
        quiet: Print no progress.
    """
    require_at_least("parallel", parallel, 1)
    from etude.runs.completion import complete_finished
    from etude.transfer import finetune as single
    from etude.transfer import search, trial_processes
    from etude.verbs.task_run import TaskRun

    if search.is_search(run):
        return TaskRun(search.resume(run, quiet, parallel).folder)
    trial_processes.refuse_single(parallel)
    return TaskRun(complete_finished(single.resume(run, quiet)).folder)


class AugmentCounts(NamedTuple):
    """Examples that were read, and examples and copies that were written."""

    read: int
    written: int


@keeps_random_state
def augment(
    run: str | Path | Run | OpenedModel,
    file: str | Path,
    *,
    out: str | Path,
    task: str = "classify",
    copies: int = 20,
    rate: float = 0.4,
    candidates: int = 15,
    vectors: str | Path | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    text: str | None = None,
    encoding: str | None = None,
    device: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> AugmentCounts:
    """Write labelled examples, and copies of them in which a masked model replaced some words.

    Args:
        run: A run, a folder of transformers, or hf:ID of the hub.
        file: Labelled examples, as 'etude finetune' reads them.
        out: The .jsonl file to write.
        task: The task of the examples: classify, pair or similarity.
        copies: Most copies of each text; none is written twice.
        rate: Probability that a word is replaced.
        candidates: Number of words that a replacement is drawn from.
        vectors: A run or a file of word vectors: their neighbours replace words that the tokenizer cuts into pieces.
        seed: Seed of the replacements: another seed makes other copies.
        columns: Which column holds what, as role=name: -c text=review -c label=stars
        text: Name of the column that holds the text.
        encoding: Encoding of labelled files that are not UTF-8: cp1252 (Windows), cp949 (Korean), utf-16 or another of
            Python's names.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
        on_progress: Receives the examples read, and those written.
    """
    file = require_path("file", file, EXAMPLES)
    require_folder_of(out, "examples")
    require_device(device)
    from etude.hub.vector_runs import open_vectors
    from etude.recipes.datasets import resolve_dataset
    from etude.tasks.data.decoding import decoding
    from etude.transfer import augment as augmentation

    rules = augmentation.AugmentSettings(copies, rate, candidates, seed)
    word_vectors = None if vectors is None else open_vectors(vectors)
    with decoding(encoding):
        counts = augmentation.augment(
            open_language_model(run, "augment", device),
            file,
            out,
            task=resolve_dataset(task, ())[0],
            columns=name_columns(columns, text=text),
            rules=rules,
            vectors=word_vectors,
            on_progress=on_progress,
        )
    return AugmentCounts(*counts)


@keeps_random_state
def prompt(
    run: str | Path | Run | OpenedModel,
    file: str | Path,
    *,
    shots: int | Sequence[int] = (0, 1, 4, 16),
    train: str | Path | None = None,
    test: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    encoding: str | None = None,
    skip_bad: bool = False,
    predictions: str | Path | None = None,
    device: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> PromptResult:
    """Score a causal model on a task written as a prompt, with zero, one or a few examples in it.

    Args:
        run: A run, a folder of transformers, or hf:ID of the hub.
        file: The task as a prompt, a .yaml file; docs/prompting.md shows some.
        shots: Numbers of examples shown before each question, with commas.
        train: A file of examples to show, in place of the one named in the prompt file.
        test: A file of examples to ask, in place of the one named in the prompt file.
        limit: Ask only this many examples, the first ones.
        seed: Seed that chooses the examples shown.
        encoding: Encoding of the files of examples where they are not UTF-8: cp1252 (Windows), cp949 (Korean), utf-16
            or another of Python's names.
        skip_bad: Leave out invalid examples, instead of stopping.
        predictions: Write the answers to this file, one JSON object a line.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
        on_progress: Receives how many of how many questions have been asked.
    """
    import json

    file = require_path("file", file, "a task in words, a .yaml file")
    shots = [shots] if isinstance(shots, int) else shots
    train = None if train is None else require_path("train", train, EXAMPLES)
    test = None if test is None else require_path("test", test, EXAMPLES)
    require_folder_of(predictions, "predictions")
    require_device(device)
    from etude.inference.model import LoadedModel
    from etude.tasks.data.decoding import decoding
    from etude.train.checkpoint import write_text
    from etude.transfer import prompt as prompting

    source = run if isinstance(run, LoadedModel) else require_path("run", run, PRETRAINED)
    with decoding(encoding):
        result = prompting.prompt(
            source, file, shots, train=train, test=test, seed=seed, limit=limit, skip_bad=skip_bad, device=device,
            on_progress=on_progress,
        )  # fmt: skip
    if predictions is not None:
        lines = (
            json.dumps({"shots": count.shots, **answer}, ensure_ascii=False) + "\n"
            for count in result.results
            for answer in count.answers
        )
        write_text(Path(predictions), "".join(lines))
    return result
