"""`etude serve`: says where the server listens, and how to ask it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from etude.cli.adapter import Call, Command
from etude.verbs import serving as verbs

if TYPE_CHECKING:
    from etude.serve.server import Server


def present_serve(call: Call[None]) -> None:
    def print_address(server: Server) -> None:
        for served in server.service.models.values():
            typer.echo(f"{served.name} at {server.address} ({', '.join(served.abilities)})", err=True)
        pages = {"Page": "/", **({"Board": "/board"} if server.service.board else {}), "API": "/api"}
        places = "   ".join(f"{name} {server.address}{path}" for name, path in pages.items())
        typer.echo(f"{places}   Ctrl-C ends it. Try:", err=True)
        typer.echo(f"  {server.curl}", err=True)

    call(on_start=print_address)


COMMANDS = (Command(verbs.serve, present_serve),)
