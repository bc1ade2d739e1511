"""Sequences end to end: where they lie, and what moves with them."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from etude.nn.packed import Layout, Packed, pack, positions_from_bounds


@given(st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=9))
def test_packing_loses_nothing(sequences: list[list[int]]) -> None:
    packed = pack(sequences)
    host = packed.layout.host
    assert [packed.tokens[start:stop].tolist() for start, stop in itertools.pairwise(host)] == sequences
    assert packed.positions.tolist() == [place for sequence in sequences for place in range(len(sequence))]
    assert packed.layout.lengths.tolist() == [len(sequence) for sequence in sequences]
    assert packed.layout.total == len(packed.tokens)
    assert packed.layout.bounds.tolist() == host.tolist()
    assert packed.layout.bounds.dtype == torch.int32  # what variable-length kernels take


def test_positions_start_anew_in_each_sequence() -> None:
    assert positions_from_bounds(np.array([0, 2, 2, 5])).tolist() == [0, 1, 0, 1, 2]


def test_the_longest_is_a_constant_where_one_is_given() -> None:
    assert pack([[1], [2, 3]]).layout.longest == 2
    assert pack([[1], [2, 3]], longest=128).layout.longest == 128


@dataclass
class Labelled(Packed):
    labels: torch.Tensor
    names: list[str]
    numbers: np.ndarray


def test_moving_takes_along_what_a_batch_adds_and_leaves_the_host_part() -> None:
    packed = pack([[1, 2], [3]])
    batch = Labelled(packed.tokens, packed.positions, None, packed.layout, torch.tensor([1, 0]), ["a"], np.arange(2))
    batch.layout.cache["plan"] = "made for another device"
    moved = batch.to("meta")
    assert moved.tokens.is_meta
    assert moved.labels.is_meta
    assert moved.layout.bounds.is_meta
    assert moved.layout.host is batch.layout.host
    assert moved.names is batch.names
    assert moved.numbers is batch.numbers
    assert moved.segments is None
    assert moved.layout.cache == {}


def check_copy(pinned: bool) -> None:
    packed = pack([[1, 2], [3]])
    batch = Labelled(packed.tokens, packed.positions, None, packed.layout, torch.tensor([0.5, 2]), ["a"], np.arange(2))
    copied = batch.clone(pinned)
    for old, new in [
        (batch.tokens, copied.tokens),
        (batch.labels, copied.labels),
        (batch.layout.bounds, copied.layout.bounds),
    ]:
        assert new.dtype == old.dtype
        assert new.is_pinned() == pinned
        assert torch.equal(new, old)
        old.zero_()
        assert new.any(), "a copy has memory of its own"
    assert copied.segments is None
    assert copied.names is batch.names


def test_a_copy_has_memory_of_its_own() -> None:
    check_copy(pinned=False)


@pytest.mark.gpu
def test_a_copy_in_memory_that_a_gpu_reads() -> None:
    check_copy(pinned=True)


THREADS = """
import os, torch
from etude.nn.packed import pack

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(4)
packed = pack([list(range(2**17))])
before = threads()
packed.clone()
after = threads()
packed.tokens.clone()
print(after - before, threads() - after)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_copy_wakes_no_other_thread() -> None:
    """Threads of torch's would wait for cores that build batches, and a GPU for them."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    actual, torchs = map(int, done.stdout.split())
    assert actual == 0
    assert torchs > 0, "torch copies alone now: numpy's way round it is not needed any more"


def test_a_layout_is_made_of_any_integers() -> None:
    layout = Layout.from_bounds(np.array([0, 3, 5], dtype=np.int64), 4)
    assert layout.host.dtype == np.int32
    assert layout.to("cpu").longest == 4
