"""Import and export of models in the folders that `transformers` reads.

    to_published(recipe, tensors, tokenizer)   a model in its published form, or None where transformers has no class
    describe_mismatch(recipe)                  why there is none
    read_checkpoint(folder)                    a published folder, or an id on the hub, as a model of ours
    importer.import_folder, exporter.export_run    the same between folders and runs

One table a family (families/) serves both directions; mapping.py defines what a table is.
"""

from etude.hub.checkpoint_reader import ImportedModel, read_checkpoint
from etude.hub.checkpoint_writer import (
    PublishedModel,
    describe_mismatch,
    read_run_tensors,
    to_published,
    write_published,
    write_tensors,
)

__all__ = [
    "ImportedModel",
    "PublishedModel",
    "describe_mismatch",
    "read_checkpoint",
    "read_run_tensors",
    "to_published",
    "write_published",
    "write_tensors",
]
