"""The report on a graph: what was read, what is doubtful about it, and where that begins."""

from __future__ import annotations

import numpy as np

from etude.graph.graph import Graph
from etude.graph.graph_files import GraphReport

TOP_RELATIONS = 10


def format_report(report: GraphReport) -> list[tuple[str, str]]:
    """Return the report for the terminal, as rows of a name and a text."""
    entities = report["entities"]
    triples = ", ".join(f"{count:,} {split}" for split, count in report["triples"].items())
    mean = 2 * report["triples"]["train"] / max(1, entities)
    rows = [
        ("entities", f"{entities:,}" + (f", {report['labelled']:,} with a label" if report["entity_rows"] else "")),
        ("relations", f"{report['relations']:,}"),
        ("triples", triples),
        ("degree", f"mean {mean:.1f}, largest {report['max_degree']:,} ({report['max_degree_entity']})"),
    ]
    dropped = report["self_loops"]["count"] if report["self_loops_dropped"] else 0
    total = max(1, sum(report["triples"].values()) + dropped)  # a share is of what was read, once each
    loops = "dropped" if report["self_loops_dropped"] else "kept; --self-loops drop leaves them out"
    unseen = "dropped" if report["unseen_dropped"] else "kept; --unseen drop leaves them out"
    held_out = ", ".join(f"{count:,} {split}" for split, count in report["unseen_triples"].items() if count)
    findings = [
        ("duplicates", report["duplicates"], "triples, dropped"),
        ("self loops", report["self_loops"], f"triples, {loops}"),
        ("held out, also in train", report["leaks"], "triples, kept: a score on them is no generalisation"),
        ("unseen in train", report["unseen_entities"], f"entities, in triples: {held_out}; {unseen}"),
        ("empty relations", report["unseen_relations"], f"relations without a train triple; {unseen}"),
        ("dangling", report["dangling"], "rows of the entity file, of no triple, left out"),
    ]
    for name, finding, text in findings:
        if finding["count"]:
            example = finding.get("first") or finding.get("name")
            share = f" ({100 * finding['count'] / total:.1f} %)" if "triples," in text[:8] else ""
            rows.append((name, f"{finding['count']:,}{share} {text}" + (f"; first: {example}" if example else "")))
    rows += [(f"left out, {reason}", f"{count:,} lines") for reason, count in report["skipped"].items()]
    return rows


def format_relations(graph: Graph, top: int) -> list[tuple[str, int, float, float]]:
    """Return the most frequent relations: name, train triples, tails a head, heads a tail."""
    triples = graph.triples("train")
    counts = np.bincount(triples[:, 1], minlength=len(graph.relations))
    rows = []
    for relation in np.argsort(-counts, kind="stable")[:top].tolist():
        chosen = triples[triples[:, 1] == relation]
        if len(chosen):
            heads, tails = (len(np.unique(chosen[:, column])) for column in (0, 2))
            rows.append((graph.relations[relation], len(chosen), len(chosen) / heads, len(chosen) / tails))
    return rows


def summarize(graph: Graph) -> list[tuple[str, str]]:
    """Return counts of a graph that was not prepared from files, in the rows of `format_report`."""
    degrees = graph.outgoing.degrees() + graph.incoming.degrees()
    largest = int(degrees.argmax()) if len(degrees) else 0
    rows = [("entities", f"{len(graph.entities):,}"), ("relations", f"{len(graph.relations):,}")]
    rows.append(("triples", ", ".join(f"{len(graph.triples(split)):,} {split}" for split in graph.splits)))
    if len(degrees):
        name = graph.entities[largest]
        rows.append(("degree", f"mean {degrees.mean():.1f}, largest {int(degrees.max()):,} ({name})"))
    return rows
