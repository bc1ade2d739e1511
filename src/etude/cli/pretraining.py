"""`etude check`, `bench`, `pretrain` and `distill`: what a run will cost, and what became of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from etude.cli.activity import show_activity
from etude.cli.adapter import Call, Command
from etude.cli.advice import advise_on_time, format_duration
from etude.cli.bars import bars_shown
from etude.cli.exits import advise_resuming, exit_interrupted
from etude.cli.printing import echo, is_first_process, make_console
from etude.cli.transfer import print_task_run
from etude.cli.words import split_settings
from etude.errors import UserError, quote_path
from etude.verbs import pretraining as verbs
from etude.verbs.transfer import is_finetuning, resume_finetune

if TYPE_CHECKING:
    from etude.pretraining.bench import Bench, BenchTrial
    from etude.pretraining.check import Check
    from etude.pretraining.cluster_check import ClusterCheck
    from etude.runs.run import Run

USAGE = "Give a recipe and a corpus, for example 'bert-small data/books'"
HINT = "'etude recipes' lists the recipes, 'etude prepare' makes a corpus."


# --- before a run -----------------------------------------------------------------------------------


def present_check(call: Call[Check | ClusterCheck]) -> None:
    from rich.table import Table

    result = call()
    if any(call.arguments.get(name) is not None for name in ("nodes", "gpus")):
        from etude.pretraining.cluster_check import ClusterCheck

        assert isinstance(result, ClusterCheck)
        _present_plan(result)
        return
    from etude.pretraining.check import Check

    assert isinstance(result, Check)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    settings = result.recipe.train
    unit, source = ("triples", "graph") if result.recipe.reads_graph else ("tokens", "text")
    time = format_duration(result.seconds)
    for name, value in (
        ("recipe", f"{result.recipe.name}: {result.recipe.model_kind} + {result.recipe.objective_kind}"),
        ("parameters", f"{result.parameters:,}"),
        ("memory", f"about {result.needs} on {settings.device} in {settings.precision}"),
        ("steps", f"{result.steps:,} of {settings.batch_tokens or 0:,} {unit}"),
        (unit, f"{result.tokens:,}, {result.epochs:,.2f} times through the {source}"),
        ("FLOPs", f"{result.flops:.3e} ({result.speed.flops_per_token:.3e} a {unit[:-1]})"),
        ("time", f"about {time} at {result.speed.tokens_per_second:,.0f} {unit}/s (measured just now)"),
        ("loss at the start", f"{result.speed.loss:.3f}"),
    ):
        table.add_row(name, value)
    if result.unigram_nats is not None:
        name = "loss to beat" if result.token_loss in ("loss", "mlm") else f"{result.token_loss} loss to beat"
        table.add_row(name, f"{result.unigram_nats:.3f} (knowing only how often each token occurs)")
    console = make_console(highlight=True)
    console.print(table)
    words = split_settings(call.words)[0]
    too_long = advise_on_time(words[0], words[1], result.seconds) if len(words) == 2 else None
    for problem in [*result.problems, *([too_long] if too_long else [])]:
        console.print(f"! {problem}", highlight=False, style="yellow", soft_wrap=True)  # commands in it are copied
    if not result.problems and not too_long:
        console.print("No problems found.")


def _present_plan(result: ClusterCheck) -> None:
    from rich.table import Table

    from etude.train.cluster_plan import DRAW, NETWORK
    from etude.train.cluster_time import ATTENTION, MEMORY, PRODUCTS

    best, machine, console = result.best, result.machine, make_console(highlight=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    part, sent = best.memory, best.traffic
    memory = ", ".join(
        f"{name} {value / 1e9:.1f}"
        for name, value in (
            ("weights", part.weights), ("gradients", part.gradients), ("optimiser", part.optimizer),
            ("activations", part.activations), ("gathered", part.gathered), ("output", part.output),
        )
    )  # fmt: skip
    fits = "fits" if best.is_fitting else "DOES NOT FIT"
    for name, value in (
        ("recipe", f"{result.recipe.name}: {result.parameters:,} parameters"),
        ("machine", f"{result.nodes} x {result.gpus} {machine.name}"),
        ("mesh", f"{best.mesh}, train.recompute={best.recompute}, "
         f"train.gather={'model' if best.gathers_model else 'layer'}"),
        ("memory a GPU", f"{part.total / 1e9:.1f} GB, {fits} ({memory})"),
        ("sent a step", f"{(sent.gathered + sent.reduced + sent.copies) / 1e9:,.1f} GB a GPU (gathered "
         f"{sent.gathered / 1e9:,.1f}, reduced {sent.reduced / 1e9:,.1f}, between copies {sent.copies / 1e9:,.1f})"),
        ("time", f"about {result.days:,.1f} days at {best.tokens_per_second:,.0f} tokens/s, bound by {best.bound}; a "
         f"model: products at {PRODUCTS:.0%} and attention at {ATTENTION:.0%} of {machine.peak / 1e12:,.0f} TFLOP/s, "
         f"memory at {MEMORY:.0%} of {machine.bandwidth / 1e12:.1f} TB/s, network at {NETWORK:.0%} of "
         f"{machine.within / 1e9:.0f} and {machine.between / 1e9:.0f} GB/s"),
        ("start", f"each process draws its share of the weights in about {result.start_seconds:,.0f} s; a model: "
         f"{DRAW * 1e9:.0f} ns a value on one core"),
    ):  # fmt: skip
        table.add_row(name, value)
    if result.fake is not None:
        check = result.fake
        verdict = "agree" if check.agrees else "DIFFER"
        table.add_row(
            "fake ranks",
            f"{verdict}: one row in float32 as rank 0 of {result.nodes * result.gpus:,} takes "
            f"{check.peak / 1e9:.2f} GB where {check.planned_peak / 1e9:.2f} are planned; "
            f"largest difference {max(check.differences):.1%}, "
            f"{check.seconds:.0f} s",
        )
    console.print(table)
    others = Table("mesh", "recompute", "memory a GPU", "tokens/s", "fits", box=None, pad_edge=False)
    for plan in result.plans[:6]:
        others.add_row(
            str(plan.mesh), plan.recompute, f"{plan.memory.total / 1e9:.1f} GB", f"{plan.tokens_per_second:,.0f}",
            "yes" if plan.is_fitting else "no",
        )  # fmt: skip
    console.print(others)
    for problem in result.problems:
        console.print(f"! {problem}", highlight=False, style="yellow", soft_wrap=True)  # commands in it are copied


COLUMNS = ("micro-batch", "tokens/s", "of peak", "memory", "waiting", "start-up")
LEGEND = """\
  micro-batch  tokens in memory at once: it changes speed and memory, never the result
  of peak      FLOPs of the recipe a second, as a share of the best matrix product's
  waiting      share of the time in which no batch was ready: more train.workers help
  start-up     until steps run at speed: compiling, if anything is, and first touches"""


def present_bench(call: Call[Bench]) -> None:
    from rich.progress import TextColumn, TimeElapsedColumn

    console = make_console(soft_wrap=True)
    is_random = "corpus" not in call.arguments
    columns = (TextColumn("{task.description}…"), TimeElapsedColumn())
    with bars_shown(*columns, console=console, transient=True) as bars:
        line = bars.add_task("loading", total=None)

        def show(stage: str) -> None:
            bars.start()
            bars.update(line, description=stage)

        def print_result(result: Bench) -> None:
            last = result.trials[-1:]
            console.print(bench_row(result, last[0]) if last else bench_heading(result, is_random))

        result = call(**({"on_stage": show} if console.is_terminal else {}), on_result=print_result)
    console.print("\n" + bench_summary(result) + "\n\n" + LEGEND)


def bench_heading(result: Bench, is_random: bool) -> str:
    """The machine, the recipe, and the columns; `is_random`: words are drawn, there is no corpus."""
    from etude.runs.model_card import describe_hardware, describe_versions

    train = result.recipe.train
    return "\n".join(
        [
            f"{describe_hardware()}; {describe_versions()}",
            f"The best matrix product in {train.precision}: {result.peak / 1e12:.3g} TFLOP/s, the peak",
            f"{result.recipe.name}, steps of {train.batch_tokens:,} tokens"
            + (f"; random words, vocabulary {result.recipe.model.vocab:,}" if is_random else ""),
            "",
            "".join(f"{name:>13}" for name in COLUMNS),
        ]
    )


def bench_row(result: Bench, measured: BenchTrial) -> str:
    """One micro-batch."""
    values = [f"{measured.micro_tokens:,}"]
    if measured.speed is None:
        values.append("out of memory")
    else:
        values += [f"{measured.speed.tokens_per_second:,.0f}", f"{result.share(measured):.1%}"]
        values += [f"{measured.memory / 1e9:.2f} GB" if measured.memory else "?"]
        values += [f"{measured.speed.loader_wait:.1%}", f"{measured.speed.startup:.1f} s"]
    return "".join(f"{value:>13}" for value in values)


def bench_summary(result: Bench) -> str:
    """Which micro-batch is best, and where the time of a step goes with it."""
    best, total = result.best, sum(result.parts.values())
    lines = [f"Fastest: train.micro_tokens={best.micro_tokens}"]
    if best.speed is not None:
        lines[0] += f", {best.speed.seconds_per_step * 1e3:,.0f} ms a step"
    if total:
        shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in result.parts.items())
        lines.append(f"There a step's time goes to: {shares}")
    train = result.recipe.train
    if train.compile or (train.compile is None and train.device != "cpu"):
        from etude.train.compilation import cache_folder

        lines.append(f"Compiled kernels are kept in {cache_folder()}: the next start-up is shorter")
    return "\n".join(lines)


# --- a run ------------------------------------------------------------------------------------------


def present_pretrain(call: Call[Run], *, resume: Path | None = None, corpus: str | None = None) -> None:
    """Prints how a pre-training ended.

    Args:
        resume: Continue this run, which was stopped, from its last checkpoint.
        corpus: With --resume: where its corpus is now, a folder or a URL.
    """
    quiet = call.options["quiet"]
    if resume is None:
        if corpus is not None:
            raise UserError("--corpus goes with --resume; a new run takes its corpus behind the recipe.")
        print_end(call(), quiet)
        return
    if call.words or set(call.given) - {"quiet"}:
        raise UserError(
            "--resume takes nothing but the run: its recipe and corpus are inside. "
            "To change settings, start a new run with 'etude pretrain RECIPE CORPUS -o FOLDER'."
        )
    with show_activity(f"resuming {resume}", quiet):
        is_task = is_finetuning(resume)  # loads torch
    if is_task:
        if corpus is not None:
            raise UserError(f"{resume} is a fine-tuning: it has no corpus. Leave --corpus out.")
        with show_activity(f"resuming {resume}", quiet):
            tuned = resume_finetune(resume, quiet=quiet)
        print_task_run(tuned, resume)
        return
    with show_activity(f"resuming {resume}", quiet):
        run = verbs.resume(resume, corpus=corpus, quiet=quiet)
    print_end(run, quiet)


def present_distill(call: Call[Run]) -> None:
    quiet = call.options["quiet"]
    print_end(call(), quiet)


def print_end(run: Run, quiet: bool) -> None:
    """What became of a run; one that was stopped ends the command with a code of its own."""
    if not run.finished:
        exit_interrupted(f"Stopped and saved. Go on with: etude pretrain --resume {quote_path(run.folder)}")
    if not quiet and is_first_process():
        echo(f"Done: {run.folder} (weights in model.safetensors, what happened in README.md)", err=True)


COMMANDS = (
    Command(verbs.check, present_check, usage=USAGE, hint=HINT),
    Command(
        verbs.bench,
        present_bench,
        usage="Give a recipe and a corpus at most, as in 'bert-small data/books'",
    ),
    Command(
        verbs.pretrain,
        present_pretrain,
        usage=USAGE,
        hint=HINT,
        missing="Name the folder of the new run: -o runs/NAME.",
        resume=partial(advise_resuming, "pretrain"),
    ),
    Command(verbs.distill, present_distill, usage=USAGE, hint=HINT, resume=partial(advise_resuming, "pretrain")),
)
