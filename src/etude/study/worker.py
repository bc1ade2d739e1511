"""Worker process that runs cells: one line of JSON in, one out.

Started by executors.py; it ends when its input ends. After each cell it gives memory back, since others share the GPU.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path


def start_reader(requests: queue.Queue[str]) -> None:
    """Read requests in a thread, from a copy of stdin; stdin itself is empty from then on.

    A thread that waits in sys.stdin holds its lock for ever, and a process that is forked meanwhile (to build batches
    for a GPU) closes sys.stdin first thing: it would wait for that lock, and nobody would ever let it go.
    """
    lines = os.fdopen(os.dup(0), encoding="utf-8")
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)

    def read() -> None:
        """Input ends when the parent has no more to say, or is dead: a cell under way is left for the next time."""
        for line in lines:
            requests.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True, name="etude-orders").start()


def main() -> None:
    requests: queue.Queue[str] = queue.Queue()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes where messages go, not into the answers
    start_reader(requests)

    from etude.errors import explain_os_error
    from etude.startup import quiet_interrupts
    from etude.study.cells import Cell
    from etude.study.execute import CellResult, release_memory, retains_memory, run_cell

    def answer(cell: Cell) -> CellResult:
        try:
            result = run_cell(cell, folder)
        except OSError as error:
            result = CellResult(cell.key, explain_os_error(error) or repr(error), unwritten=True)
        except Exception as error:
            traceback.print_exc()
            result = CellResult(cell.key, f"{type(error).__name__}: {error}")
        if not release_memory():
            return replace(result, lost=True)
        return replace(result, retains_memory=True) if retains_memory() else result

    folder = Path(sys.argv[1])
    with quiet_interrupts():
        while True:
            replies.write(json.dumps(vars(answer(Cell.parse(requests.get())))) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
