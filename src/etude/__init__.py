"""Etude: learn language from plain text first and the task second.

    corpus = etude.prepare("books/*.txt", out="data/books", tokenizer="bpe:16000")
    run = etude.pretrain("bert-small", corpus, out="runs/bert", **{"train.steps": 10_000})
    model = etude.load("runs/bert")
    tuned = etude.finetune("runs/bert", "classify", train="train.csv", dev="dev.csv", out="runs/bert-reviews")
    report = etude.study("studies/mlm-vs-electra.yaml", budget="10m")

Everything heavy is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etude.train import malloc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from etude.inference.model import Loaded
    from etude.inference.task_model import Tuned
    from etude.pretrain.check import Check
    from etude.recipes.schema import Recipe
    from etude.runs.run import Run
    from etude.text.corpus.corpus import Corpus
    from etude.transfer.prompt import Prompted

__all__ = ["augment", "check", "distill", "finetune", "load", "prepare", "pretrain", "prompt", "resume"]

malloc.configure_mimalloc()


def prepare(
    sources: str | Path | Sequence[str | Path], out: str | Path, tokenizer: str = "bpe:16000", **options: Any
) -> Corpus:
    """Text files become a Corpus; the options are those of `etude.text.prepare.prepare.prepare`."""
    from etude.text.prepare.prepare import prepare as run

    return run(sources, out, tokenizer=tokenizer, **options)


def check(recipe: str | Path | Recipe, corpus: str | Path | Corpus, **overrides: Any) -> Check:
    """What a run will be, before it is one."""
    from etude.pretrain.check import check as run

    return run(recipe, corpus, overrides)


def pretrain(
    recipe: str | Path | Recipe, corpus: str | Path | Corpus, out: str | Path, quiet: bool = False, **overrides: Any
) -> Run:
    """Pre-trains a recipe on a corpus: `**{"train.steps": 1000}` changes its settings."""
    from etude.pretrain.pretrain import pretrain as run

    return run(recipe, corpus, out, quiet=quiet, overrides=overrides)


def distill(
    recipe: str | Path | Recipe,
    corpus: str | Path | Corpus,
    out: str | Path,
    teacher: str | Path,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """The same with a teacher, a run of a masked model: `**{"distill.temperature": 4.0}` changes how it teaches."""
    from etude.pretrain.pretrain import distill as run

    return run(recipe, corpus, out, teacher=teacher, quiet=quiet, overrides=overrides)


def resume(run: str | Path, corpus: str | Path | None = None, quiet: bool = False) -> Run:
    """Goes on with a run that was stopped."""
    from etude.pretrain.pretrain import resume as go_on

    return go_on(run, corpus=corpus, quiet=quiet)


def load(folder: str | Path) -> Loaded:
    """A run (or a folder in the published format) as a model to use: states, logits, fill, encode."""
    from etude.inference.model import load as run

    return run(folder)


def finetune(
    base: str | Path,
    task: str,
    train: str | Path,
    out: str | Path,
    dev: str | Path | None = None,
    *,
    teacher: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 1,
    skip_bad: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> Tuned:
    """Fine-tunes a run on a task: `**{"train.lr": 3e-5, "transfer.frozen": True}` changes its settings.

    With a `teacher`, a run of the same task, it learns from that one: `**{"distill.temperature": 2}` says how.
    `vary={"train.lr": [2e-5, 5e-5]}` and several `seeds` are so many runs: the best setting is chosen on dev, the
    spread told in `trials.json`.
    """
    from etude.inference.task_model import Tuned
    from etude.transfer import finetune as single
    from etude.transfer import search as trials

    overrides |= {"distill.teacher": str(teacher)} if teacher is not None else {}
    if vary or seeds > 1:
        run = trials.search(
            base, task, train, out, dev=dev, vary=vary, seeds=seeds, columns=columns, overrides=overrides,
            skip_bad=skip_bad, quiet=quiet,
        )  # fmt: skip
    else:
        run = single.finetune(
            base, task, train, out, dev=dev, columns=columns, overrides=overrides, skip_bad=skip_bad, quiet=quiet
        )
    return Tuned.open(run.folder)


def augment(
    model: str | Path | Loaded,
    file: str | Path,
    out: str | Path,
    task: str = "classify",
    *,
    columns: Mapping[str, str] | None = None,
    vectors: str | Path | None = None,
    **rules: Any,
) -> tuple[int, int]:
    """Examples with copies in which a masked model exchanged words: `copies=20, rate=0.4, candidates=15, seed=0`.

    How many examples were read, and how many written.
    """
    from etude.hub.vector_runs import open_vectors
    from etude.inference.model import Loaded as Model
    from etude.inference.model import load as open_model
    from etude.transfer import augment as making

    return making.augment(
        model if isinstance(model, Model) else open_model(model),
        file,
        out,
        task=task,
        columns=dict(columns or {}),
        rules=making.Rules(**rules),
        vectors=None if vectors is None else open_vectors(vectors),
    )


def prompt(
    source: str | Path | Loaded, file: str | Path, shots: Sequence[int] = (0, 1, 4, 16), **options: Any
) -> Prompted:
    """A task put to a causal model in words; the options are those of `etude.transfer.prompt.prompt`."""
    from etude.transfer.prompt import prompt as run

    return run(source, file, shots, **options)


def __getattr__(name: str) -> Any:
    """`etude.study` is a package and a function (see there); it is loaded when it is first named."""
    if name == "study":
        import importlib

        return importlib.import_module("etude.study")
    raise AttributeError(f"module 'etude' has no attribute '{name}'")
