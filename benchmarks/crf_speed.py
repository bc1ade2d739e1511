"""A CRF step by step, by our kernels, and by a peer: likelihood with its gradient, and the best paths.

    python benchmarks/crf_speed.py                 # sentences of 1 to 60 tokens, 17 and 49 tags, 32 and 256 at once
    TRITON_INTERPRET=1 python benchmarks/crf_speed.py --sequences 3 --length 4 --tags 5 --rounds 1     # without a GPU
    pip install pytorch-crf                        # the peer, where it is wanted

By the clock of the host, launches included, in turns whose order changes, so that what else the machine does meets all
of them. The table has the median and the quartiles of the turns, and the ratio to the plain form, turn by turn. All
must agree: in the likelihood to 1e-4 of it, and in every tag.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from etude.nn import crf as crf_module
from etude.nn.crf import CRF
from etude.nn.packed import Layout
from etude.runs.model_card import describe_hardware, describe_versions

Call = Callable[[], list[Tensor]]


def run(crf: CRF, emissions: Tensor, tags: Tensor, layout: Layout, kernels: bool, decodes: bool) -> list[Tensor]:
    found = crf_module._find_kernels
    if not kernels:
        crf_module._find_kernels = lambda given: None
    elif os.environ.get("TRITON_INTERPRET") == "1":
        from etude.nn.triton import crf as interpreted

        crf_module._find_kernels = lambda given: interpreted
    try:
        if decodes:
            return [crf.decode(emissions, layout)]
        likelihood = crf.log_likelihood(emissions, tags, layout).sum()
        return [likelihood, *torch.autograd.grad(likelihood, [emissions, *crf.parameters()])]
    finally:
        crf_module._find_kernels = found


def run_peer(crf: CRF, emissions: Tensor, tags: Tensor, layout: Layout, decodes: bool) -> list[Tensor]:
    """`pytorch-crf` over sentences padded to the longest, which is part of its work."""
    from torchcrf import CRF as Peer

    peer = Peer(crf.tags, batch_first=True).to(emissions.device)
    peer.start_transitions, peer.transitions, peer.end_transitions = crf.start, crf.transitions, crf.end
    lengths = layout.lengths.tolist()
    padded = torch.nn.utils.rnn.pad_sequence(list(emissions.split(lengths)), batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(n, dtype=torch.bool) for n in lengths], batch_first=True)
    mask = mask.to(emissions.device)
    if decodes:
        return [torch.tensor([tag for path in peer.decode(padded, mask) for tag in path])]
    targets = torch.nn.utils.rnn.pad_sequence(list(tags.split(lengths)), batch_first=True)
    likelihood = peer(padded, targets, mask)
    return [likelihood, *torch.autograd.grad(likelihood, [emissions, crf.start, crf.transitions, crf.end])]


def compare(calls: dict[str, Call], rounds: int, decodes: bool, device: torch.device) -> None:
    expected = next(iter(calls.values()))()
    for name, call in calls.items():
        first = call()[0].cpu()  # compiles, and warms up
        is_same = torch.equal if decodes else partial(torch.isclose, rtol=1e-4)
        if not is_same(first, expected[0].cpu()):
            raise SystemExit(f"{name} gives another result")
    seconds = np.empty((rounds, len(calls)))
    for turn in range(rounds):
        for number in np.random.default_rng(turn).permutation(len(calls)):
            start = time.perf_counter()
            list(calls.values())[number]()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds[turn, number] = time.perf_counter() - start
    for number, name in enumerate(calls):
        low, middle, high = 1e3 * np.percentile(seconds[:, number], [25, 50, 75])
        ratio = np.median(seconds[:, 0] / seconds[:, number])
        print(f"  {name:16}{middle:10.2f} ms  {low:8.2f} … {high:8.2f}{ratio:10.2f} times plain", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--length", type=int, default=60, help="of the longest")
    parser.add_argument("--tags", type=int, nargs="+", default=[17, 49])
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    has_kernels = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    print(describe_hardware(), describe_versions(), sep="\n")
    if not has_kernels:
        print("no GPU: our kernels are left out (TRITON_INTERPRET=1 interprets them)")
    for sequences in arguments.sequences:
        lengths = np.random.default_rng(0).integers(1, arguments.length + 1, sequences)
        layout = Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), int(lengths.max())).to(device)
        for tags in arguments.tags:
            torch.manual_seed(0)
            crf = CRF(tags)
            for parameter in crf.parameters():
                torch.nn.init.normal_(parameter)
            given = crf.to(device), torch.randn(layout.total, tags, device=device, requires_grad=True)
            chosen = torch.randint(0, tags, (layout.total,), device=device)
            for decodes in (False, True):
                calls: dict[str, Call] = {"plain": partial(run, *given, chosen, layout, False, decodes)}
                if has_kernels:
                    calls["kernels"] = partial(run, *given, chosen, layout, True, decodes)
                if importlib.util.find_spec("torchcrf"):
                    calls["pytorch-crf"] = partial(run_peer, *given, chosen, layout, decodes)
                work = "best paths" if decodes else "likelihood and gradient"
                print(f"{work}: {sequences} sequences, {layout.total} tokens, {tags} tags")
                compare(calls, arguments.rounds, decodes, device)


if __name__ == "__main__":
    main()
