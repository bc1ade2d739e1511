"""Compiling is told: how long the first step took, what was found in the cache and what was put there."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import torch

from etude.train import compilation
from etude.train.progress import Progress


class Spoken(Progress):
    """Keeps what is said, and draws nothing."""

    def __init__(self) -> None:
        super().__init__(3, quiet=True, stream=io.StringIO())
        self.lines: list[str] = []

    def print(self, message: str) -> None:
        self.lines.append(message)


def test_the_first_step_is_told_once_it_is_over_and_nothing_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "describe", lambda seconds: f"took {seconds:.0f}")
    progress, closed = Spoken(), []

    def numbers() -> Iterator[int]:
        try:
            yield from range(5)
        finally:
            closed.append(True)

    steps = compilation.report_first_step(numbers(), progress)  # type: ignore[arg-type]
    assert next(steps) == 0 and progress.lines == []  # not before it is done
    assert [next(steps), next(steps)] == [1, 2]
    assert progress.lines == ["took 0"]
    steps.close()
    assert closed == [True]  # what builds batches is given back


def test_what_the_cache_did_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "cache_folder", lambda: "/kept")
    for counts, said in {
        (3, 0, 0): "; 3 graphs read from /kept",
        (0, 2, 0): "; 2 compiled and cached in /kept for the next run",
        (0, 0, 1): "; 1 compiled that torch cannot cache",
        (0, 0, 0): "",
    }.items():
        monkeypatch.setattr(compilation, "count_graphs", lambda counts=counts: counts)
        assert compilation.describe(12.4) == f"compiled: first step after 12 s{said}"


def test_torch_counts_what_it_finds_and_keeps() -> None:
    """The names of its counters and of its folder are those of the torch at hand."""
    from torch._dynamo.utils import counters

    before = compilation.count_graphs()
    counters["inductor"]["fxgraph_cache_hit"] += 2
    counters["inductor"]["fxgraph_cache_miss"] += 1
    try:
        assert [after - one for after, one in zip(compilation.count_graphs(), before, strict=True)] == [2, 1, 0]
    finally:
        counters["inductor"]["fxgraph_cache_hit"] -= 2
        counters["inductor"]["fxgraph_cache_miss"] -= 1
    assert compilation.cache_folder().name.startswith("torchinductor") or compilation.cache_folder().is_dir()


def test_what_a_gpu_compiles_with_is_known_to_the_cache() -> None:
    assert compilation.compile_options(torch.device("cpu"), False) == {}
    told = compilation.compile_options(torch.device("cuda"), True)
    assert told["triton.cudagraphs"] is True and told["post_grad_custom_post_pass"].uuid() is not None
    assert compilation.compile_options(torch.device("cuda"), False)["triton.cudagraphs"] is False


def test_all_runs_of_a_process_are_compiled() -> None:
    """Each run adds versions of one function; beyond torch's limit the next is silently not compiled."""
    import torch._dynamo.testing

    torch._dynamo.reset()
    counter, plain_limit = torch._dynamo.testing.CompileCounter(), torch._dynamo.config.recompile_limit
    try:
        compilation.raise_version_limit()
        double = torch.compile(lambda x: x + x, backend=counter, dynamic=False)
        for size in range(1, 13):
            double(torch.ones(size))
        assert counter.frame_count == 12
        first, second = (compilation.compile_options(torch.device("cuda"), False) for _ in range(2))
        assert first == second  # so that a second run of the same shapes finds what the first compiled
    finally:
        torch._dynamo.config.recompile_limit = plain_limit
        torch._dynamo.reset()
