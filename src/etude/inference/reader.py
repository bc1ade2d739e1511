"""Growing sequences with a key-value cache, and the logits of the next token of each.

Prompts of several lengths are read and continued together, without padding (nn/attention/kv_cache.py). On a GPU steps
of one token are recorded and replayed (inference/recorded_decoding.py), several before the host looks at their tokens,
and the next ones are under way while it does (`write_ahead`).
A recording has a number of rows: a sequence that is no longer kept stays in its row until half of all rows are empty,
and empty rows are added so that few numbers of rows occur.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from etude.inference.base import InferenceModel
from etude.inference.recorded_decoding import RecordedSteps, StepRecorder
from etude.nn.attention.kv_cache import KVCache
from etude.nn.cuda_graphs import CudaGraphs
from etude.nn.host_copy import HostCopy
from etude.nn.packed import pack
from etude.nn.precision import upcast
from etude.nn.states import States


class Drawing(Protocol):
    """Chooses tokens for a number of steps."""

    steps: int

    def __call__(self, logits: Tensor, step: int) -> Tensor:
        """The tokens (S,) of a step, from its logits (S, V), without waiting for a GPU."""


def window_start(length: int, context: int, stride: int) -> int:
    """Return the first position of the window that predicts the token after `length` tokens.

    Windows begin at multiples of the stride; the first that reaches the token has the longest context.
    """
    return 0 if length <= context else -(-(length - context) // stride) * stride


class Writing:
    """Tokens that a device is writing, and that the host has not seen yet."""

    def __init__(self, tokens: Sequence[Tensor], steps: int) -> None:
        """`tokens` (S,) of each step; `steps` is how many of these the host has not counted."""
        self.steps = steps
        self._copy = HostCopy(torch.stack(list(tokens)))  # (steps, S)

    def wait(self) -> list[list[int]]:
        """(steps, S)"""
        written: list[list[int]] = self._copy.wait().tolist()
        return written


class Reader:
    """Reads sequences, whole and then token by token; used in a `with` block it leaves its memory to later ones."""

    def __init__(self, loaded: InferenceModel, sequences: Sequence[Sequence[int]], cached: bool = True) -> None:
        self.model, self.objective, self.device = loaded.model, loaded.objective, torch.device(loaded.device)
        self.context = self.model.max_length
        self.stride = max(1, self.context // 2)
        self.rows = [list(map(int, sequence)) for sequence in sequences]
        self.starts = np.zeros(len(self.rows), np.int64)
        self.row_slides = np.zeros(len(self.rows), np.int64)
        self._set_active(np.arange(len(self.rows)))
        self._was_replayed = False
        self._last: Tensor | None = None  # (S,) on the device: the tokens that were written last
        self._under_way: deque[Writing] = deque()
        self.cache = KVCache() if cached else None
        self.compute_logits = _make_scorer(loaded)
        self.recorded: RecordedSteps | None = None
        if self.cache is not None and self._records():
            if loaded.step_recorder is None or not loaded.step_recorder.fits(self.model, self.objective):
                graphs = CudaGraphs(self.device, frees_memory=False)
                loaded.step_recorder = StepRecorder(
                    self.model, self.objective, self.compute_logits, self.device, graphs
                )
            self.recorded = RecordedSteps(loaded.step_recorder, self.cache)

    def _records(self) -> bool:
        return self.device.type == "cuda"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the memory of recordings to others; nothing more can be read."""
        if self.recorded is not None:
            self.recorded.close()

    @property
    def sequences(self) -> list[list[int]]:
        """The sequences that are kept."""
        return [self.rows[row] for row in self.active]

    @property
    def slides(self) -> np.ndarray:
        """How often the older half of each context was left out."""
        return self.row_slides[self.active]

    @torch.no_grad()
    def next_logits(self) -> Tensor:
        """Return the next-token logits (S, V); minus infinity for ids without a token."""
        starts = np.array([window_start(len(ids), self.context, self.stride) for ids in self.rows], np.int64)
        moved = np.flatnonzero(starts != self.starts)
        self.row_slides[moved] += 1
        self.starts = starts
        cached = np.zeros_like(starts)
        if self.cache is not None and self.cache.keys:
            self.cache.reset(moved)
            cached = self.cache.lengths
        new = [sequence[start:] for sequence, start in zip(self.rows, starts + cached, strict=True)]
        logits = self._replay(new)
        self._was_replayed = logits is not None
        if logits is None:
            logits = self._read(new + [[] for _ in self.rows[len(new) :]])
        return logits if len(self.active) == len(self.rows) else logits[self._send_active()]

    @torch.no_grad()
    def write(self, draw: Drawing, logits: Tensor | None = None) -> list[list[int]]:
        """Write one or more tokens of each sequence, up to `draw.steps`: (steps, S).

        `logits` are those of the first, where they are known. Recorded steps follow each other on the device: the host
        waits once for all.
        """
        if logits is None:
            logits = self.next_logits()
            steps = min(draw.steps, 1 + self._count_steps_ahead())
        else:
            self._was_replayed, steps = False, 1
        tokens = [draw(logits, 0)]
        self._advance(draw, tokens, steps - 1)
        return self._take_in(Writing(tokens, len(tokens) - 1))

    @torch.no_grad()
    def write_ahead(self, draw: Drawing) -> bool:
        """Let a GPU write on, up to `draw.steps` tokens of each sequence, and return at once.

        False where the host has to take the next step. Whatever else is done next, all that is under way is collected
        before.
        """
        steps = 0 if self._last is None else min(draw.steps, self._count_steps_ahead())
        tokens: list[Tensor] = []
        self._advance(draw, tokens, steps)
        if tokens:
            self._under_way.append(Writing(tokens, len(tokens)))
        return bool(tokens)

    @property
    def steps_under_way(self) -> list[int]:
        """How many tokens of each sequence every call of `write_ahead` has under way, the oldest call first."""
        return [writing.steps for writing in self._under_way]

    def collect(self) -> list[list[int]]:
        """Wait for the tokens of the oldest call of `write_ahead`, and return them: (steps, S)."""
        return self._take_in(self._under_way.popleft())

    def _take_in(self, writing: Writing) -> list[list[int]]:
        written = writing.wait()
        for row, new in zip(self.active, zip(*written, strict=True), strict=True):
            self.rows[row] += new
        if writing.steps:
            assert self.cache is not None
            self.cache.lengths = self.cache.lengths + self._is_active() * writing.steps
        return written

    def _advance(self, draw: Drawing, tokens: list[Tensor], steps: int) -> None:
        """Append the tokens (S,) of further recorded steps; without tokens so far, behind those that were last."""
        rows = self._send_active()
        last = tokens[-1] if tokens else self._last
        for _ in range(steps):
            assert self.recorded is not None and last is not None
            all_logits = self.recorded.advance(rows, last)
            if all_logits is None:
                break
            last = draw(all_logits if len(rows) == len(all_logits) else all_logits[rows], len(tokens))
            tokens.append(last)
        self._last = last

    def _set_active(self, active: np.ndarray) -> None:
        self.active = active  # rows of the sequences that are kept, in their order
        self._active_sent: Tensor | None = None  # the same on the device, once it was needed there

    def _send_active(self) -> Tensor:
        """The rows of the sequences that are kept, (S,), on the device; sent once for many steps."""
        if self._active_sent is None:
            self._active_sent = torch.from_numpy(self.active).to(self.device)
        return self._active_sent

    def _count_steps_ahead(self) -> int:
        """Steps that can follow recorded ones before a context slides or a buffer is full.

        Rows of sequences that have ended count too: they go on from where they stood until the host fills in places.
        """
        if self.recorded is None or not self.recorded.is_possible or not self._was_replayed:
            return 0
        return min(self.recorded.steps_left, self.context - 1 - self.recorded.last_place)

    def _is_active(self) -> np.ndarray:
        """(rows,) 1 for the sequences that are kept, else 0."""
        is_active = np.zeros(len(self.rows), np.int64)
        is_active[self.active] = 1
        return is_active

    def _read(self, new: list[list[int]]) -> Tensor:
        """Logits after the new tokens of each row; of any others where a row has none."""
        if self.cache is None:
            packed = pack(new).to(self.device)
            states = self.model(packed)
        else:
            packed = self.cache.pack(new).to(self.device)
            states = self.model(packed, cache=self.cache)
        last = (packed.layout.bounds[1:].long() - 1).clamp(min=0)
        states.last = states.last.index_select(0, last)  # (S, D)
        return self.compute_logits(states)

    def _replay(self, new: list[list[int]]) -> Tensor | None:
        """The same by a recording, where every kept sequence has one new token."""
        if self.recorded is None or not self.recorded.is_possible or any(len(new[row]) != 1 for row in self.active):
            return None
        assert self.cache is not None
        missing = _round_up(len(self.rows)) - len(self.rows)
        if missing:
            self._append([[] for _ in range(missing)])
        is_active = self._is_active()
        tokens = np.zeros(len(self.rows), np.int64)
        tokens[self.active] = [new[row][0] for row in self.active]
        # an empty row writes where nobody reads
        logits = self.recorded.run(tokens, np.where(is_active, self.cache.lengths, 0))
        if logits is not None:
            self.cache.lengths = self.cache.lengths + is_active
        return logits

    def extend(self, tokens: Sequence[int]) -> None:
        """Append one token to each sequence."""
        self._last = None
        for row, token in zip(self.active, tokens, strict=True):
            self.rows[row].append(token)

    def add(self, sequences: Sequence[Sequence[int]]) -> None:
        """Append sequences, which the next step reads whole; the others go on from their cached keys and values."""
        self._drop_empty_rows(self.active)
        self._append([list(map(int, sequence)) for sequence in sequences])
        self._set_active(np.arange(len(self.rows)))

    def _append(self, rows: list[list[int]]) -> None:
        self.rows += rows
        new = np.zeros(len(rows), np.int64)
        self.starts, self.row_slides = np.concatenate([self.starts, new]), np.concatenate([self.row_slides, new])
        if self.cache is not None:
            self.cache.append(len(rows))

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these sequences, in this order; a row may be repeated (beams)."""
        active = self.active[np.array(rows, np.int64)]
        is_subset = bool((np.diff(active) > 0).all())
        if self.recorded is not None and is_subset and 2 * len(active) > len(self.rows):
            self._set_active(active)
            if self._last is not None:
                self._last = self._last[torch.tensor(rows, device=self.device)]
        else:
            self._drop_empty_rows(active)

    def _drop_empty_rows(self, active: np.ndarray) -> None:
        self._last = None
        if len(active) == len(self.rows) and bool((active == np.arange(len(active))).all()):
            self._set_active(active)
            return
        self.rows = [list(self.rows[row]) for row in active]
        self.starts, self.row_slides = self.starts[active], self.row_slides[active]
        if self.cache is not None and len(active):
            self.cache.select(active)
        self._set_active(np.arange(len(active)))


def _make_scorer(loaded: InferenceModel) -> Callable[[States], Tensor]:
    """The next-token logits (S, V) of states (S, D); minus infinity for ids without a token."""
    model, objective, without_token = loaded.model, loaded.objective, loaded.ids_without_token

    def score(states: States) -> Tensor:
        logits = upcast(objective.logits(model, states))
        return logits if without_token is None else logits.masked_fill(without_token, float("-inf"))

    return score


def _round_up(rows: int) -> int:
    """The number of rows of a recording: the next power of two, or three quarters of it."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if rows <= power * 3 // 4 and power >= 4 else power
