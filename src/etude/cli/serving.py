"""`etude serve`: says where the server listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from etude.cli.adapter import Call, Command
from etude.verbs import serving as verbs

if TYPE_CHECKING:
    from etude.serve.server import Server


def present_serve(call: Call[None]) -> None:
    def print_address(server: Server) -> None:
        abilities = ", ".join(server.served.abilities)
        typer.echo(f"{server.served.name} at {server.address} ({abilities}). Ctrl-C ends it.", err=True)

    call(on_start=print_address)


COMMANDS = (Command(verbs.serve, present_serve),)
