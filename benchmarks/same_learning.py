"""Does the fast path learn the same? Held-out loss past a bigram of the text, fast and plain, over two seeds.

    python benchmarks/same_learning.py CORPUS [--steps 2500] [--after 0] [--length 128] [--works bert,gpt]

    fast    what `etude pretrain` does on this device: bf16, compiled, recorded, our kernels, many sequences a row
    plain   float32, nothing compiled, torch's own kernels

Both start from the same weights and read the same text in the same order. A model that is no better than a bigram has
learnt little that could go wrong, so it counts only where the loss is below the bigram's; a comparison passes where
the mean difference over seeds is at most 0.01 nats.

A masked model leaves the unigram's plateau at a step that the last bit decides: from one seed's first weights, two runs
may end some hundredths of a nat apart though both are right. `--after STEPS` trains one model a seed so far, fast, and
both forms go on from its weights for `--steps`, with a schedule of their own: what differs then is the arithmetic.

`--together` runs go side by side, each in its own process: on a GPU eight take about as long as the slowest. A toy on
a CPU: `--steps 30 --device cpu --works bert --together 2`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

NONE = {"model.dropout": 0.0, "model.attention_dropout": 0.0, "model.embedding_dropout": 0.0}
# with pre-norm and rotary positions a model leaves the unigram's plateau early, with the recipes' own much later
SMALL = NONE | {
    "model.layers": 4, "model.width": 256, "model.heads": 4, "model.norm": "pre", "model.positions": "rotary",
    "model.init_deviation": 0.03, "train.lr": 1e-3, "train.micro_tokens": None,
}  # fmt: skip
WORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert-mini", SMALL | {"objective.sentence": "none", "model.pooler": False}),
    "gpt": ("gpt2", SMALL),
}
PLAIN = {"train.precision": "float32", "train.compile": False}
SEEDS = (0, 1)
TOLERANCE = 0.01  # nats a token


def train_once(arguments: argparse.Namespace) -> float:
    """Train one model and return its loss on held-out text, in nats a predicted token."""
    from etude.pretraining import pretrain as pretraining
    from etude.text.corpus.corpus import Corpus

    work, seed, form = arguments.once
    recipe, settings = WORKS[work]
    length, steps = arguments.length, arguments.after if form == "start" else arguments.steps
    settings = settings | {"model.context": length, "objective.length": length, "train.batch_tokens": arguments.tokens}
    settings |= {"train.steps": steps, "train.seed": int(seed), "train.save_every": steps, "train.eval_every": steps}
    settings |= {"train.warmup": 0.1, "train.eval_tokens": arguments.held_out, "train.log_every": steps}
    settings |= {"train.device": arguments.device} if arguments.device else {}
    settings |= PLAIN if form == "plain" else {}
    starts = Path(arguments.starts) if arguments.starts else None
    if starts is not None and form != "start":  # its model and objective are those of the run that it goes on from
        recipe = str(starts / f"{work}-{seed}")
        settings = {name: value for name, value in settings.items() if name.startswith("train.")}
        settings["train.seed"] = len(SEEDS) + int(seed)  # other text first than what the start has read last
    with tempfile.TemporaryDirectory() as folder:
        out = starts / f"{work}-{seed}" if starts is not None and form == "start" else Path(folder) / "run"
        run = pretraining.pretrain(recipe, Corpus.open(arguments.corpus), out, quiet=True, overrides=settings)
        return float(run.metrics("valid")[-1]["loss"])


def start_run(work: str, seed: int, form: str, starts: str | None) -> float:
    """Train in a process of its own: a compiler's and an allocator's state are not shared."""
    command = [sys.executable, __file__, *sys.argv[1:], "--once", work, str(seed), form]
    command += ["--starts", starts] if starts else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{work}, seed {seed}, {form}:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--steps", type=int, default=2_500)
    parser.add_argument("--after", type=int, default=0, help="steps that one model a seed makes before the forms part")
    parser.add_argument("--tokens", type=int, default=16_384, help="of a step")
    parser.add_argument("--held-out", type=int, default=2**19, help="tokens that the loss is measured on")
    parser.add_argument("--length", type=int, default=128, help="of a sequence: beyond 128 other kernels are at work")
    parser.add_argument("--works", default="bert,gpt")
    parser.add_argument("--together", type=int, default=8, help="runs at once")
    parser.add_argument("--device")
    parser.add_argument("--starts", help=argparse.SUPPRESS)
    parser.add_argument("--once", nargs=3, metavar=("WORK", "SEED", "FORM"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps({"loss": train_once(arguments)}))
        return
    from etude.runs.model_card import describe_hardware, describe_versions
    from etude.study.references import load_reference

    with tempfile.TemporaryDirectory() as cache:
        reference = load_reference(Path(arguments.corpus), Path(cache))
    if reference is None:
        raise SystemExit(f"{arguments.corpus} has no held-out text")
    machine = f"{describe_hardware()}, {describe_versions()}"
    lengths = f"{arguments.steps} steps of {arguments.tokens:,} tokens, length {arguments.length}"
    print(f"{machine}; {lengths}; unigram {reference.unigram:.3f}, bigram {reference.bigram:.3f} nats", flush=True)
    works = arguments.works.split(",")
    jobs = [(work, seed, form) for work in works for seed in SEEDS for form in ("plain", "fast")]
    with ThreadPoolExecutor(arguments.together) as pool, tempfile.TemporaryDirectory() as folder:
        starts = folder if arguments.after else None
        if starts:
            models = [(work, seed) for work in works for seed in SEEDS]
            reached = list(pool.map(lambda model: start_run(*model, "start", starts), models))
            told = ", ".join(f"{work} {seed}: {loss:.3f}" for (work, seed), loss in zip(models, reached, strict=True))
            print(f"after {arguments.after} steps {told}", flush=True)
        losses = dict(zip(jobs, pool.map(lambda job: start_run(*job, starts), jobs), strict=True))
    failed = False
    for work in works:
        fast, plain = ([losses[work, seed, form] for seed in SEEDS] for form in ("fast", "plain"))
        difference = fmean(fast) - fmean(plain)
        is_past = max(*fast, *plain) < reference.bigram
        passes = is_past and abs(difference) <= TOLERANCE
        failed |= not passes
        word = "passes" if passes else "not past the bigram" if not is_past else "DIFFERS"
        print(f"{work}: fast {fast[0]:.4f} {fast[1]:.4f}, plain {plain[0]:.4f} {plain[1]:.4f}; mean difference "
              f"{difference:+.4f}, between seeds {abs(plain[0] - plain[1]):.4f}: {word}", flush=True)  # fmt: skip
    sys.exit(failed)


if __name__ == "__main__":
    main()
