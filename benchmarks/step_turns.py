"""Steps of two source trees in turns: is a change faster, on a machine whose speed moves by the second?

    git worktree add ../before HEAD~1
    python benchmarks/step_turns.py --against ../before                    # BERT 4 x 256, length 128, on a CPU
    python benchmarks/step_turns.py --against ../before --dropout 0.1 --precision float32 --rounds 40
    python benchmarks/step_turns.py --against ../before --work bert-128 --device cuda --steps 20
    python benchmarks/step_turns.py --work encoder-20min --device cuda --steps 20 \
        --off etude.nn.attention.dispatch.ROTATES_AS_IT_READS etude.nn.residual.FUSES_WITHOUT_BIAS \
        etude.nn.feedforward.JOINS_GATE_AND_UP

Two processes, each with its own tree and that tree's train_speed.py, train the same model; one takes its steps, then
the other, and only one is at work at a time. What counts is the median over turns of the ratio of neighbours, with its
quartiles. With --off the other side has these constants of modules at False: a fused kernel against its parts.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

OWN = Path(__file__).resolve().parent.parent
WARM_UP = {"cpu": 3, "cuda": 12}  # steps before the first turn: compiling and recording graphs


def work_turns(arguments: argparse.Namespace) -> None:
    """Take a turn for every line of the input, and answer with the seconds of a step."""
    import torch
    import train_speed

    for path in arguments.off:
        switch_off(path)
    device = torch.device(arguments.device)
    works = (*train_speed.SMALL, *train_speed.PUBLISHED, *getattr(train_speed, "OURS", ()))  # not of an older tree
    work = next(work for work in works if work.name == arguments.work)
    with tempfile.TemporaryDirectory() as folder:
        loop = train_speed.etude_loop(work, arguments.dropout, device, arguments.precision, Path(folder))
        batches = loop.loader.steps(0, 10**6)

        def seconds_of(steps: int) -> float:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                loop.advance(next(batches))
            if device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - start

        seconds_of(WARM_UP[device.type])
        print("ready", flush=True)
        for _ in sys.stdin:
            seconds_of(1)  # settles
            print(seconds_of(arguments.steps) / arguments.steps, flush=True)


def switch_off(path: str) -> None:
    """Set a constant of a module to False, module.NAME."""
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(module_name)
    if getattr(module, name, None) is not True:
        raise SystemExit(f"{path} is no constant that is True")
    setattr(module, name, False)


def start_worker(tree: Path, arguments: argparse.Namespace, off: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", __file__, "--worker"]  # -P: train_speed.py of the tree, not ours
    for name in ("work", "device", "precision", "dropout", "steps"):
        command += [f"--{name}", str(getattr(arguments, name))]
    command += ["--off", *off]
    paths = [str(tree / "src"), str(tree / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def read_answer(process: subprocess.Popen[str], request: bool = True) -> str:
    assert process.stdin is not None and process.stdout is not None
    if request:
        process.stdin.write("\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a side ended early, with {process.wait()}")
    return line.strip()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, default=OWN, help="another tree; this one itself shows the noise")
    parser.add_argument("--off", nargs="*", default=[], metavar="MODULE.NAME", help="False in the other side")
    parser.add_argument("--work", default="bert-small-128", help="a row of train_speed.py, or encoder-20min")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2, help="of a turn, behind one that settles")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--precision", choices=("bf16", "float32"), help="the faster one here if not given")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        work_turns(arguments)
        return
    if arguments.precision is None:
        from etude.train import peak

        arguments.precision = peak.resolve_precision("auto", arguments.device)
    sides = [start_worker(OWN, arguments, []), start_worker(arguments.against.resolve(), arguments, arguments.off)]
    for side in sides:
        read_answer(side, request=False)
    print(
        f"{arguments.work} in {arguments.precision} on {arguments.device}, dropout {arguments.dropout}, "
        f"{arguments.rounds} turns of {arguments.steps} steps"
        + (f"; the other without {' '.join(arguments.off)}" if arguments.off else ""),
        flush=True,
    )
    seconds: list[list[float]] = [[], []]
    for turn in range(arguments.rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[side].append(float(read_answer(sides[side])))
    for side in sides:
        assert side.stdin is not None
        side.stdin.close()
        side.wait()
    this_tree, other_tree = (np.array(values) for values in seconds)
    for name, values in (("this tree", this_tree), ("the other", other_tree)):
        print(f"{name}: {1e3 * np.median(values):8.2f} ms a step, the best {1e3 * values.min():8.2f}")
    print("ratios of the turns:", " ".join(f"{ratio:.3f}" for ratio in other_tree / this_tree))
    low, middle, high = np.percentile(other_tree / this_tree, [25, 50, 75])
    print(f"this tree is {middle:.3f} times as fast (quartiles {low:.3f} and {high:.3f})")


if __name__ == "__main__":
    main()
