"""Import and export: models to and from the folders that `transformers` reads.

    publish(recipe, tensors, tokenizer)   a model of ours in the published form, or None where it has no class there
    refusal(recipe)                       why it has none, by name
    adopt(folder)                         a published folder, or an id on the hub, as a model of ours
    importing.import_folder, exporting.export_run    the same between folders and runs

One table a family (families/) is used in both directions; mapping.py is the language of the tables.
"""

from etude.hub.checkpoint_reader import Adopted, adopt
from etude.hub.checkpoint_writer import Published, publish, refusal, reread, write, write_tensors

__all__ = ["Adopted", "Published", "adopt", "publish", "refusal", "reread", "write", "write_tensors"]
