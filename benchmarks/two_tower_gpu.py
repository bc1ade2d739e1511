"""Two towers on a GPU: the proof of the combiner's fast path, its speed and memory beside BERT's, and what it learns.

    python benchmarks/two_tower_gpu.py [--parts parity,model,speed,memory,learning] [--corpus FOLDER] [--json out.json]

parity     Attention over a union of keys (nn/attention/multi_set.py): every path against the reference in float64 on
           the same, rounded inputs; results and gradients. A path in bfloat16 passes when its error is at most twice
           that of the plain formula in bfloat16, a float32 path below 1e-5 of the largest value.
model      A whole model: float32 against the reference path in float64 to 1e-5; bfloat16 compiled against not compiled.
speed      Tokens a second of two towers beside a BERT of the same width and as many blocks, and the ratio that the
           FLOPs a token of both predict. It passes within 15 %.
memory     The most that is held at N, 2N and 4N tokens: what each further token takes must not grow.
learning   A small model on real text: held-out nats of a token from all others, beside the best that its two neighbours
           say (text/corpus/cloze_baseline.py). It passes a tenth of a nat below that.

Exit code 1 where a part fails. Without a CUDA device the same runs at toy sizes, and the fast path is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention_gpu import errors, layout_of, layouts, table
from torch import Tensor
from training_speed.workloads import random_corpus, timed

from etude.models.two_tower import Settings, TwoTower
from etude.nn.attention.dispatch import choose_path
from etude.nn.attention.multi_set import KeySet, Reach, attend_multi_set
from etude.nn.packed import Layout, Packed, positions_from_bounds
from etude.pretraining import pretrain as pretraining
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.model_card import describe_hardware, describe_versions
from etude.text.corpus.cloze_baseline import cloze_nats
from etude.text.corpus.corpus import Corpus
from etude.train.loop import Loop

Row = dict[str, Any]
PARTS: dict[str, Callable[[argparse.Namespace], tuple[Any, bool]]] = {}
MASKS: dict[str, tuple[tuple[tuple[Reach, bool], ...], bool]] = {  # parts of the union, and whether there is a slot
    "combiner, full": ((("past", False), ("future", False)), False),
    "combiner, full, slot": ((("past", False), ("future", False)), True),
    "combiner, current": ((("past", True), ("future", True)), False),
    "combiner, none": ((("all", True), ("all", True)), False),
    "tower, slot": ((("past", True),), True),
}
NAMES = ("out", "query", "keys", "slot")
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


# --- parity -----------------------------------------------------------------------------------------


def outcome(
    tensors: list[Tensor], slope: Tensor, layout: Layout, parts: tuple[tuple[Reach, bool], ...], slot: bool, path: str
) -> list[Tensor]:
    """The result and the gradients of queries, of all keys and values, and of the slot, in float64."""
    leaves = [one.detach().clone().requires_grad_() for one in tensors]
    query, flat, extra = leaves[0], leaves[1].unbind(1), leaves[2].unbind(0)
    keys = [KeySet(flat[2 * n], flat[2 * n + 1], *sight) for n, sight in enumerate(parts)]
    out = attend_multi_set(query, keys, layout, slot=(extra[0], extra[1]) if slot else None, path=path)
    wanted = leaves if slot else leaves[:2]
    found = torch.autograd.grad(out, wanted, slope.to(out.dtype))
    return [out.detach().double(), *(one.double() for one in found)]


def parity(options: argparse.Namespace) -> tuple[Any, bool]:
    heads, size = 4, 64
    rows: list[Row] = []
    paths = [("grouped", torch.float32)] + ([("varlen", torch.bfloat16)] if CUDA else [])
    for shape, lengths in layouts(large=False).items():
        layout = layout_of(lengths, DEVICE)
        for mask, (parts, slot) in MASKS.items():
            chance = torch.Generator().manual_seed(1)
            shapes = [(layout.total, heads, size), (layout.total, 2 * len(parts), heads, size), (2, heads, size)]
            exact = [torch.randn(one, generator=chance).to(DEVICE) for one in shapes]
            slope = torch.randn(shapes[0], generator=chance).to(DEVICE)
            for path, dtype in paths:
                rounded, steep = [one.to(dtype) for one in exact], slope.to(dtype)
                wide = [one.double() for one in rounded]
                expected = outcome(wide, steep.double(), layout, parts, slot, "reference")
                found = errors(outcome(rounded, steep, layout, parts, slot, path), expected)
                limits = [1e-5] * len(found)
                if dtype == torch.bfloat16:
                    plain = errors(outcome(rounded, steep, layout, parts, slot, "reference"), expected)
                    limits = [2 * one + 1e-5 for one in plain]
                passed = all(one <= limit for one, limit in zip(found, limits, strict=True))
                row: Row = {"layout": shape, "mask": mask, "path": path, "dtype": str(dtype).removeprefix("torch.")}
                row |= dict(zip(NAMES, found, strict=False))
                row |= {f"limit {name}": one for name, one in zip(NAMES, limits, strict=False)}
                rows.append(row | {"verdict": "equal" if passed else "DIFFERS"})
    table(rows, ["layout", "mask", "path", "dtype", *NAMES, "verdict"])
    if CUDA:
        chosen = choose_path("cuda", torch.bfloat16, size)
        print(f"In bfloat16 the path is {chosen}.\n")
    return rows, all(row["verdict"] == "equal" for row in rows)


def packed_of(lengths: np.ndarray, vocab: int) -> Packed:
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, vocab, int(bounds[-1])))
    return Packed(
        tokens, torch.from_numpy(positions_from_bounds(bounds)), None, Layout.from_bounds(bounds, int(lengths.max()))
    ).to(DEVICE)


def gradients(model: TwoTower, batch: Packed, autocast: bool = False) -> list[Tensor]:
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        out = model(batch).last
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    return [out.detach().double(), *(one.double() for one in torch.autograd.grad(out, list(model.parameters()), slope))]


def model(options: argparse.Namespace) -> tuple[Any, bool]:
    """A model of the published axes at a small width."""
    torch.manual_seed(0)
    # not ReLU: an input that rounding takes across its kink gives another gradient, however exact everything is
    shape = {"layers": 2, "width": 256, "heads": 4, "vocab": 500, "context": 512, "activation": "gelu"}
    settings = Settings.model_validate(shape | {"combiner_query": "concat"})
    lengths = layouts(large=False)["mixed 1-512" if CUDA else "mixed 1-128"][:8]
    made, batch = TwoTower(settings).to(DEVICE), packed_of(lengths, 500)
    single = gradients(made, batch)
    made.double()
    made.path = "reference"
    names = ["output", *(name for name, _ in made.named_parameters())]
    worst = sorted(zip(errors(single, gradients(made, batch)), names, strict=True), reverse=True)
    found = [error for error, _ in worst]
    made.float()
    made.path = None
    told = ", ".join(f"{name} {error:.1e}" for error, name in worst[:6])
    print(f"float32 against float64: largest errors {told}")
    rows, passed = {"float32": max(found)}, max(found) < 1e-5
    if CUDA:
        eager = gradients(made, batch, autocast=True)
        made.compile(dynamic=False)
        compiled = gradients(made, batch, autocast=True)
        halves = [errors(some, single) for some in (eager, compiled)]
        typical = [float(np.median(one)) for one in halves]
        print(f"bfloat16 against float32: median error {typical[0]:.2e} eager, {typical[1]:.2e} compiled\n")
        rows |= {"bfloat16 eager": typical[0], "bfloat16 compiled": typical[1]}
        passed = passed and typical[1] < 2 * typical[0] + 1e-3
        torch._dynamo.reset()
    return rows, passed


# --- speed and memory -------------------------------------------------------------------------------

WIDE = {"model.width": 768, "model.heads": 12, "model.feedforward": 3072, "model.context": 512, "objective.length": 512}
NARROW = {"model.width": 64, "model.heads": 2, "model.feedforward": 256, "model.context": 32, "objective.length": 32}
BERT = {
    "objective.sentence": "none",
    "objective.short_rate": 0.0,
    "model.pooler": False,
    "objective.max_predictions": None,
}
TOWERS = {"model.combiner_heads": None}
NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0}


def systems(slot: str) -> dict[str, tuple[str, Row]]:
    """Recipes of as many blocks: 12 in BERT, twice 6 in the towers."""
    shape, blocks = (WIDE, 12) if CUDA else (NARROW, 2)
    bert = shape | BERT | NO_DROPOUT | {"model.layers": blocks, "model.embedding_dropout": 0.0}
    towers = shape | TOWERS | NO_DROPOUT | {"model.layers": blocks // 2, "model.inner_dropout": 0.0, "model.slot": slot}
    return {"bert": ("bert-base", bert), "two towers": ("two-tower-small", towers)}


def measured(recipe: str, changes: Row, tokens: int, steps: int, compiled: bool | None) -> Row:
    vocab = 30_522 if CUDA else 500
    train = {"batch_tokens": tokens, "steps": 10**6, "log_every": 10**6, "device": DEVICE, "workers": 2 if CUDA else 0}
    train |= {"precision": "bf16" if CUDA else "float32", "compile": compiled, "micro_tokens": None}
    settings = changes | {f"train.{key}": value for key, value in train.items()} | {"model.vocab": vocab}
    resolved = Recipe.load(recipe, settings).resolve(vocab=vocab)
    corpus = random_corpus(vocab, 4 * tokens)
    model, objective = build_learner(resolved, corpus.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        rows = objective.rows(corpus, 0)
        loop = Loop(Path(folder), model, objective, rows, resolved.train, total=10**6, device=torch.device(DEVICE))
        batches = loop.loader.steps(0, 10**6)
        begun = time.perf_counter()
        loop.advance(next(batches))
        first = time.perf_counter() - begun
        seconds, memory = timed(lambda: loop.advance(next(batches)), steps, torch.device(DEVICE))
        per_token = loop.tally.flops / loop.tally.tokens
        real = loop.tally.tokens / loop.tally.step
        batches.close()
    torch._dynamo.reset()
    found = {"tokens/s": real / seconds, "FLOPs a token": per_token, "GiB": memory, "first step, s": first}
    return found | {"TFLOP/s": found["tokens/s"] * per_token / 1e12}


def speed(options: argparse.Namespace) -> tuple[Any, bool]:
    tokens, steps = (32_768, 12) if CUDA else (1_024, 2)
    rows: list[Row] = []
    for slot in options.slots.split(","):
        for name, (recipe, changes) in systems(slot).items():
            if name == "bert" and rows:
                continue
            row: Row = {"system": name if name == "bert" else f"{name}, slot {slot}"}
            rows.append(row | measured(recipe, changes, tokens, steps, None))
    for row in rows[1:]:
        row["ratio"] = row["tokens/s"] / rows[0]["tokens/s"]
        row["predicted"] = rows[0]["FLOPs a token"] / row["FLOPs a token"]
        row["of predicted"] = row["ratio"] / row["predicted"]
    columns = ["system", "tokens/s", "FLOPs a token", "TFLOP/s", "GiB", "first step, s", "ratio", "predicted"]
    table(rows, [*columns, "of predicted"])
    return rows, all(row["of predicted"] >= 0.85 for row in rows[1:])


def memory(options: argparse.Namespace) -> tuple[Any, bool]:
    """Not compiled: every size would be compiled anew, and the kernels whose memory is asked for are the same."""
    base = 8_192 if CUDA else 512
    recipe, changes = systems("learned")["two towers"]
    rows: list[Row] = [{"tokens": n} | measured(recipe, changes, n, 2, False) for n in (base, 2 * base, 4 * base)]
    table(rows, ["tokens", "GiB", "tokens/s"])
    if not CUDA:
        print("No CUDA device: memory is not measured.\n")
        return rows, True
    first, second = ((rows[n + 1]["GiB"] - rows[n]["GiB"]) / (base << n) for n in (0, 1))
    print(f"MiB for each further thousand tokens: {1024e3 * first:.1f}, then {1024e3 * second:.1f}\n")
    return rows, second < 1.1 * first


# --- learning ---------------------------------------------------------------------------------------


def learning(options: argparse.Namespace) -> tuple[Any, bool]:
    corpus, valid = Corpus.open(options.corpus), Corpus.open(options.corpus, part="valid")
    begun = time.perf_counter()
    # the first so many held-out tokens: a mean of tens of thousands is known to a hundredth of a nat or so
    baseline = cloze_nats(corpus, valid, tokens=65_536)
    print(f"a token from its two neighbours: {baseline:.3f} nats ({time.perf_counter() - begun:.0f} s)", flush=True)
    settings: Row = NO_DROPOUT | {"model.inner_dropout": 0.0, "train.steps": options.steps, "train.save_every": 0}
    settings |= {"train.eval_every": max(1, options.steps // 6), "train.log_every": 50, "train.eval_tokens": 131_072}
    settings |= {"train.lr": 1e-3, "train.batch_tokens": 16_384}
    recipe = "two-tower-small"
    if not CUDA:
        recipe, settings = "two-tower-toy", {"train.steps": options.steps, "train.save_every": 0}
    with tempfile.TemporaryDirectory() as folder:
        run = pretraining.pretrain(recipe, corpus, Path(folder) / "run", quiet=True, overrides=settings)
        lines = run.metrics("valid")
    rows = [{key: line[key] for key in ("step", "tokens", "flops", "seconds", "text", "accuracy")} for line in lines]
    table(rows, ["step", "tokens", "flops", "seconds", "text", "accuracy"])
    return {"baseline": baseline, "lines": lines}, rows[-1]["text"] < baseline - 0.1


PARTS |= {"parity": parity, "model": model, "speed": speed, "memory": memory, "learning": learning}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    parser.add_argument("--corpus", default="carry/enwiki", help="a prepared corpus with a held-out part")
    parser.add_argument("--slots", default="learned", help="of the towers in the part speed: learned,none,zero")
    parser.add_argument("--steps", type=int, default=3_000, help="of the part learning")
    parser.add_argument("--json", type=Path, help="write everything here as well")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32 in a proof
    found: dict[str, Any] = {
        "hardware": describe_hardware(),
        "versions": describe_versions(),
        "date": time.strftime("%Y-%m-%d"),
    }
    print(f"{found['hardware']}; {found['versions']}; {found['date']}\n")
    passed = True
    for name in options.parts.split(","):
        print(f"--- {name}", flush=True)
        begun = time.perf_counter()
        found[name], good = PARTS[name](options)
        seconds = time.perf_counter() - begun
        print(f"{name}: {'passed' if good else 'FAILED'} ({seconds:.0f} s)\n", flush=True)
        found[f"{name} passed"], passed = good, passed and good
        if options.json:  # after every part: what was seen stays, whatever comes
            options.json.write_text(json.dumps(found, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
