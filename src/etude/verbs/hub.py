"""Models from and to the formats that others read: `import_` and `export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etude.verbs.limits import refuse_given
from etude.verbs.paths import require_path
from etude.verbs.random_state import keeps_random_state

if TYPE_CHECKING:
    from etude.hub.checkpoint_writer import PublishedModel
    from etude.runs.run import Run


@dataclass(frozen=True)
class ModelImport:
    """A published model that became a run."""

    run: Run
    architecture: str | None  # of transformers; None: a file of word vectors
    parameters: int | None
    vocab: int
    notes: tuple[str, ...] = ()  # what was left out or is not trained


@keeps_random_state
def import_(source: str | Path | Run, *, out: str | Path) -> ModelImport:
    """Turn a published model, in its own file format, into a run that every command takes.

    Args:
        source: A folder of transformers, OpenAI's GPT-1, ELMo, hf:ID of the hub, or a file of word vectors.
        out: The folder of the new run.
    """
    from etude.hub import read_checkpoint
    from etude.hub.importer import write_run
    from etude.runs.staging import refuse_existing

    source, folder = require_path("source", source, "a published model"), Path(out)
    refuse_existing(folder)
    if Path(source).is_file():
        from etude.hub.vector_runs import import_vectors

        run = import_vectors(source, folder)
        return ModelImport(run, None, None, run.recipe.model.vocab or run.tokenizer.vocab)
    imported = read_checkpoint(source)
    run = write_run(imported, str(source), folder)
    parameters = sum(tensor.numel() for tensor in imported.tensors.values())
    return ModelImport(run, imported.architecture, parameters, imported.tokenizer.vocab, tuple(imported.notes))


@dataclass(frozen=True)
class ModelExport:
    """A run that was written in a published format."""

    path: Path
    files: tuple[Path, ...]
    published: PublishedModel | None = None  # None: a file of word vectors, or a baseline
    form: str | None = None  # of word vectors, of a baseline
    usage: tuple[str, ...] = ()  # how to open the folder, of a model with a class of its own


def _export_own_class(run: Run, path: Path, form: str | None) -> ModelExport:
    """Write a task over a model that transformers has no class for, the whole of it, with a class of its own."""
    from etude.errors import UserError, quote_path
    from etude.hub.own_class import export_with_own_class, usage_lines
    from etude.runs.task_plan import Plan

    plan = Plan.read(run.folder)
    if form is not None or path.suffix in (".vec", ".bin"):
        raise UserError(
            f"{run.folder} does the task {plan.kind}: a file of vectors would lose it. Name a new folder with -o, "
            f"or export the vectors it started from: etude export {quote_path(plan.base)} -o {quote_path(path)}"
        )
    export_with_own_class(run, path)
    files = tuple(sorted(file for file in path.rglob("*") if file.is_file()))
    return ModelExport(path, files, usage=usage_lines(path))


@keeps_random_state
def export(
    run: str | Path | Run,
    *,
    out: str | Path,
    form: Literal["word2vec", "word2vec-binary", "glove", "fasttext"] | None = None,
) -> ModelExport:
    """Write a run as a folder that transformers opens, as ELMo's two files, or word or entity vectors as a file.

    Args:
        run: A finished run, or a saved baseline, which becomes a folder that needs numpy alone.
        out: The folder to write; of word vectors and of a run on a graph, the file.
        form: Format of a file of word vectors; by its name (.vec, .bin) unless given.
    """
    from etude.baselines.base import is_baseline
    from etude.hub.exporter import export_run
    from etude.hub.families import match_encoder
    from etude.hub.readout import NoPublishedClass
    from etude.runs.run import Run

    run, path = require_path("run", run, "a run"), Path(out)
    refused = "applies to a file of word vectors: leave it out."
    if is_baseline(run):
        refuse_given({"form": (form, None)}, refused)
        from etude.baselines.export import export_baseline

        return ModelExport(path, tuple(export_baseline(run, path)), form="JSON and numpy")
    opened = Run.open(run)
    if opened.recipe.reads_graph:
        from etude.hub.entity_vectors import export_entity_vectors

        refuse_given({"form": (form, None)}, refused)
        return ModelExport(path, tuple(export_entity_vectors(run, path)), form="vectors of a graph, text")
    if opened.is_fine_tuned and opened.finished and match_encoder(opened.recipe)[0] is None:
        return _export_own_class(opened, path, form)
    if opened.recipe.model_kind == "static" and not opened.is_fine_tuned:
        from etude.hub.vector_runs import export_vectors

        return ModelExport(path, (path,), form=export_vectors(run, path, form))
    refuse_given({"form": (form, None)}, refused)
    try:
        published = export_run(run, path)
    except NoPublishedClass:
        return _export_own_class(opened, path, form)
    return ModelExport(path, tuple(sorted(file for file in path.rglob("*") if file.is_file())), published)
