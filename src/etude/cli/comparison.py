"""`etude study`, `pick` and `demo`: the leaderboard, what is claimed, and where the report is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etude.cli.activity import show_activity
from etude.cli.adapter import Call, Command
from etude.cli.exits import interruptible
from etude.cli.printing import echo, make_console
from etude.errors import quote_path
from etude.verbs import comparison as verbs

if TYPE_CHECKING:
    from rich.console import Console

    from etude.pick.pick import PickResult
    from etude.study.runner import Report


def present_study(call: Call[Report], *, dry_run: bool = False, quiet: bool = False) -> None:
    """Prints the leaderboard and the claims.

    Args:
        dry_run: Only show the cells, their cost and what is cached; run nothing.
        quiet: Print only the result.
    """
    console = _console()
    arguments = call.arguments
    if dry_run:
        names = "settings budget gpu text data device workers cell import_cells any_version"
        shared = {name: arguments[name] for name in names.split()}
        files, out = [arguments["file"], *(arguments["others"] or [])], arguments["out"]
        for file in files:
            with show_activity(f"planning {file}", quiet):
                planned = verbs.plan_study(
                    file,
                    out=out,
                    shares_folder=len(files) > 1,
                    on_progress=lambda line: None if quiet else _print_dim(console, line),
                    **shared,
                )
                from etude.study.leaderboard import build_plan_table, summarize_plan  # loads torch
            console.print(build_plan_table(planned.cells, planned.states, planned.forecast))
            summary = summarize_plan(planned.plan, arguments["workers"] or 1, planned.states, planned.forecast)
            console.print("\n".join([summary, *planned.power]))
        return
    folder = f" (-o {arguments['out']})" if arguments["out"] else ""
    with interruptible(f"Stopped and saved. The same command goes on{folder}."):
        report = call(on_progress=lambda line: None if quiet else _print_dim(console, line))
    for own in (report, *report.others):
        _print_report(own, console)


def _print_report(report: Report, console: Console) -> None:
    from rich.text import Text

    _print_leaderboard(report, console)
    _print_claims(report.results, console)
    for line in report.failed:
        console.print(Text(f"Failed: {line}", style="red"))
    console.print(f"Report: {report.page}")


def present_pick(call: Call[PickResult]) -> None:
    console = _console()
    minutes = call.options["minutes"]
    echo(f"Reading text and labels; {minutes:g} {'minute' if minutes == 1 else 'minutes'} in all", err=True)
    with interruptible("Stopped and saved. The same command goes on."):
        picked = call(on_progress=lambda line: _print_dim(console, line))
    from etude.pick.report import build_table, summarize

    console.print(build_table(picked.results))
    for line in summarize(picked):
        console.print(line, highlight=False)


def present_demo(call: Call[Report]) -> None:
    console = _console()
    _print_dim(console, "Writing a small world, pre-training on it, comparing. Loading…")
    with interruptible(f"Stopped and saved. 'etude demo -o {quote_path(call.options['out'])}' goes on."):
        report = call(on_progress=lambda line: _print_dim(console, line))
    console.print()
    _print_leaderboard(report, console)
    from etude.study.demo import best_gain

    best = best_gain(report)
    if best is not None:
        console.print(f"\n{best[0]}: {best[1]:+.1f} points over no pre-training, with the same few labels.")
    _print_claims(report.results, console)  # what that is worth: a verdict
    console.print(f"Report: {report.page}")


def _console() -> Console:
    return make_console(soft_wrap=True)


def _print_dim(console: Console, line: str) -> None:
    from rich.text import Text

    console.print(Text(line, style="dim"))


def _print_leaderboard(report: Report, console: Console) -> None:
    from etude.study.leaderboard import print_leaderboard

    print_leaderboard(report.results, console)


def _print_claims(results: dict[str, Any], console: Console) -> None:
    from rich.text import Text

    from etude.study.leaderboard import describe_verdict, format_points
    from etude.study.sections import localize

    styles = {"holds": "green", "fails": "red"}
    for claim in results["claims"]:
        line = f"{describe_verdict(claim)}: {localize(claim['claim'], 'en')}"
        if "mean" in claim:
            interval = f"{format_points(claim['low'])} … {format_points(claim['high'])}"
            line += f" ({format_points(claim['mean'], sign=True)}, {interval})"
        console.print(Text(line, style=styles.get(claim["verdict"], "")))


COMMANDS = (
    Command(verbs.demo, present_demo, prints_lines=True),
    Command(
        verbs.study,
        present_study,
        usage="Give a study, such as studies/mask-rate.yaml",
        grouped=False,
        prints_lines=True,
        rest="others",
    ),
    Command(verbs.pick, present_pick, prints_lines=True),
)
