"""`etude prepare --graph` and `etude show graph`: what is in a graph, and what is doubtful about it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from etude.cli.adapter import Call, long_flag
from etude.cli.advice import find_free_folder
from etude.cli.printing import make_console
from etude.errors import UserError
from etude.verbs.limits import require_at_least

if TYPE_CHECKING:
    from etude.graph.graph import Graph

SHARED = ("out", "valid", "seed", "force")  # options that a corpus and a graph have in common
RELATIONS = 5  # of the table after a preparation


def refuse_text_options(options: dict[str, object], defaults: dict[str, object]) -> None:
    """Raise UserError at an option that only text has."""
    for name, value in options.items():
        if name not in SHARED and str(value) != str(defaults[name]):
            raise UserError(f"{long_flag(name)} is an option of text, which a graph has not. Leave it out.")


def print_graph(graph: Graph, relations: int) -> None:
    """Print the report of a graph and a table of its relations."""
    from rich.table import Table

    from etude.graph.prepare.graph_report import format_relations, format_report, summarize

    report = graph.report
    rows = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in format_report(report) if report is not None else summarize(graph):
        rows.add_row(name, value)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("relation")
    for heading in ("train triples", "tails a head", "heads a tail"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, count, tails, heads in format_relations(graph, relations):
        table.add_row(name, f"{count:,}", f"{tails:.1f}", f"{heads:.1f}")
    console = make_console()
    console.print(rows, "", table)
    if len(graph.relations) > relations:
        console.print(f"and {len(graph.relations) - relations:,} more", style="dim")


def print_next_steps(folder: Path) -> None:
    """Print what can be done with a new graph."""

    place = shlex.quote(str(folder))
    make_console(soft_wrap=True).print(
        f"\nThe graph is in {folder}. Next:\n  etude show graph {place}\n"
        f"  etude pretrain transe {place} -o {find_free_folder(Path('runs/transe'))}"
    )


def present_graph(call: Call[Graph], *, top: int = 20) -> None:
    """Prints the report of a graph and its most frequent relations.

    Args:
        top: Number of relations to show.
    """
    require_at_least("top", top, 1)
    print_graph(call(), top)
