"""`serve`: runs behind HTTP."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from etude.cores import count_cores
from etude.errors import UserError
from etude.extras import require
from etude.stages import report_stage
from etude.verbs.limits import require_device
from etude.verbs.paths import require_paths

if TYPE_CHECKING:
    from etude.runs.run import Run
    from etude.serve.server import Server

TOKEN = "ETUDE_TOKEN"  # the environment variable of the bearer token
MOST_WORKERS = 4  # beyond it, threads inside a pass gain more than a further pass


def serve(
    runs: str | Path | Run | Sequence[str | Path | Run] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    board: str | Path | None = None,
    device: str | None = None,
    token_file: str | Path | None = None,
    name: Sequence[str] = (),
    queue: int = 512,
    batch: int = 64,
    workers: int | None = None,
    wait_ms: float = 2.0,
    timeout: float = 30.0,
    quiet: bool = False,
    on_start: Callable[[Server], None] | None = None,
) -> None:
    """Serve runs over HTTP, with a page to fill, generate, translate, predict and compare, and a board of a folder.

    Args:
        runs: Runs, baselines, folders of transformers, or hf:ID of the hub.
        host: Address to listen on; 0.0.0.0 lets other machines in, which need a token.
        port: Port to listen on; 0 takes any that is free.
        board: A folder of runs and studies to show: live curves, cards, comparisons, reports.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
        token_file: A file with the bearer token that requests must bring; ETUDE_TOKEN does the same.
        name: Another host name under which requests are answered, such as a proxy's; may be given several times.
        queue: Most requests that wait; further ones are answered 429.
        batch: Most requests answered in one forward pass; 1 answers each alone.
        workers: Forward passes at once on a CPU, each on its share of the cores; up to 4 unless given.
        wait_ms: Most milliseconds a request waits for others, to be answered in one pass with them.
        timeout: Seconds after which a request is answered 503.
        quiet: Log no line for each request.
        on_start: Receives the server once it listens.
    """
    import logging

    if not 0 <= port <= 65535:
        raise UserError(f"port={port}: a port is a number from 0 to 65535.")
    for option, value in (("queue", queue), ("batch", batch), ("timeout", timeout), ("workers", workers)):
        if value is not None and not value > 0:
            raise UserError(f"{option}={value}: take a number above 0.")
    if not 0 <= wait_ms <= 1000:
        raise UserError(f"wait_ms={wait_ms}: take milliseconds from 0 to 1000.")
    require("fastapi", "etude serve")
    require("uvicorn", "etude serve")
    require("prometheus_client", "etude serve")
    folders = require_paths("runs", runs, "a run")
    if not folders and board is None:
        raise UserError("Nothing to serve: name a run ('etude serve runs/bert'), or a folder with --board.")
    if board is not None and not Path(board).is_dir():
        raise UserError(f"--board {board}: there is no such folder.")
    from etude.serve.ports import check_port
    from etude.serve.tokens import check_token

    token = _read_token(token_file)
    check_token(host, token)
    check_port(host, port)
    passes = _share_cores(workers)
    require_device(device)
    # all that a user can get wrong is checked: these load torch
    from etude.serve.app import Service
    from etude.serve.limits import Limits
    from etude.serve.run_names import name_runs
    from etude.serve.served_model import ServedModel
    from etude.serve.server import Server

    if not quiet:
        log = logging.getLogger("uvicorn.access")
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler())
    models = []
    for folder, run_name in zip(folders, name_runs(folders), strict=True):
        report_stage(f"loading {folder}")
        models.append(ServedModel.open(folder, device, run_name))
    is_cpu = all(served.model is None or served.model.device == "cpu" for served in models)
    passes = passes if is_cpu else 1  # a GPU runs one after the other
    limits = Limits(
        queue=queue,
        batch_requests=batch,
        workers=passes,
        forked=passes > 1 and sys.platform == "linux",
        wait=wait_ms / 1000,
        timeout=timeout,
    )
    service = Service.create(models, limits, token is not None, board)
    place = "$ETUDE_TOKEN" if token_file is None else f"$(cat {shlex.quote(str(token_file))})"
    server = Server(service, host, port, token, name, access_log=not quiet, token_place=place)
    if on_start is not None:
        on_start(server)
    server.run()


def _share_cores(workers: int | None) -> int:
    """The forward passes at once on a CPU; gives each its share of the cores, before torch counts them itself.

    By the environment, because BLAS libraries read nothing else; OMP_NUM_THREADS of the user stays as it is.
    """
    cores = count_cores()
    passes = min(cores, MOST_WORKERS) if workers is None else workers
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // passes)))
    return passes


def _read_token(path: str | Path | None) -> str | None:
    """The bearer token of a file, or of the environment; None where neither is."""
    if path is None:
        return os.environ.get(TOKEN) or None
    try:
        return Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"The token cannot be read from {path}: {problem}.") from None
