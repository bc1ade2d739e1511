"""The command line: one command for each verb, made by `adapter.py`; presenters print what a verb returns.

Nothing heavy is imported here or at the top of those modules: `etude --help` answers at once, and torch
is loaded by the verb that needs it.
"""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from etude.cli import catalog, comparison, corpus, hub, inference, pretraining, serving, show, transfer, verify
from etude.cli.printing import make_console
from etude.errors import UserError, escape_path, explain_os_error

COMMANDS = (
    *comparison.COMMANDS,
    *corpus.COMMANDS,
    *pretraining.COMMANDS,
    *transfer.COMMANDS,
    *inference.COMMANDS,
    *hub.COMMANDS,
    *serving.COMMANDS,
    *catalog.COMMANDS,
    *verify.COMMANDS,
)
PANELS = {
    "Start here": ["demo", "world", "pick", "study"],
    "From text to a model": ["prepare", "check", "pretrain", "distill", "bench", "recipes"],
    "Tasks with labels": ["tasks", "finetune", "evaluate", "predict", "features", "augment"],
    "Use a model": ["fill", "generate", "translate", "prompt", "perplexity", "serve"],
    "Look inside, keep, exchange": ["verify", "import", "export"],
}  # in which help lists the commands; `show` stands in the last
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
ORDER = list(PANEL_OF)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a fault of ours shows a plain traceback, fit for a report
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="'etude COMMAND -h' explains a command. Words such as train.steps=500 after it change its settings.",
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"etude {version('etude')}")
        raise typer.Exit


@app.callback()
def etude(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print an error's traceback; may stand anywhere in the line.")
    ] = False,
) -> None:
    """Pre-train language models on plain text, then teach them a task."""


for command in sorted(COMMANDS, key=lambda command: ORDER.index(command.called)):
    app.command(command.called, rich_help_panel=PANEL_OF[command.called])(command.function())
views = show.app()
app.add_typer(views, name="show", rich_help_panel=list(PANELS)[-1])


def main() -> None:
    """The entry point: what a user can cause is one message and exit code 2."""
    own = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)  # beyond it, words are not ours
    debug = "--debug" in sys.argv[:own]
    sys.argv[:own] = [word for word in sys.argv[:own] if word != "--debug"]
    try:
        refuse_undecodable(sys.argv)
        _explain_view(sys.argv[1:])
        app()
    except MemoryError as error:
        _fail(f"Memory ran out: {error}. Give it a smaller input, or more memory.", error, debug)
    except (UserError, OSError) as error:
        _fail(str(error) if isinstance(error, UserError) else explain_os_error(error), error, debug)


def refuse_undecodable(words: list[str]) -> None:
    """Raise UserError at a word that is no UTF-8: manifests and recipes are, and hold the names of files."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(f"{escape_path(word)} is not UTF-8. Rename the file or the folder.") from None


def _explain_view(words: list[str]) -> None:
    """Raise UserError where a view of `show` is asked for as a command of its own."""
    if words and words[0] in {view.name for view in views.registered_commands}:
        raise UserError(f"There is no command '{words[0]}': it is a view. Type: etude show {shlex.join(words)}")


def _fail(message: str | None, error: BaseException, debug: bool) -> None:
    """Print the message and exit with code 2; raise the error itself where it has none, or with --debug."""
    if debug or message is None:
        raise error
    from rich.text import Text

    make_console(stderr=True, soft_wrap=True).print(Text.assemble(("Error: ", "bold red"), message))
    sys.exit(2)


if __name__ == "__main__":
    main()
