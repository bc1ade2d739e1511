"""How fast is a biLM? One LSTM layer by its paths and by a plain loop, and whole steps of a recipe.

    python benchmarks/bilm_speed.py                               # on a GPU if there is one, else a CPU
    python benchmarks/bilm_speed.py --recipe elmo --lanes 384     # the published size

The plain loop is the LSTM written down step by step and left to autograd: what the hand-written pass is measured
against, in the same run. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.chance import Chance
from etude.nn.lstm import LSTM, Path
from etude.nn.packed import Layout
from etude.recipes.schema import Recipe
from etude.recipes.size import synthetic_corpus
from etude.runs.model_card import describe_hardware, describe_versions

UNROLL = 20


def timed(step: Callable[[], Any], device: torch.device, seconds: float = 3.0) -> float:
    """Seconds a call, after one to warm up."""
    step()
    begun, count = _now(device), 0
    while (passed := _now(device) - begun) < seconds or count < 3:
        step()
        count += 1
    return passed / count if count else passed


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def clipped(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else x.clamp(-limit, limit)


def plain(layer: LSTM, x: Tensor, lanes: int) -> Tensor:
    """Equal sequences, one token of each at a time."""
    hidden, cell = layer.zero_state(lanes, x.device)
    outputs = []
    for token in x.view(lanes, UNROLL, -1).unbind(1):
        enter, forget, new, leave = (layer.input(token) + layer.recurrent(hidden)).chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        cell = clipped(cell, layer.cell_clip)
        hidden = leave.sigmoid() * cell.tanh()
        hidden = hidden if layer.project is None else layer.project(hidden)
        hidden = (
            hidden if layer.projection_clip is None else hidden.clamp(-layer.projection_clip, layer.projection_clip)
        )
        outputs.append(hidden)
    return torch.stack(outputs, 1).flatten(0, 1)


def layers(width: int, cells: int, lanes: int, device: torch.device, half: bool) -> None:
    layout = Layout.from_bounds(np.arange(lanes + 1) * UNROLL, UNROLL).to(device)
    x = torch.randn(lanes * UNROLL, width, device=device, requires_grad=True)
    found = {}
    rows: list[tuple[str, float | None]] = [("plain loop", 3.0), ("scan", 3.0), ("scan, no clip", None)]
    rows += [("fused", 3.0)] if device.type == "cuda" else []
    for name, clip in (*rows, ("torch, no clip", None)):
        torch.manual_seed(0)
        layer = LSTM(width, cells, projection=width, cell_clip=clip, projection_clip=clip).to(device)

        def step(layer: LSTM = layer, name: str = name) -> None:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
                if name == "plain loop":
                    output = plain(layer, x, lanes)
                else:
                    path: Path = "torch" if name.startswith("torch") else "fused" if name == "fused" else "scan"
                    output, _ = layer(x, layout, path=path)
                output.float().square().sum().backward()
            layer.zero_grad()
            x.grad = None

        found[name] = timed(step, device)
    for name, seconds in found.items():
        flops = 3 * LSTM(width, cells, projection=width).flops(lanes * UNROLL)
        told = {"layer": name, "width": width, "cells": cells, "lanes": lanes, "bf16": half}
        told |= {"ms": round(1e3 * seconds, 2), "tflops": round(flops / seconds / 1e12, 3)}
        print(json.dumps(told | {"times_plain": round(found["plain loop"] / seconds, 2)}), flush=True)


def whole(name: str, lanes: int, device: torch.device, half: bool) -> None:
    recipe = Recipe.load(name).resolve()
    corpus = synthetic_corpus(4 * lanes * UNROLL, words=900)
    torch.manual_seed(0)
    model = recipe.build_model().to(device)
    objective = recipe.build_objective(model, corpus.tokenizer.special).to(device)
    rows = objective.rows(corpus, seed=0)
    objective.set_lanes(lanes)
    length = len(rows) // lanes
    chosen = [rows[lane * length] for lane in range(lanes)]
    for slot, row in enumerate(chosen):
        row.slot = slot
    built = timed(lambda: objective.batch(chosen, Chance(0, 0)), torch.device("cpu"), 1.0)
    batch = objective.batch(chosen, Chance(0, 0)).to(device)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
            terms = objective.loss(model, batch)
        sum(term.weight * term.sum / term.count for term in terms.values()).backward()
        model.zero_grad()
        objective.zero_grad()

    seconds = timed(step, device)
    told = {"recipe": name, "lanes": lanes, "bf16": half, "tokens_per_second": round(batch.size / seconds)}
    told |= {"tflops": round(objective.flops(model, batch) / seconds / 1e12, 3), "batch_ms": round(1e3 * built, 1)}
    if device.type == "cuda":
        told["gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    print(json.dumps(told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", help="elmo on a GPU, elmo-toy on a CPU unless given")
    parser.add_argument("--lanes", type=int, help="384 on a GPU, 64 on a CPU unless given")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    print(json.dumps({"hardware": describe_hardware(), "versions": describe_versions()}), flush=True)
    lanes = asked.lanes or (384 if gpu else 64)
    for half in (False, True) if gpu else (False,):
        layers(512 if gpu else 64, 4096 if gpu else 128, lanes, device, half)
        whole(asked.recipe or ("elmo" if gpu else "elmo-toy"), lanes, device, half)


if __name__ == "__main__":
    main()
