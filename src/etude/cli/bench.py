"""`etude bench`: how fast this machine trains a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from etude.pretraining.bench import Bench, Measured

COLUMNS = ("micro-batch", "tokens/s", "of peak", "memory", "waiting", "start-up")
LEGEND = """\
  micro-batch  tokens in memory at once: it changes speed and memory, never the result
  of peak      FLOPs of the recipe a second, as a share of the best matrix product's
  waiting      share of the time in which no batch was ready: more train.workers help
  start-up     until steps run at speed: compiling, if anything is, and first touches"""


def register(app: typer.Typer) -> None:
    @app.command()
    def bench(
        words: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[RECIPE [CORPUS]] [key=value ...]",
                help="As for 'etude pretrain'. Without a corpus words are drawn at random; without a recipe it is "
                "bert-base on a GPU, bert-mini with small steps on a CPU.",
            ),
        ] = None,
        seconds: Annotated[float, typer.Option(help="For each micro-batch, once it runs at speed.", min=0.01)] = 2.0,
    ) -> None:
        """Measure this machine: tokens/s, share of its peak, the best micro-batch, where the time goes."""
        from rich.console import Console
        from rich.progress import Progress, TextColumn, TimeElapsedColumn

        from etude.cli.arguments import places_and_overrides
        from etude.errors import UserError

        places, overrides = places_and_overrides(words or [])
        if len(places) > 2:
            raise UserError(
                f"A recipe and a corpus are wanted at most, as 'bert-small data/books'; got: {' '.join(places)}."
            )
        recipe, corpus = [*places, None, None][:2]
        console = Console(highlight=False, soft_wrap=True)
        with Progress(TextColumn("{task.description}…"), TimeElapsedColumn(), console=console, transient=True) as bar:
            line = bar.add_task("loading", total=None)
            from etude.pretraining.bench import bench as measure  # torch takes seconds to load

            def seen(found: Bench) -> None:
                console.print(row(found, found.measured[-1]) if found.measured else heading(found, corpus is None))

            found = measure(
                recipe, corpus, overrides, seconds, doing=lambda what: bar.update(line, description=what), seen=seen
            )
        console.print("\n" + summary(found) + "\n\n" + LEGEND)


def heading(found: Bench, invented: bool) -> str:
    from etude.runs.model_card import hardware, versions

    train = found.recipe.train
    return "\n".join(
        [
            f"{hardware()}; {versions()}",
            f"The best matrix product in {train.precision}: {found.peak / 1e12:.3g} TFLOP/s, the peak",
            f"{found.recipe.name}, steps of {train.batch_tokens:,} tokens"
            + (f"; random words, vocabulary {found.recipe.model.vocab:,}" if invented else ""),
            "",
            "".join(f"{name:>13}" for name in COLUMNS),
        ]
    )


def row(found: Bench, one: Measured) -> str:
    values = [f"{one.micro_tokens:,}"]
    if one.speed is None:
        values.append("out of memory")
    else:
        values += [f"{one.speed.tokens_per_second:,.0f}", f"{found.share(one):.1%}"]
        values += [f"{one.memory / 1e9:.2f} GB" if one.memory else "?"]
        values += [f"{one.speed.loader_wait:.1%}", f"{one.speed.startup:.1f} s"]
    return "".join(f"{value:>13}" for value in values)


def summary(found: Bench) -> str:
    """Which micro-batch is best, and where the time of a step goes with it."""
    best, total = found.best, sum(found.parts.values())
    lines = [f"Fastest: train.micro_tokens={best.micro_tokens}"]
    if best.speed is not None:
        lines[0] += f", {best.speed.seconds_per_step * 1e3:,.0f} ms a step"
    if total:
        shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in found.parts.items())
        lines.append(f"There a step's time goes to: {shares}")
    train = found.recipe.train
    if train.compile or (train.compile is None and train.device != "cpu"):
        from etude.train.compilation import cache_folder

        lines.append(f"Compiled kernels are kept in {cache_folder()}: the next start-up is shorter")
    return "\n".join(lines)
