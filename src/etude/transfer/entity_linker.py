"""The linker of a transfer: a graph whose entities are found in the texts of a task, by a model that reads entities.

It goes into the folder of the new run, which so answers plain text without the graph.
"""

from __future__ import annotations

from etude.errors import UserError
from etude.graph.entity_links import EntityLinks
from etude.graph.graph import Graph
from etude.graph.linking.trie import TrieLinker
from etude.models.base import Model
from etude.models.transfer_settings import TransferSettings


def attach_linker(model: Model, settings: TransferSettings) -> None:
    """Give the model a linker of the graph `transfer.link`; without the setting, leave it as its run has it."""
    if settings.link is None:
        return
    if not model.reads_entities:
        raise UserError(
            "transfer.link finds entities for a model that reads them, and this one does not: leave it out."
        )
    graph = Graph.open(settings.link)
    model.attach_links(EntityLinks(graph.fingerprint, list(graph.entities), TrieLinker.from_graph(graph)))
