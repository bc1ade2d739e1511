"""`serve`: a run behind HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from etude.errors import UserError

if TYPE_CHECKING:
    from etude.serve.server import Server


def serve(
    run: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str | None = None,
    quiet: bool = False,
    on_start: Callable[[Server], None] | None = None,
) -> None:
    """A run behind HTTP, with a page: fill, generate, predict, attention, encode.

    Args:
        run: A run, a folder of transformers, or a hub id.
        host: Where to listen; 0.0.0.0 lets other machines in.
        port: 0: any that is free.
        device: cpu or cuda; a GPU where there is one.
        quiet: No line a request.
        on_start: Receives the server once it listens.
    """
    import logging
    import signal
    import threading

    if not 0 <= port <= 65535:
        raise UserError(f"port={port}: a port is a number from 0 to 65535.")
    from etude.serve.endpoints import ServedModel
    from etude.serve.server import Server

    if not quiet:
        log = logging.getLogger("etude")
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler())
    with Server(ServedModel.open(run, device), host, port) as server:
        if on_start is not None:
            on_start(server)
        for number in (signal.SIGTERM, signal.SIGINT):
            # from a thread: `shutdown` waits for the loop that this one is in
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever()
