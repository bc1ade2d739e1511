"""Worker process of a pick: pre-trains or fine-tunes, one line of JSON in, one out.

Started by pick/worker_pool.py; it ends when its input ends, with its parent. What it computes lies in the store of the
pick, under the key the parent knows; the reply says only whether it went well.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from etude.startup import quiet_interrupts
from etude.study.worker import start_reader


def run_job(job: dict[str, Any]) -> None:
    """Do one piece of work; it begins now, and may take `seconds`, but not beyond `deadline`."""
    from etude.pick.encoders import Pretraining, run_pretraining
    from etude.pick.tuning import Tuning, run_tuning
    from etude.study.cells import CellStore

    store, deadline = CellStore(Path(job["store"])), float(job["deadline"])
    if job["seconds"] is not None:
        deadline = min(deadline, time.monotonic() + float(job["seconds"]))
    if job["kind"] == "pretrain":
        run_pretraining(store, Pretraining(**job["work"]), deadline)
    else:
        run_tuning(store, Tuning(**job["work"]), deadline)


def answer_job(job: dict[str, Any]) -> dict[str, Any]:
    """Do one piece of work; the answer is its error, or None, and whether it is one of writing."""
    from etude.errors import UserError, explain_os_error
    from etude.pick.clock import OutOfTime

    error, unwritten = None, False
    try:
        run_job(job)
    except OutOfTime:
        error = "there was no time for it"
    except UserError as problem:
        error = str(problem)
    except OSError as problem:
        error, unwritten = explain_os_error(problem) or repr(problem), True
    except Exception as problem:
        traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}"
    return {"error": error, "unwritten": unwritten}


def main() -> None:
    requests: queue.Queue[str] = queue.Queue()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes where messages go, not into the answers
    start_reader(requests)

    with quiet_interrupts():
        while True:
            answer = answer_job(json.loads(requests.get()))
            sys.stderr.flush()
            replies.write(json.dumps(answer) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
