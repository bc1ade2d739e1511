"""Import of a published folder as a finished run."""

from __future__ import annotations

from pathlib import Path

from etude.hub.checkpoint_reader import ImportedModel, read_checkpoint
from etude.hub.checkpoint_writer import PublishedModel, to_published, write_published
from etude.runs.checksums import write_checksums
from etude.runs.model_folder import HUB
from etude.runs.run import MODEL_CARD, Run, import_origin, write_run_files
from etude.runs.staging import refuse_existing, staged_folder
from etude.train import checkpoint


def import_folder(source: str | Path, out: str | Path) -> Run:
    """Read a folder of transformers, OpenAI's GPT-1, ELMo, or a hub id, and write the run `out`."""
    refuse_existing(Path(out))
    return write_run(read_checkpoint(source), str(source), Path(out))


def write_run(imported: ImportedModel, source: str, folder: Path) -> Run:
    """Write the run of an imported model; the folder is complete or absent."""
    published = to_published(imported.recipe, imported.tensors, imported.tokenizer) or _keep_own_names(imported)
    name = source if source.startswith(HUB) else Path(source).resolve().name  # of ".", too
    with staged_folder(folder) as staging:
        write_run_files(staging, imported.recipe, imported.tokenizer, import_origin(name), imported.links)
        checkpoint.write_text(staging / MODEL_CARD, _make_model_card(imported, name))
        write_published(published, staging)
        write_checksums(staging)
    return Run(folder)


def _keep_own_names(imported: ImportedModel) -> PublishedModel:
    """Return a model without a class in transformers (ELMo) under our names, with the list of untrained tensors."""
    recipe = imported.recipe
    config = {"model_type": f"etude-{recipe.model_kind}", "etude": recipe.model.model_dump(mode="json")}
    return PublishedModel(config | {"untrained": sorted(imported.untrained)}, dict(imported.tensors))


def _make_model_card(imported: ImportedModel, source: str) -> str:
    notes = "".join(f"- {note}\n" for note in imported.notes)
    count = sum(tensor.numel() for tensor in imported.tensors.values())
    return (
        f"# {imported.recipe.name}\n\n"
        f"A {imported.recipe.system} model ({imported.architecture}, {count:,} parameters), "
        f"imported from `{source}`. Its weights were trained elsewhere; see there for data and licence.\n"
        + (f"\n{notes}" if notes else "")
    )
