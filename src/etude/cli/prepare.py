"""`etude prepare`: text files become a corpus."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from etude.text.prepare.prepare import Progress

HELP = "\n\n".join([
    "Turn text into a corpus: tokenised, split into documents, sentences and words, with a part held out.",
    "SOURCES are files, folders or quoted patterns of .txt (documents parted by blank lines), .jsonl, .csv, .tsv or "
    ".parquet, each also packed as .gz, .xz or .zst, or hub:NAME for a data set of the hub.",
    "A tokenizer is trained on the text (word:50000, wordpiece:8000, bpe:16000, bytebpe:16000, unigram:8000, char; "
    "with ',lower', ',form=nfkc' or ',min=5' behind) or taken as it is: the path of a tokenizer.json, a vocab.txt, a "
    "vocab.json with merges.txt beside it, or the folder of any of them.",
    "Interrupted, the same command goes on where it stopped.",
])  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command("prepare", help=HELP)(prepare)


def prepare(
    sources: Annotated[list[str], typer.Argument(help="Files, folders, patterns, or hub:NAME.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The corpus folder to make.", show_default=False)],
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", "-t", help="What to train, or the path of one.")
    ] = "bpe:16000",
    valid: Annotated[float, typer.Option(help="Share of documents held out.")] = 0.01,
    text_field: Annotated[str, typer.Option(help="Field or column that holds the text of a record.")] = "text",
    where: Annotated[str | None, typer.Option(help='Keep records by their fields: "score>=3 and lang==ko".')] = None,
    unique: Annotated[bool, typer.Option("--unique", help="Drop exact duplicates of documents.")] = False,
    weights: Annotated[
        str | None, typer.Option(help="How many times each source counts, as in 1,2.5,0.5; one number a source.")
    ] = None,
    one_document: Annotated[bool, typer.Option("--one-document", help="A .txt file is one document.")] = False,
    errors: Annotated[
        str, typer.Option(help="'replace' goes on at invalid UTF-8, with U+FFFD in its place.")
    ] = "strict",
    workers: Annotated[int | None, typer.Option(help="Processes; all cores unless given.", show_default=False)] = None,
    sample_mb: Annotated[float, typer.Option(help="MB of text the tokenizer is trained on, drawn by hash.")] = 32.0,
    ids: Annotated[str, typer.Option(help="Type of ids on disk: auto, uint16 or uint32.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the draws: held-out documents, the sample.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a corpus that is already there.")] = False,
) -> None:
    from etude.errors import UserError
    from etude.text.prepare.corpus_report import format_report
    from etude.text.prepare.prepare import prepare as run

    try:
        parsed = [float(weight) for weight in weights.split(",")] if weights else None
    except ValueError:
        raise UserError(f"--weights takes numbers with commas between, as in 1,2.5, not '{weights}'.") from None
    with _interruptible(out), _shown() as show:
        corpus = run(
            sources, out, tokenizer, valid=valid, workers=workers, text_field=text_field, where=where, unique=unique,
            errors=errors, weights=parsed, one_document=one_document, sample_bytes=int(sample_mb * 1e6), seed=seed,
            ids=ids, force=force, progress=show,
        )  # fmt: skip
    from rich.console import Console
    from rich.table import Table

    rows = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in format_report(corpus.manifest):
        rows.add_row(name, value)
    console = Console(highlight=False)
    console.print(rows)
    place = shlex.quote(str(out))
    console.print(f"\nThe corpus is in {out}. Next, with any name that 'etude recipes' lists:", soft_wrap=True)
    console.print(f"  etude check bert-small {place}\n  etude pretrain bert-small {place} -o runs/bert", soft_wrap=True)


@contextmanager
def _interruptible(out: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end with the state saved, exit code 3, and a word on how to go on."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            f"\nInterrupted. What is done is kept in {out}.partial; the same command goes on from there.", err=True
        )
        raise typer.Exit(3) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _shown() -> Iterator[Any]:
    """Progress as a line that renews itself, or, where nobody watches a terminal, a line now and then."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:>9}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.fields[documents]}"),
    )  # fmt: skip
    with Bars(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(progress: Progress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(progress.phase, total=None, rate="", documents="")
            total = progress.total or None
            rate = "" if progress.phase == "training" else _rate(progress)
            counted = f"{progress.documents:,} documents"
            bars.update(tasks[progress.phase], total=total, completed=progress.done, rate=rate, documents=counted)

        yield show


def _rate(progress: Progress) -> str:
    return f"{progress.text / max(progress.seconds, 1e-3) / 1e6:.1f} MB/s"


class _Lines:
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
        when = f", {left:.0f} s left" if share > 0.01 and progress.phase != "training" else ""
        speed = "" if progress.phase == "training" else f", {_rate(progress)}{when}"
        print(
            f"{progress.phase}: {100 * share:.0f} %, {progress.documents:,} documents{speed}",
            file=sys.stderr,
            flush=True,
        )
