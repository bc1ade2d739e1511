"""`etude serve`: a run behind HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from etude.cli.generate import Device, Model


def register(app: typer.Typer) -> None:
    app.command()(serve)


def serve(
    run: Model,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    device: Device = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line a request.")] = False,
) -> None:
    """A run behind HTTP, with a page: fill, generate, predict, attention, encode."""
    import logging
    import signal
    import threading

    from etude.serve.endpoints import Served
    from etude.serve.server import Server

    if not quiet:
        log = logging.getLogger("etude")
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler())
    with Server(Served.open(run, device), host, port) as server:
        known = ", ".join(server.served.abilities)
        typer.echo(f"{server.served.name} at {server.address} ({known}). Ctrl-C ends it.", err=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            # from a thread: `shutdown` waits for the loop that this one is in
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever()
