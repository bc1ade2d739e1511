"""Training speed: Etude, the `transformers` Trainer, a plain loop, and the loop an expert would write, in one run.

    python benchmarks/train_speed.py                         # on a GPU: the published sizes
    python benchmarks/train_speed.py --small                 # on a CPU: BERT 4 x 256, vocabulary 8k, length 128
    python benchmarks/train_speed.py --only bert-128 --dropout 0.1 --out results.json
    python benchmarks/train_speed.py --peers expert --rounds 3          # on a GPU, in turns

Tokens are real ones (padding does not count; at full length there is none). Share of peak is FLOPs, counted as
the objective counts them (heads only where they run, attention in full), over seconds and over the rate of the
best large matrix product measured in the same run. The peers' share uses the same FLOPs a token: it says how
fast the same learning goes, not how busy the device is.

Peers: `trainer` (its defaults, bf16), `loop` (autocast, SDPA, compile, fused AdamW; the model class as it is) and
`expert` (the same, with no attention mask, the output layer only where something is predicted, and a vocabulary padded
to a multiple of 64). With --rounds the sides take turns on a GPU too, each in its process, and every round is printed;
before that all are started once, some at a time, so that what they compile is kept and no round waits for it.

A CPU's speed moves with what its neighbours do, within seconds and by a factor of two. So there each side is a process
of its own (ours also changes how a process keeps its memory), the sides take turns for a few rounds, ours between the
two peers, and a ratio is the median of those of the rounds. Every round is printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training_speed.etude_side import etude_loop, etude_speed
from training_speed.peers import expert_speed, loop_speed, trainer_speed
from training_speed.workloads import OURS, PUBLISHED, SMALL, Work

from etude.text.corpus.corpus import Corpus
from etude.train import openmp, peak

COMPILED_AT_ONCE = 4  # sides on one GPU: they share its memory

# what step_turns.py takes from the train_speed.py of each of its trees
__all__ = ["OURS", "PUBLISHED", "SMALL", "etude_loop"]


def compare_lengths(
    works: tuple[Work, ...], corpus: Corpus, options: argparse.Namespace, device: torch.device, precision: str
) -> None:
    """Our speed on a real corpus as a share of our speed at full length, same vocabulary."""
    print(f"{'work':16} {'full':>12} {'natural':>12} {'share':>7} {'waits':>6}")
    for work in works:
        settings = (options.dropout, options.steps, device, precision)
        full = etude_speed(replace(work, vocab=corpus.tokenizer.vocab), *settings, profile=options.profile)
        torch._dynamo.reset()
        on_corpus = etude_speed(work, *settings, corpus, options.profile)
        torch._dynamo.reset()
        rates = [side["tokens_per_second"] for side in (full, on_corpus)]
        share = f"{rates[1] / rates[0]:7.2%} {on_corpus['waited']:6.1%}"
        print(f"{work.name:16} {rates[0]:12,.0f} {rates[1]:12,.0f} {share}", flush=True)


def choose_environment(side: str) -> dict[str, str]:
    """What Etude tells the allocator and the threads of its process is not for the peers; what the user tells is."""
    environment = dict(os.environ)
    if side != "etude":
        for name, value in openmp.SETTINGS.items():
            if environment.get(name) == value:
                del environment[name]
        environment = {name: value for name, value in environment.items() if not name.startswith("MIMALLOC")}
    return environment


def start_side(side: str, work: Work, options: argparse.Namespace, steps: int) -> dict[str, Any]:
    """Measure a side in a process of its own; one that fails says so, and the others go on."""
    command = [sys.executable, __file__, "--side", side, "--only", work.name]
    command += ["--dropout", str(options.dropout), "--steps", str(steps)]
    command += ["--small"] if options.small else []
    command += ["--precision", options.precision] if options.precision else []
    answer = subprocess.run(command, capture_output=True, text=True, env=choose_environment(side))
    if answer.returncode:
        return {"failed": " ".join(answer.stderr.splitlines()[-1:])[:200]}
    measured: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return measured


def compile_first(sides: list[str], works: tuple[Work, ...], options: argparse.Namespace) -> None:
    """Take a step on every side of every work, some at a time: processes find the kernels of earlier ones on disk."""
    started = time.perf_counter()
    with ThreadPoolExecutor(COMPILED_AT_ONCE) as pool:
        jobs = [pool.submit(start_side, side, work, options, 1) for work in works for side in sides]
        failed = [job.result()["failed"] for job in jobs if "failed" in job.result()]
    print(
        f"all started once in {time.perf_counter() - started:.0f} s{''.join('; ' + text for text in failed)}",
        flush=True,
    )


def measure_in_rounds(sides: list[str], work: Work, options: argparse.Namespace) -> dict[str, Any]:
    """Each side in a process of its own, one after the other, and again; medians over the rounds, and all of them."""
    rounds: list[dict[str, Any]] = []
    for number in range(options.rounds):
        rounds.append({side: start_side(side, work, options, options.steps) for side in sides})
        rates = ", ".join(
            f"{side} {speed['failed'] if 'failed' in speed else format(speed['tokens_per_second'], ',.0f')}"
            for side, speed in rounds[-1].items()
        )
        peak_rate = rounds[-1]["etude"].get("peak", float("nan"))
        print(f"  round {number + 1}: {rates}; peak {peak_rate / 1e12:.2f} TFLOP/s", flush=True)
        if "failed" in rounds[-1]["etude"]:
            return {"rounds": rounds, "etude": rounds[-1]["etude"]}
    row: dict[str, Any] = {"rounds": rounds}
    for side in sides:
        speeds_of_side = [speeds[side] for speeds in rounds]
        failure = next((speed for speed in speeds_of_side if "failed" in speed), None)
        if failure:
            row[side] = failure
            continue
        row[side] = {key: float(np.median([speed[key] for speed in speeds_of_side])) for key in speeds_of_side[0]}
        row[side]["ratio"] = float(
            np.median([speeds["etude"]["tokens_per_second"] / speeds[side]["tokens_per_second"] for speeds in rounds])
        )
    return row


def measure_side(
    side: str, work: Work, options: argparse.Namespace, device: torch.device, precision: str
) -> dict[str, Any]:
    if side == "etude":
        return etude_speed(work, options.dropout, options.steps, device, precision, profile=options.profile)
    # on a CPU the Trainer stays at its default, which is float32 there
    own_precision = "float32" if side == "trainer" and device.type == "cpu" else precision
    try:
        measure = {"trainer": trainer_speed, "loop": loop_speed, "expert": expert_speed}[side]
        return measure(work, options.dropout, options.steps, device, own_precision)
    except Exception as error:  # a peer that fails is named with its error, and the table goes on
        return {"failed": f"{error!r:.80}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="the CPU's work")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--dropout", type=float, default=0.0, help="the same on every side")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peers", default="trainer,loop,expert", help="any of trainer, loop, expert; empty for none")
    parser.add_argument("--precision", default=None, help="bf16 or float32; bf16 on a GPU, the faster one on a CPU")
    parser.add_argument("--corpus", help="a prepared corpus: its natural lengths against full ones, ours alone")
    parser.add_argument("--profile", action="store_true", help="print the kernels of three of our steps")
    parser.add_argument("--rounds", type=int, help="how often the sides take turns; 3 on a CPU, on a GPU none")
    parser.add_argument("--side", help="measure this side alone, and print it as JSON")
    parser.add_argument("--out", help="also write the rows as JSON")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    precision = options.precision or peak.resolve_precision("auto", device)
    best = peak.measure_peak(device, precision)
    works = SMALL if options.small or device.type == "cpu" else PUBLISHED
    if options.only:
        unknown = sorted(set(options.only.split(",")) - {work.name for work in works})
        if unknown:
            parser.error(f"no work {unknown[0]}: there are {', '.join(work.name for work in works)}")
        works = tuple(work for work in works if work.name in options.only.split(","))
    if options.side:
        if options.side == "etude":
            options.steps *= 3  # which are quick: what a neighbour does meanwhile should not decide
        print(json.dumps(measure_side(options.side, works[0], options, device, precision) | {"peak": best}))
        return
    name = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(
        f"{name}, torch {torch.__version__}, {precision}, dropout {options.dropout}, peak {best / 1e12:.2f} TFLOP/s",
        flush=True,
    )
    print(
        f"{'work':16} {'etude':>12} {'of peak':>8} {'GiB':>6} {'waits':>6}  "
        + "  ".join(f"{p:>10} {'ratio':>6} {'GiB':>5}" for p in options.peers.split(",") if p)
    )
    if options.corpus:
        compare_lengths(works, Corpus.open(options.corpus), options, device, precision)
        return
    rows: list[dict[str, Any]] = []
    peers = [peer for peer in options.peers.split(",") if peer]
    if device.type == "cuda" and options.rounds and not options.profile:
        compile_first(["etude", *peers], works, options)
    for work in works:
        row: dict[str, Any] = {"work": work.name, "dropout": options.dropout, "precision": precision}
        if (device.type == "cpu" or options.rounds) and not options.profile:
            options.rounds = options.rounds or 3
            row |= measure_in_rounds([*peers[:1], "etude", *peers[1:]], work, options)
        else:
            for side in ["etude", *peers]:
                row[side] = measure_side(side, work, options, device, precision)
                torch._dynamo.reset()
                gc.collect()
        ours = row["etude"]
        if "failed" in ours:
            print(f"{work.name:16} etude: {ours['failed']}", flush=True)
            rows.append(row)
            continue
        share = ours["tokens_per_second"] * ours["flops_per_token"] / ours.get("peak", best)
        rate = f"{ours['tokens_per_second']:12,.0f} {share:8.1%}"
        text = f"{work.name:16} {rate} {ours['memory']:6.1f} {ours['waited']:6.1%}  "
        for peer, speed in ((peer, row[peer]) for peer in peers):
            if "failed" in speed:
                text += f"{peer}: {speed['failed']}  "
                continue
            speed.setdefault("ratio", ours["tokens_per_second"] / speed["tokens_per_second"])
            text += f"{speed['tokens_per_second']:10,.0f} {speed['ratio']:5.2f}x {speed['memory']:5.1f}  "
        print(text, flush=True)
        rows.append(row)
    if options.out:
        Path(options.out).write_text(
            json.dumps({"device": name, "torch": torch.__version__, "peak": best, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
