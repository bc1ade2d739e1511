"""Is a change faster on a CPU? Steps of two source trees in turns, on a machine whose speed moves by the second.

    git worktree add ../before HEAD~1
    python benchmarks/step_turns.py --against ../before/src                    # BERT 4 x 256, length 128
    python benchmarks/step_turns.py --against ../before/src --dropout 0.1 --precision float32 --rounds 40

Two processes, each with its own tree, train the same model; one takes two steps, then the other, and only one is at
work at a time. What counts is the median over turns of the ratio of neighbours, with its quartiles.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

STEPS = 2  # of a turn, behind one that settles
OWN = Path(__file__).resolve().parent.parent / "src"


def worker(asked: argparse.Namespace) -> None:
    """Takes a turn for every line it reads, and answers with the seconds of a step."""
    import torch
    from train_speed import SMALL, etude_loop

    from etude.train import peak

    device = torch.device("cpu")
    precision = asked.precision or peak.resolve_precision("auto", device)
    with tempfile.TemporaryDirectory() as folder:
        loop = etude_loop(SMALL[0], asked.dropout, device, precision, Path(folder))
        batches = loop.loader.steps(0, 10**6)
        for _ in range(3):
            loop.advance(next(batches))
        print(f"ready {precision}", flush=True)
        for _ in sys.stdin:
            loop.advance(next(batches))
            begun = time.perf_counter()
            for _ in range(STEPS):
                loop.advance(next(batches))
            print((time.perf_counter() - begun) / STEPS, flush=True)


def started(source: Path, asked: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--worker", "--dropout", str(asked.dropout)]
    command += ["--precision", asked.precision] if asked.precision else []
    paths = [str(source), str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def answer(process: subprocess.Popen[str], ask: bool = True) -> str:
    assert process.stdin is not None and process.stdout is not None
    if ask:
        process.stdin.write("\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a side ended early, with {process.wait()}")
    return line.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, default=OWN, help="the src folder of another tree; this one: the noise")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--precision", default=None, help="bf16 or float32; the faster one here if not given")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked)
        return
    sides = [started(OWN, asked), started(asked.against.resolve(), asked)]
    said = {answer(side, ask=False) for side in sides}
    print(f"{' and '.join(sorted(said))}, dropout {asked.dropout}, {asked.rounds} turns of {STEPS} steps", flush=True)
    seconds: list[list[float]] = [[], []]
    for turn in range(asked.rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[side].append(float(answer(sides[side])))
    for side in sides:
        assert side.stdin is not None
        side.stdin.close()
        side.wait()
    ours, theirs = (np.array(one) for one in seconds)
    for name, one in (("this tree", ours), ("the other", theirs)):
        print(f"{name}: {1e3 * np.median(one):8.1f} ms a step, the best {1e3 * one.min():8.1f}")
    low, middle, high = np.percentile(theirs / ours, [25, 50, 75])
    print(f"this tree is {middle:.3f} times as fast (quartiles {low:.3f} and {high:.3f})")


if __name__ == "__main__":
    main()
