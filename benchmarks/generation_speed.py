"""Speed of greedy generation beside `generate` of transformers, on the same weights, in turns.

    python benchmarks/generation_speed.py --out generation.json                     # on a GPU: GPT-2 small, bfloat16
    python benchmarks/generation_speed.py --tiny --texts 1 4 --tokens 16 --rounds 2     # does it run?
    python benchmarks/generation_speed.py --rounds 1 --kernels 25                       # and where the time goes

A GPT-2 of random weights, large enough to have opinions, is exported and opened by GPT2LMHeadModel. Prompts are
beginnings of documents of the built-in world, of their natural lengths (padded on the left there). Both sides take
texts and return texts: tokenizing and decoding are part of the time. `generate` takes turns in two forms, with its
cache as it grows and with a static cache and compiled steps; ours is compared with the faster one. The first call of
each side is not counted. Printed: new tokens a second of every round, the ratio of the medians of rounds with its
range, and the share of new tokens that are equal (in bfloat16 a tie may go the other way, and then all that follows:
the share between its own two forms says how often).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import etude
from etude.hub.exporter import export_run
from etude.hub.run_weights import save_final
from etude.inference.generation import Sampling, generate
from etude.inference.model import LoadedModel
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.model_card import describe_hardware, describe_versions
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.world import World

TINY = {"model.layers": 2, "model.width": 64, "model.heads": 4, "model.context": 128}
Generation = list[list[int]]  # new tokens of every text


def make_run(folder: Path, tokenizer: Tokenizer, changes: dict[str, Any]) -> Run:
    """A run of random weights."""
    folder.mkdir()
    tokenizer.save(folder)
    recipe = Recipe.load("gpt2", {"model.init_deviation": 0.1, **changes}).resolve(vocab=tokenizer.vocab)
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    run = Run.open(folder)
    torch.manual_seed(0)
    save_final(run, *build_learner(run.recipe, run.tokenizer), model_card="# random weights\n")
    return run


class Transformers:
    """`generate`, with prompts padded on the left."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, tokens: int) -> None:
        import transformers

        self.model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=dtype).eval().to(device)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.device, self.tokens = device, tokens

    def write(self, prompts: Sequence[str], static: bool) -> Generation:
        read = self.tokenizer(list(prompts), padding=True, return_tensors="pt").to(self.device)
        longest = read["input_ids"].shape[1]
        options = {"cache_implementation": "static"} if static else {}
        with torch.no_grad():
            rows = self.model.generate(
                read["input_ids"], attention_mask=read["attention_mask"], do_sample=False, max_new_tokens=self.tokens,
                min_new_tokens=self.tokens, eos_token_id=None, pad_token_id=0, **options,
            )  # fmt: skip
        new = rows[:, longest:]
        self.tokenizer.batch_decode(new)
        return new.tolist()


def measure(write: Callable[[], Generation], device: torch.device) -> tuple[float, Generation]:
    """New tokens a second, and the tokens."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    written = write()  # ends on the host
    return sum(map(len, written)) / (time.perf_counter() - started), written


def print_kernels(write: Callable[[], Generation], device: torch.device, steps: int, lines: int) -> None:
    """Where a step's time goes: kernels by name, how often and how long a step, and the time between them."""
    activity = torch.profiler.ProfilerActivity.CUDA if device.type == "cuda" else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profiler:
        started = time.perf_counter()
        write()
        whole = 1e6 * (time.perf_counter() - started) / steps
    on_device = device.type == "cuda"
    totals: dict[str, tuple[float, int]] = {}
    for event in profiler.events():
        if (event.device_type == torch.autograd.DeviceType.CUDA) == on_device:
            time_so_far, count = totals.get(event.name, (0.0, 0))
            spent = event.time_range.elapsed_us() if on_device else event.self_cpu_time_total
            totals[event.name] = time_so_far + spent, count + 1
    busy = sum(spent for spent, _ in totals.values()) / steps
    print(f"  a step: {whole:.0f} µs with the profiler, {busy:.0f} of them in kernels")
    for name, (spent, count) in sorted(totals.items(), key=lambda item: -item[1][0])[:lines]:
        print(f"  {spent / steps:8.1f} µs in {count / steps:6.1f} of {name[:110]}")


def compare_equal(ours: Generation, theirs: Generation) -> float:
    """The share of our tokens that are equal to those in the same place."""
    pairs = [pair for texts in zip(ours, theirs, strict=True) for pair in zip(*texts, strict=False)]
    return sum(a == b for a, b in pairs) / max(1, len(pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--tokens", type=int, default=128, help="new ones of each text")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kernels", type=int, default=0, help="print so many lines of our kernels, by time")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    results: dict[str, Any] = {"hardware": describe_hardware(), "versions": describe_versions(), "texts": {}}
    documents = [document.text for document in islice(World(seed=0).documents(), max(400, *options.texts))]
    tokenizer = Tokenizer.train("bytebpe:8000" if not options.tiny else "bytebpe:500", documents)
    prompts = [" ".join(text.split()[: 8 + 5 * (number % 9)]) for number, text in enumerate(documents)]
    with tempfile.TemporaryDirectory() as name:
        run = make_run(Path(name) / "run", tokenizer, TINY if options.tiny else {})
        export_run(run, Path(name) / "exported")
        loaded = etude.load(run.folder, device=str(device), dtype="float32" if device.type == "cpu" else "bfloat16")
        assert isinstance(loaded, LoadedModel)
        peer = Transformers(Path(name) / "exported", device, dtype, options.tokens)
        for count in options.texts:
            texts = prompts[:count]
            sampling = Sampling(tokens=options.tokens, temperature=0, overflow="stop")
            sides: dict[str, Callable[[], Generation]] = {
                "etude": lambda texts=texts, s=sampling: [list(each.ids) for each in generate(loaded, texts, s)],
                "generate": lambda texts=texts: peer.write(texts, static=False),
                "generate, static": lambda texts=texts: peer.write(texts, static=True),
            }
            rounds: dict[str, list[float]] = {side: [] for side in sides}
            written: dict[str, Generation] = {}
            for number in range(options.rounds + 1):
                for side, write in sides.items():
                    speed, written[side] = measure(write, device)
                    if number:
                        rounds[side].append(speed)
                    print(f"{count} texts, round {number}: {side} {speed:,.0f} new tokens a second", flush=True)
            if options.kernels:
                print_kernels(sides["etude"], device, options.tokens, options.kernels)
            best = max(("generate", "generate, static"), key=lambda side: statistics.median(rounds[side]))
            ratios = [mine / theirs for mine, theirs in zip(rounds["etude"], rounds[best], strict=True)]
            equal = compare_equal(written["etude"], written["generate"])
            theirs = compare_equal(written["generate, static"], written["generate"])
            results["texts"][count] = {
                "rounds": rounds, "best": best, "ratios": ratios, "equal": equal, "equal of its two forms": theirs,
            }  # fmt: skip
            print(
                f"{count} texts: ours {statistics.median(rounds['etude']):,.0f}, {best} "
                f"{statistics.median(rounds[best]):,.0f} new tokens a second: {statistics.median(ratios):.2f} x "
                f"({min(ratios):.2f} - {max(ratios):.2f}), {equal:.1%} of the tokens equal "
                f"({theirs:.1%} between its own two forms)",
                flush=True,
            )
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
