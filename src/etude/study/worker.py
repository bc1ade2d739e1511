"""A process that does cells: one line of JSON in, one out. Started by where.py; ends when its input does."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from pathlib import Path


def main() -> None:
    orders: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        """Input ends when the parent has no more to say, or is dead: a cell under way is left for the next time."""
        for line in sys.stdin:
            orders.put(line)
        os._exit(0)

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes where messages go, not into the answers
    threading.Thread(target=listen, daemon=True, name="etude-orders").start()

    from etude.study.cells import Cell
    from etude.study.work import Done, do

    folder = Path(sys.argv[1])
    while True:
        cell = Cell.parse(orders.get())
        try:
            done = do(cell, folder)
        except Exception as problem:
            traceback.print_exc()
            done = Done(cell.key, f"{type(problem).__name__}: {problem}")
        answers.write(json.dumps(vars(done)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
