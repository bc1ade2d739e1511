"""`etude prepare` and `etude world`: progress while text is read or written, and what came of it."""

from __future__ import annotations

import inspect
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etude.cli.adapter import Call, Command, long_flag
from etude.cli.advice import advise, find_continuable, has_gpu
from etude.cli.bars import bars_shown
from etude.cli.exits import exit_interrupted
from etude.cli.graph import RELATIONS, SHARED, print_graph, print_next_steps, refuse_text_options
from etude.cli.printing import echo, make_console
from etude.cli.words import parse_share
from etude.errors import UserError
from etude.verbs import corpus as verbs
from etude.verbs.graph import prepare_graph

if TYPE_CHECKING:
    from etude.text.corpus.corpus import Corpus
    from etude.text.prepare.prepare import Progress
    from etude.world import World


def present_prepare(
    call: Call[Corpus],
    *,
    graph: bool = False,
    test: str | None = None,
    entities: Sequence[str] | None = None,
    triple_columns: str | None = None,
    entity_columns: str | None = None,
    language: str | None = None,
    self_loops: Literal["keep", "drop"] = "keep",
    unseen: Literal["keep", "drop"] = "keep",
) -> None:
    """Prints the report of a corpus or, with --graph, of a graph.

    Args:
        graph: The files hold triples, not text: make a graph (.tsv, .csv, .jsonl, .nt, ConceptNet's assertions.csv).
        test: With --graph: a file of test triples, or the share of triples drawn for the test.
        entities: With --graph: a file of entities (id, label, aliases, description); may be given several times.
        triple_columns: With --graph: columns of the triples by order, as in relation,head,tail,-, or by name, as in
            head=from,relation=type,tail=to.
        entity_columns: With --graph: columns of the entity file, as in id,-,label,description.
        language: With --graph: language of ConceptNet's concepts (en unless given), and of labels in N-Triples (all
            unless given).
        self_loops: With --graph: whether triples of an entity with itself are kept or dropped.
        unseen: With --graph: whether held-out triples with a name that no train triple has are kept or dropped.
    """
    out = call.options["out"]
    graph_options = {
        "test": parse_share(test), "entities": entities or None, "triple_columns": triple_columns,
        "entity_columns": entity_columns, "language": language, "self_loops": self_loops, "unseen": unseen,
    }  # fmt: skip
    if graph:
        _prepare_graph(call, graph_options)
        return
    for name, value in graph_options.items():
        if value not in (None, "keep"):
            raise UserError(f"{long_flag(name)} is an option of graphs. Add --graph, or leave it out.")
    with _interruptible(out), _progress_shown() as show_progress:
        corpus = call(on_progress=show_progress)
    from rich.table import Table

    from etude.text.prepare.corpus_report import format_report

    rows = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in format_report(corpus.manifest):
        rows.add_row(name, value)
    console = make_console()
    console.print(rows)
    special = corpus.tokenizer.special
    can_mask = None not in (special.mask, special.start, special.separator)
    advice = advise(corpus.manifest, has_gpu(), can_mask)
    console.print(f"\nThe corpus is in {out}. Next, {advice.reason}, in about {advice.minutes} min:", soft_wrap=True)
    for line in advice.commands(out):
        console.print(f"  {line}", soft_wrap=True)
    run = find_continuable(call.options["tokenizer"], corpus.pairs is not None)
    if run is not None:
        console.print("Or go on with the model whose tokenizer it has:", soft_wrap=True)
        console.print(f"  {advice.continuing_command(out, run)}", soft_wrap=True)
    if advice.ernie is not None:
        console.print("Then ERNIE, which starts from it and reads the entities by their vectors:", soft_wrap=True)
        for line in advice.ernie_commands(out, call.options["link"]):
            console.print(f"  {line}", soft_wrap=True)
    console.print("'etude recipes' lists the others.", soft_wrap=True)


