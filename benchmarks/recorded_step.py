"""Whole training steps as CUDA graphs: milliseconds, share of peak, and whether the steps are the same steps.

    python benchmarks/recorded_step.py                       # ELECTRA-small at the paper's batch, Muon at 8 x 512
    python benchmarks/recorded_step.py --only electra --profile 40

Each work is trained in several forms from the same seed, on random words:

    recorded     the whole step is one CUDA graph (train/recorded_step.py)
    static       the same function over the same static memory, launched kernel by kernel: must give the same weights
    launched     the ordinary step, compiled, each kernel launched by itself
    trunks       the ordinary step with the compiled models alone as CUDA graphs: the form before steps were recorded
    apart        recorded, with rotations, norms without a bias and gates as they were before they were fused; which of
                 both is faster, step_turns.py asks in turns

Weights after the first steps are compared with the ordinary step's; then rounds are timed. `GPU` is the time of a
replay alone, `host` what the host needs to queue a step. A form that fails prints its traceback, and the next runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.nn import feedforward, residual
from etude.nn.attention import dispatch
from etude.nn.cuda_graphs import CudaGraphs
from etude.pretraining.bench import random_corpus
from etude.pretraining.loop import build_rows
from etude.pretraining.setup import resolve_recipe
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.train import optim, peak
from etude.train.loop import Loop
from etude.train.progress import Progress
from etude.train.recorded_step import Sums
from etude.train.tensor_lists import StaticTables

MODERN = {
    "model.layers": 8,
    "model.width": 512,
    "model.heads": 8,
    "model.window": None,
    "model.context": 512,
    "objective.length": 128,
    "train.batch_ramp": None,
}
# Cells of studies/mlm-vs-electra.yaml on a GPU
MEDIUM = {
    "model.embedding_width": 512,
    "model.layers": 8,
    "model.width": 512,
    "model.heads": 8,
    "model.norm": "pre",
    "model.positions": "rotary",
    "model.context": 128,
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.embedding_dropout": 0.0,
    "objective.length": 128,
    "train.batch_tokens": 32_768,
    "train.micro_tokens": None,
}
MINI = MEDIUM | {
    "model.embedding_width": 256,
    "model.layers": 4,
    "model.width": 256,
    "model.heads": 4,
    "train.batch_tokens": 16_384,
}  # cells of most other studies
MASKED = {"objective.sentence": "none", "objective.pair_rate": 0.9, "objective.max_predictions": None}
WORKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "electra": ("electra-small", {"train.micro_tokens": 16_384}, ("recorded", "launched", "static", "trunks")),
    "muon-32k": (
        "encoder-modern",
        MODERN | {"train.batch_tokens": 32_768, "train.micro_tokens": 32_768},
        ("recorded", "launched"),
    ),
    "medium-mlm": ("bert-mini", MEDIUM | MASKED | {"model.pooler": False}, ("recorded",)),
    "medium-electra": ("electra-small", MEDIUM, ("recorded",)),
    "mini-mlm": ("bert-mini", MINI | MASKED | {"model.pooler": False}, ("recorded",)),
    "mini-electra": ("electra-small", MINI, ("recorded",)),
    "muon-131k": (
        "encoder-modern",
        MODERN | {"train.batch_tokens": 131_072, "train.micro_tokens": 131_072},
        ("recorded",),
    ),
    "encoder-20min": ("encoder-20min", {"train.minutes": None, "train.steps": 1000}, ("recorded", "apart")),
    "bert": (
        "bert-base",
        {
            "model.context": 128,
            "objective.length": 128,
            "train.batch_tokens": 32_768,
            "train.micro_tokens": 32_768,
            "model.dropout": 0.0,
            "model.attention_dropout": 0.0,
            "model.embedding_dropout": 0.0,
        },
        ("recorded", "trunks"),
    ),
}
CHECKED = 10  # steps whose weights are compared: a line of the log
STEPS, ROUNDS = 30, 5


class PrintingProgress(Progress):
    def print(self, text: str) -> None:
        print(f"    {text}", flush=True)


class TimedLoop(Loop):
    form = "recorded"

    def _build_recorder(self) -> Any:
        recorder = super()._build_recorder() if self.form in ("recorded", "static", "apart") else None
        if recorder is not None and self.form == "static":
            recorder.warm_up = 10**9
        return recorder

    def _can_use_cuda_graphs(self) -> bool:
        return self.form == "trunks" and super()._can_use_cuda_graphs()


def build_loop(folder: Path, recipe: Recipe, corpus: Corpus, form: str) -> TimedLoop:
    model, objective = build_learner(recipe, corpus.tokenizer)
    rows = build_rows(recipe, corpus, objective)
    loop_class = type("FormLoop", (TimedLoop,), {"form": form})
    progress = PrintingProgress(10**9, quiet=True)
    loop: TimedLoop = loop_class(
        folder, model, objective, rows, recipe.train, total=10**6, device=torch.device("cuda"), progress=progress
    )
    return loop


def weights(loop: Loop) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in loop.named}


def compare(own: dict[str, Tensor], other: dict[str, Tensor], start: dict[str, Tensor]) -> str:
    """Say how many tensors are equal bit for bit, and the distance as a share of the way gone."""
    equal = sum(torch.equal(value, other[name]) for name, value in own.items())
    distance = sum(float((value - other[name]).double().square().sum()) for name, value in own.items()) ** 0.5
    gone = sum(float((other[name] - start[name]).double().square().sum()) for name in own) ** 0.5
    return f"{equal}/{len(own)} tensors bit-equal, distance {distance / max(gone, 1e-30):.2e} of the way gone"


def time_rounds(loop: Loop, steps: Any) -> tuple[list[float], float, float]:
    """Return seconds a step of each round, the share spent waiting for batches, and the host's seconds a step."""
    seconds, waited, queued = [], 0.0, []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            before = time.perf_counter()
            step = next(steps)
            ready = time.perf_counter()
            loop.advance(step)
            waited += ready - before
            queued.append(time.perf_counter() - ready)
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / STEPS)
    return seconds, waited / (sum(seconds) * STEPS), float(np.percentile(queued, 25))


