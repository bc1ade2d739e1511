"""Knowledge in: `prepare_graph` makes a graph of files of triples (`etude prepare --graph`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from etude.graph.graph import Graph
    from etude.text.prepare.prepare import Progress


def prepare_graph(
    sources: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    valid: float | str | Path | None = None,
    test: float | str | Path | None = None,
    entities: str | Path | Sequence[str | Path] | None = None,
    triple_columns: str | None = None,
    entity_columns: str | None = None,
    language: str | None = None,
    self_loops: Literal["keep", "drop"] = "keep",
    unseen: Literal["keep", "drop"] = "keep",
    seed: int = 0,
    force: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Graph:
    """Turn files of triples into a graph: names, triples and neighbours, memory-mapped, with labels of entities.

    SOURCES are files of head, relation and tail: .tsv (and every other name), .csv, .jsonl, .nt (N-Triples) or
    ConceptNet's assertions.csv, each also packed as .gz, .xz or .zst.

    Args:
        sources: Files of train triples, or patterns.
        out: The graph folder to make.
        valid: A file of held-out triples, or the share of triples held out.
        test: A file of test triples, or the share of triples drawn for the test.
        entities: Files that describe the entities: id, label, aliases, description.
        triple_columns: Columns by order, as in relation,head,tail,-, or by name, as in head=from,relation=type,tail=to.
        entity_columns: The same for the files of entities, as in id,-,label,description.
        language: Language of ConceptNet's concepts (en unless given), and of labels in N-Triples (all unless given).
        self_loops: Whether triples of an entity with itself are kept or dropped.
        unseen: Whether held-out triples are kept whose entity or relation no train triple has, or dropped.
        seed: Seed that draws the held-out triples.
        force: Replace a graph that is already there.
        on_progress: Receives the progress.
    """
    from etude.graph.prepare import prepare as preparation

    return preparation.prepare_graph(
        sources,
        out,
        valid=valid,
        test=test,
        entities=entities,
        triple_columns=triple_columns,
        entity_columns=entity_columns,
        language=language,
        self_loops=self_loops,
        unseen=unseen,
        seed=seed,
        force=force,
        progress=on_progress,
    )