def _prepare_graph(call: Call[Corpus], graph_options: dict[str, Any]) -> None:
    """`etude prepare --graph`: a verb of its own in Python, `etude.prepare_graph`."""
    options = call.options
    parameters = inspect.signature(verbs.prepare).parameters
    refuse_text_options(options, {name: parameters[name].default for name in options})
    shared = {name: options[name] for name in SHARED}
    with _interruptible(options["out"], "The same command starts again."), _progress_shown() as show_progress:
        graph = prepare_graph(call.arguments["sources"], **shared, **graph_options, on_progress=show_progress)
    print_graph(graph, RELATIONS)
    print_next_steps(options["out"])


@contextmanager
def _interruptible(out: Path, hint: str = "") -> Iterator[None]:
    """Ctrl-C and SIGTERM end with the state saved, exit code 3, and a word on how to go on."""
    hint = hint or f"What is done is kept in {out}.partial; the same command goes on from there."

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        exit_interrupted(f"\nInterrupted. {hint}")
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress_shown() -> Iterator[Callable[[Progress], None]]:
    """Progress as a line that renews itself, or, where nobody watches a terminal, a line now and then."""

    console = make_console(stderr=True, highlight=True)
    if not console.is_terminal:
        yield ProgressLines()
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:>9}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.fields[documents]}"),
    )  # fmt: skip
    with bars_shown(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(progress: Progress) -> None:
            bars.start()
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(progress.phase, total=None, rate="", documents="")
            total = progress.total or None
            rate = "" if progress.phase == "training" else _rate(progress)
            counted = f"{progress.documents:,} {progress.unit}"
            bars.update(tasks[progress.phase], total=total, completed=progress.done, rate=rate, documents=counted)

        yield show


def _rate(progress: Progress) -> str:
    return f"{progress.text / max(progress.seconds, 1e-3) / 1e6:.1f} MB/s"


class ProgressLines:
    """At most a line every few seconds, the first at once."""

    EVERY = 5.0

    def __init__(self) -> None:
        self.last = 0.0
        self.phase = ""

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.phase == self.phase and now - self.last < self.EVERY:
            return
        self.last, self.phase = now, progress.phase
        share = progress.done / progress.total if progress.total else 0.0
        left = progress.seconds / share * (1 - share) if share > 0 else 0.0
        remaining = f", {left:.0f} s left" if share > 0.01 and progress.phase != "training" else ""
        speed = "" if progress.phase == "training" else f", {_rate(progress)}{remaining}"
        print(
            f"{progress.phase}: {100 * share:.0f} %, {progress.documents:,} {progress.unit}{speed}",
            file=sys.stderr,
            flush=True,
        )


def present_world(call: Call[World]) -> None:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>22}"), BarColumn(), TimeElapsedColumn())
    console = make_console(stderr=True)
    with bars_shown(*columns, console=console, transient=True) as bars:
        line = bars.add_task("text", total=1.0)

        def show(part: str, share: float) -> None:
            bars.start()
            bars.update(line, description=part, completed=share)

        town = call(on_progress=show) if console.is_terminal else call()
    out, seed, language = (call.options[name] for name in ("out", "seed", "language"))
    size = (out / "text.txt").stat().st_size / 1e6
    echo(f"{out / 'text.txt'}: {size:.1f} MB about town {seed} ({language})")
    if call.options["tasks"]:
        echo(f"{out / 'tasks'}: {len(list((out / 'tasks').glob('*.jsonl')))} files of labelled examples")
        echo(f"{out / 'prompts'}: {len(list((out / 'prompts').glob('*.yaml')))} of the tasks, for etude prompt")
    echo(f"{out / 'knowledge'}: {len(town.facts())} facts; with the district's, triples and labels of a graph")
    if call.options["pairs"]:
        echo(f"{out / 'pairs.tsv'}: {call.options['pairs']:,} sentences in English and Korean")
    if call.options["anchored"]:
        echo(f"{out / 'anchored.txt'}: text with links to the graph, for --anchors wiki")


COMMANDS = (Command(verbs.prepare, present_prepare), Command(verbs.world, present_world))
