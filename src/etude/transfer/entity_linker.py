"""The linker of a transfer: a graph whose entities are found in the texts of a task, by a model that reads entities.

It goes into the folder of the new run, which so answers plain text without the graph.
"""

from __future__ import annotations

from etude.errors import UserError
from etude.graph.entity_links import EntityLinks
from etude.graph.graph import Graph
from etude.graph.linking import trie
from etude.graph.linking.graph_linking import TRIE, parse_linker
from etude.models.base import Model
from etude.models.transfer_settings import TransferSettings


def attach_linker(model: Model, settings: TransferSettings) -> None:
    """Give the model the linker `transfer.linker` of the graph `transfer.link`; without a graph, leave its run's."""
    if settings.link is None:
        return
    if not model.reads_entities:
        raise UserError(
            "transfer.link finds entities for a model that reads them, and this one does not: leave it out."
        )
    kind, options = parse_linker(settings.linker)
    if kind != TRIE:
        raise UserError(
            f"transfer.linker={settings.linker}: a run keeps its linker, and only the trie can be kept. "
            "Put what another linker finds into the column 'entities' of the files."
        )
    graph = Graph.open(settings.link)
    model.attach_links(EntityLinks(graph.fingerprint, list(graph.entities), trie.build(graph, options)))
