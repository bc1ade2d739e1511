"""The process of one trial of a search: a line of JSON in that names it, lines of JSON out.

Started by trial_processes.py. A line out is a message that was logged, or how the trial ended. SIGTERM stops training
with a checkpoint; before and after it, it ends the process, as a kill may at any time.
"""

from __future__ import annotations

import io
import json
import logging
import os
import threading
import traceback
from pathlib import Path
from typing import Any, TextIO


class Forwarder(logging.Handler):
    """Hands log messages on to the parent."""

    def __init__(self, replies: TextIO) -> None:
        super().__init__()
        self.replies = replies

    def emit(self, record: logging.LogRecord) -> None:
        message = {"log": record.name, "level": record.levelno, "text": record.getMessage()}
        self.replies.write(json.dumps(message) + "\n")
        self.replies.flush()


def read_request() -> dict[str, Any]:
    """Read what to do from a copy of stdin, and end the process when that ends: the parent is dead.

    stdin itself is empty from then on, so that no process that is forked waits for it.
    """
    orders = io.FileIO(os.dup(0))
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    line = orders.readline()
    if not line:
        os._exit(1)

    def watch_parent() -> None:
        orders.read(1)
        os._exit(1)  # at once: who goes on with the search waits for no lock; checkpoints are whole or absent

    threading.Thread(target=watch_parent, daemon=True, name="etude-parent").start()
    request: dict[str, Any] = json.loads(line)
    return request


def configure_torch(is_bf16_faster: bool) -> None:
    """Take from the parent what would depend on how many processes there are."""
    import torch

    from etude.train.peak import take_measurement

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    take_measurement(is_bf16_faster)


def run(folder: Path, name: str) -> dict[str, Any]:
    """Run the trial; return how it ended."""
    from etude.errors import UserError, explain_os_error
    from etude.train.failures import DivergenceError, is_memory_error
    from etude.train.signals import ignore_repeated_signals
    from etude.transfer.search import run_stored_trial

    ignore_repeated_signals()
    try:
        return {"kind": "finished" if run_stored_trial(folder, name).finished else "stopped"}
    except DivergenceError as error:
        return {"kind": "diverged", "text": str(error)}
    except UserError as error:
        fewer = "Trials at a time share the memory: a smaller --parallel leaves more." if is_memory_error(error) else ""
        return {"kind": "user", "text": error.message, "advice": f"{error.advice} {fewer}".strip()}
    except MemoryError as error:
        return {"kind": "memory", "text": str(error)}
    except Exception as error:
        explained = explain_os_error(error) if isinstance(error, OSError) else None
        if explained is not None:
            return {"kind": "system", "text": explained}
        return {"kind": "unforeseen", "text": traceback.format_exc()}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes where messages go, not into the replies
    request = read_request()
    logging.captureWarnings(True)
    for log in ("etude", "py.warnings"):
        logging.getLogger(log).addHandler(Forwarder(replies))
    logging.getLogger("etude").setLevel(request["level"])
    configure_torch(request["is_bf16_faster"])
    ending = run(Path(request["search"]), request["trial"])
    replies.write(json.dumps(ending) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
