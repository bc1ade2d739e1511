"""`etude recipes` and `etude tasks`: tables of what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.cli.adapter import Call, Command
from etude.cli.printing import echo, make_console
from etude.verbs import catalog as verbs

if TYPE_CHECKING:
    from etude.verbs.catalog import RecipeInfo, TaskCatalog, TaskInfo


def present_recipes(call: Call[list[RecipeInfo]]) -> None:
    if "name" in call.arguments:
        echo(call()[0].recipe.dump(), nl=False)
        return
    from rich.table import Table

    from etude.recipes.size import format_count

    console = make_console(highlight=True)
    with console.status("Counting"):
        listed = sorted(call(), key=lambda info: (info.recipe.system, info.size.parameters))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    table.add_column("system", no_wrap=True)
    for heading in ("parameters", "FLOPs a token"):
        table.add_column(heading, justify="right", no_wrap=True)
    for info in listed:
        parameters, flops = format_count(info.size.parameters, "KMBT"), format_count(info.size.flops_per_token, "KMGT")
        table.add_row(info.recipe.name, info.recipe.system, parameters, flops)
    console.print(table)
    console.print("Parameters of the model without heads; FLOPs forward and backward over full sequences.", style="dim")
    console.print("One recipe in full: etude recipes NAME [model.layers=6 ...]", style="dim")


def present_tasks(call: Call[TaskCatalog]) -> None:
    catalog = call()
    for info in catalog.tasks:
        _print_task(info)
    if catalog.tasks and catalog.tasks[0].settings:
        return
    for suite, names in catalog.suites.items():
        echo(f"{suite:<13} a suite with one score: {', '.join(names)}; --train names the folder of all")
    echo(f"\nFiles may be compressed ({' '.join(catalog.compressed)}). Other names of columns: -c role=name.")
    echo("The settings of one task: etude tasks TASK")


def _print_task(info: TaskInfo) -> None:
    echo(f"{info.kind:<13} {info.summary}")
    echo(f"{'':<13}   scores: {info.scores}")
    echo(f"{'':<13}   files: {' '.join(info.files)}")
    for role, names in info.columns.items():
        echo(f"{'':<13}   column {role}: {', '.join(names)}")
    datasets = [
        f"{name} ({', '.join(f'{key}={value}' for key, value in settings.items())})" if settings else name
        for name, settings in info.datasets.items()
    ]
    if datasets:
        echo(f"{'':<13}   by name: {', '.join(datasets)}")
    group = ""
    for setting in info.settings:
        if setting.name.partition(".")[0] != group:
            echo()
            group = setting.name.partition(".")[0]
        echo(f"{setting.name + '=' + setting.default:<42} {setting.meaning}".rstrip())
    if info.settings:
        echo("\ntrain.* are the settings of the loop, as in recipes: train.lr, train.epochs, train.seed …")


COMMANDS = (
    Command(verbs.recipes, present_recipes, usage="Give one recipe at most"),
    Command(verbs.tasks, present_tasks),
)