def time_events(function: Any, repeats: int = 20) -> float:
    """Return the GPU's seconds of a call, back to back."""
    function()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        function()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3 / repeats


def time_update(loop: Loop) -> float:
    """Return the GPU's seconds of clipping and the optimiser step, recorded alone, at lr 0 and random gradients."""
    assert loop.optimizer is not None
    optim.set_lr(loop.optimizer, 0.0)
    grads = {name: torch.randn_like(parameter) * 1e-3 for name, parameter in loop.named}

    def update() -> Sums:
        for name, parameter in loop.named:
            parameter.grad = grads[name]
        assert loop.optimizer is not None
        optim.clip_gradients([p for _, p in loop.named], loop.settings.clip, loop.optimizer)
        loop.optimizer.step()
        loop.optimizer.zero_grad(set_to_none=True)
        return {}

    graph, tables = CudaGraphs(loop.device)(), StaticTables()
    with tables.allocate():
        graph.warm_up(update)
    with tables.record():
        graph.record(update)
    return time_events(graph.replay)


def print_profile(replay: Any, rows: int) -> None:
    from torch.profiler import ProfilerActivity, profile

    repeats = 3
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            replay()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    total, count = sum(e.self_device_time_total for e in events), sum(e.count for e in events)
    print(f"    kernels of a replay: {count / repeats:.0f}, {total / repeats / 1e3:.2f} ms together")
    for event in events[:rows]:
        milliseconds = event.self_device_time_total / repeats / 1e3
        print(f"    {milliseconds:7.3f} ms {event.count / repeats:6.0f} x  {event.key[:110]}")


def measure(name: str, form: str, peak_flops: float, references: dict[str, Any], profile_rows: int) -> None:
    recipe_name, changes, _ = WORKS[name]
    loaded = Recipe.load(
        recipe_name, {"train.device": "cuda", "train.log_every": CHECKED, "train.precision": "bf16", **changes}
    )
    corpus = random_corpus(loaded)
    recipe = resolve_recipe(loaded, corpus, ())
    dispatch.ROTATES_AS_IT_READS = residual.FUSES_WITHOUT_BIAS = feedforward.JOINS_GATE_AND_UP = form != "apart"
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        loop = build_loop(Path(folder), recipe, corpus, form)
        steps = loop.loader.steps(0, 10**6)
        try:
            initial, started = weights(loop), time.perf_counter()
            for _ in range(CHECKED):
                loop.advance(next(steps))
            torch.cuda.synchronize()
            startup = time.perf_counter() - started
            line = json.loads((Path(folder) / "metrics.jsonl").read_text().splitlines()[0])
            loss, after = line["loss"], weights(loop)
            assert line["step"] == CHECKED
            seconds, waited, host = time_rounds(loop, steps)
            state = loop.state
            flops = state.flops / state.step
            median = float(np.median(seconds))
            print(
                f"{name:10} {form:9} {1e3 * median:7.2f} ms (rounds {' '.join(f'{1e3 * s:.2f}' for s in seconds)}) "
                f"{state.tokens / state.step / median:11,.0f} tokens/s {flops / median / peak_flops:6.1%} of peak, "
                f"host {1e3 * host:.2f} ms, loader {waited:.1%}, first {CHECKED} steps {startup:.0f} s, "
                f"mean loss of them {loss:.5f}, {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB",
                flush=True,
            )
            for other, (their_loss, their_weights) in references.items():
                difference = abs(loss - their_loss) / abs(their_loss)
                print(f"    against {other}: {compare(after, their_weights, initial)}; loss {difference:.1e}")
            references[form] = loss, after
            recorder = loop.recorder
            if form in ("recorded", "apart") and recorder is not None and recorder.obstacle is None:
                replay = next(iter(recorder.recordings.values())).graph.replay
                print(f"    GPU alone: {1e3 * time_events(replay):.2f} ms a replay", flush=True)
                print(f"    clipping and update alone: {1e3 * time_update(loop):.2f} ms", flush=True)
                if profile_rows:
                    print_profile(replay, profile_rows)
        finally:
            steps.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(WORKS), help="these alone")
    parser.add_argument("--forms", nargs="+", choices=("recorded", "static", "launched", "trunks", "apart"))
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="list the N kernels that take most time")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further form after so long")
    arguments = parser.parse_args()
    started = time.perf_counter()
    peak_flops = peak.measure_peak(torch.device("cuda"), "bf16")
    device_name = torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {device_name}, peak {peak_flops / 1e12:.0f} TFLOP/s", flush=True)
    for name in arguments.only or WORKS:
        references: dict[str, Any] = {}
        for form in arguments.forms or WORKS[name][2]:
            if time.perf_counter() - started > arguments.seconds:
                print(f"{name} {form}: not started, the time is over")
                continue
            try:
                measure(name, form, peak_flops, references, arguments.profile)
            except Exception:
                print(f"{name} {form} FAILED after {time.perf_counter() - started:.0f} s")
                traceback.print_exc()
            print(f"    [{time.perf_counter() - started:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
