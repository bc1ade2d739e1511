"""`etude import`: a published folder becomes a Run, finished from the start."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from etude.hub.checkpoint_reader import Adopted, adopt
from etude.hub.checkpoint_writer import Published, publish, write
from etude.runs.run import Run, refuse_existing
from etude.train import checkpoint


def import_folder(source: str | Path, out: str | Path) -> Run:
    """Reads a folder of transformers, OpenAI's GPT-1, ELMo, or a hub id, and writes the run `out`."""
    refuse_existing(Path(out))
    return store(adopt(source), str(source), Path(out))


def store(adopted: Adopted, source: str, folder: Path) -> Run:
    """The run of an adopted model; there at once or not at all."""
    published = publish(adopted.recipe, adopted.tensors, adopted.tokenizer) or _under_our_names(adopted)
    refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    writing = folder.with_name(f".{folder.name}.creating-{os.getpid()}")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    checkpoint.write_text(writing / "recipe.yaml", adopted.recipe.dump())
    origin = {"corpus": "(imported, without a corpus)", "fingerprint": None, "imported": Path(source).name}
    checkpoint.write_text(writing / "origin.json", json.dumps(origin, indent=1, ensure_ascii=False))
    checkpoint.write_text(writing / "README.md", _card(adopted, Path(source).name))
    adopted.tokenizer.save(writing)
    write(published, writing)
    checkpoint.flush(writing)
    if folder.is_dir():  # empty: checked above
        folder.rmdir()
    writing.rename(folder)
    checkpoint.flush(folder.parent)
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
