"""`etude import`: a published folder becomes a Run, finished from the start."""

from __future__ import annotations

from pathlib import Path

from etude.hub.checkpoint_reader import Adopted, adopt
from etude.hub.checkpoint_writer import Published, publish, write
from etude.runs.run import MODEL_CARD, Run, import_origin, write_run_files
from etude.runs.staging import refuse_existing, staged_folder
from etude.train import checkpoint


def import_folder(source: str | Path, out: str | Path) -> Run:
    """Reads a folder of transformers, OpenAI's GPT-1, ELMo, or a hub id, and writes the run `out`."""
    refuse_existing(Path(out))
    return store(adopt(source), str(source), Path(out))


def store(adopted: Adopted, source: str, folder: Path) -> Run:
    """The run of an adopted model; there at once or not at all."""
    published = publish(adopted.recipe, adopted.tensors, adopted.tokenizer) or _under_our_names(adopted)
    name = Path(source).name
    with staged_folder(folder) as staging:
        write_run_files(staging, adopted.recipe, adopted.tokenizer, import_origin(name))
        checkpoint.write_text(staging / MODEL_CARD, _card(adopted, name))
        write(published, staging)
    return Run(folder)


def _under_our_names(adopted: Adopted) -> Published:
    """Of a family without a class in transformers (ELMo); what it came without is named, for it starts fresh."""
    recipe = adopted.recipe
    config = {"model_type": f"etude-{recipe.model_kind}", "etude": recipe.model.model_dump(mode="json")}
    return Published(config | {"untrained": sorted(adopted.untrained)}, dict(adopted.tensors))


def _card(adopted: Adopted, source: str) -> str:
    notes = "".join(f"- {note}\n" for note in adopted.notes)
    count = sum(one.numel() for one in adopted.tensors.values())
    return (
        f"# {adopted.recipe.name}\n\nA {adopted.recipe.system} model ({adopted.architecture}, {count:,} parameters), "
        f"imported from `{source}`. Its weights were trained elsewhere; see there for data and licence.\n"
        + (f"\n{notes}" if notes else "")
    )
