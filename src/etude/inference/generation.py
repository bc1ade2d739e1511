"""Autoregressive generation: sampling from a causal model, one token after the other.

The choice of a token, in the order of GPT-2's released code (sample.py): temperature, then the `top_k` likeliest, then
the likeliest that have `top_p` of the probability together; temperature 0 takes the likeliest (greedy).

The noise is a hash of (seed, the prompt's ids, number of the sample, number of the token): a sample does not depend
on the other prompts of a call, and its beginning does not depend on the number of tokens requested.

Prompts of several lengths are read and continued together, without padding, from cached keys and values
(nn/attention/kv_cache.py). A text that fills the context slides: the older half is dropped, the newer half is read
again from position 0, and the text goes on; or it stops there (`overflow`). `cached=False` reads the whole window anew
for every token: slow, and the reference that the cache is tested against.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from etude.chance import fold, gumbel
from etude.errors import UserError
from etude.inference.base import InferenceModel, describe_use
from etude.inference.recorded_decoding import DecodingRecorder
from etude.models.base import Model
from etude.nn.attention.kv_cache import KVCache
from etude.nn.cuda_graphs import CudaGraphs, Graph
from etude.nn.packed import pack
from etude.nn.precision import upcast
from etude.nn.states import States
from etude.text.tokenizer.stream_decoder import StoppingDecoder, StreamDecoder

Ended = Literal["tokens", "end", "stop", "context"]
Overflow = Literal["slide", "stop"]
Rule = Literal["usual", "gpt2"]
CACHE_BYTES = 2**30  # bytes of keys and values held at once: more prompts than fit are continued in turn
TOKENS = 16_384  # of prompts read at once


@dataclass(frozen=True)
class Continuation:
    """The text generated after a prompt."""

    prompt: str
    text: str
    ids: tuple[int, ...]  # the generated tokens, without the final end-of-text
    ended: Ended  # by the number of tokens, end-of-text, a stop string, or the end of the context
    slides: int = 0  # how often the older half of the context was left out
    score: float | None = None  # beam search: log-probability over the length penalty
    context: int | None = field(default=None, compare=False)  # tokens the model sees at most

    def __str__(self) -> str:
        return self.prompt + self.text


# --- sampling ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """Settings of generation, and the choice of the next token from its logits.

    Logits equal to the lowest that passes the filter pass too, so the order among equal ones does not matter.
    """

    tokens: int = 40  # at most
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    top_p_rule: Rule = "usual"  # keeps the token with which top_p is reached; GPT-2's code leaves that one out
    seed: int = 0
    stop: Sequence[str] = ()  # strings that end a text, and are not part of it
    past_end: bool = False  # end-of-text is a token like others
    overflow: Overflow = "slide"

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UserError(f"tokens={self.tokens}: ask for one or more.")
        if not self.temperature >= 0:
            raise UserError(f"temperature={self.temperature} is below 0: take 0 for the likeliest token, 1 as it is.")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k={self.top_k} leaves no token: take 1 or more, or leave it out.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} is not a share: take a number above 0, at most 1, or leave it out.")
        if self.top_p_rule not in ("usual", "gpt2"):
            raise UserError(f"top_p_rule is 'usual' or 'gpt2', not '{self.top_p_rule}'.")
        if self.overflow not in ("slide", "stop"):
            raise UserError(f"overflow is 'slide' or 'stop', not '{self.overflow}'.")
        if isinstance(self.stop, str):
            raise UserError(f"stop is a list of strings: write stop=[{self.stop!r}].")

    def choose(self, logits: Tensor, keys: Sequence[int]) -> list[int]:
        """Sample a token for each row of (S, V) logits, with one random key a row (the Gumbel-max trick)."""
        if self.temperature == 0:
            return logits.argmax(-1).tolist()
        logits = self.filter_logits(logits)
        key = torch.from_numpy(np.array(keys, np.uint64).view(np.int64)).to(logits.device)
        noise = gumbel(key[:, None], torch.arange(logits.shape[1], device=logits.device))
        return (logits + noise).argmax(-1).tolist()

    def filter_logits(self, logits: Tensor) -> Tensor:
        """Apply temperature, top-k and top-p to (S, V) logits; filtered tokens become minus infinity."""
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[1]:
            logits = _mask_below(logits, logits.topk(self.top_k).values[:, -1:])
        if self.top_p is not None and self.top_p < 1:
            descending = logits.sort(-1, descending=True).values
            probs = descending.double().softmax(-1)
            cumulative = probs.cumsum(-1)
            inside = cumulative <= self.top_p if self.top_p_rule == "gpt2" else cumulative - probs < self.top_p
            last = (inside.sum(-1, keepdim=True) - 1).clamp(min=0)
            logits = _mask_below(logits, descending.gather(1, last))
        return logits


def _mask_below(logits: Tensor, threshold: Tensor) -> Tensor:
    return logits.masked_fill(logits < threshold, float("-inf"))


# --- next-token logits ------------------------------------------------------------------------------


def window_start(length: int, context: int, stride: int) -> int:
    """Return the first position of the window that predicts the token after `length` tokens.

    Windows begin at multiples of the stride; the first that reaches the token has the longest context.
    """
    return 0 if length <= context else -(-(length - context) // stride) * stride


class Reader:
    """Growing sequences with a key-value cache, and the logits of the next token of each.

    On a GPU steps are recorded, and a recording has a number of rows: a sequence that is no longer kept stays in its
    row until half of all rows are empty.
    """

    def __init__(self, loaded: InferenceModel, sequences: Sequence[Sequence[int]], cached: bool = True) -> None:
        self.model, self.objective, self.device = loaded.model, loaded.objective, torch.device(loaded.device)
        self.context = self.model.max_length
        self.stride = max(1, self.context // 2)
        self.rows = [list(map(int, sequence)) for sequence in sequences]
        self.starts = np.zeros(len(self.rows), np.int64)
        self.row_slides = np.zeros(len(self.rows), np.int64)
        self.active = np.arange(len(self.rows))  # rows of the sequences that are kept, in their order
        self.cache = KVCache() if cached else None
        self.ids_without_token = loaded.ids_without_token
        self.recorder = self._build_recorder(CudaGraphs(self.device, frees_memory=False)) if self._records() else None

    def _records(self) -> bool:
        return self.cache is not None and self.device.type == "cuda"

    def _build_recorder(self, new_graph: Callable[[], Graph]) -> DecodingRecorder:
        assert self.cache is not None
        return DecodingRecorder(self.model, self._compute_logits, self.cache, self.device, new_graph)

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
        if logits is None:
            logits = self._read(new)
        return logits if len(self.active) == len(self.rows) else logits[torch.from_numpy(self.active).to(logits.device)]

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
        return self._compute_logits(states)

    def _replay(self, new: list[list[int]]) -> Tensor | None:
        """The same by a recording, where every kept sequence has one new token."""
        if self.recorder is None or any(len(new[row]) != 1 for row in self.active):
            return None
        assert self.cache is not None
        is_active = np.zeros(len(new), np.int64)
        is_active[self.active] = 1
        tokens = np.array([ids[0] if ids else 0 for ids in new])
        # an empty row writes where nobody reads
        logits = self.recorder.run(tokens, np.where(is_active, self.cache.lengths, 0))
        if logits is not None:
            self.cache.lengths = self.cache.lengths + is_active
        return logits

    def _compute_logits(self, states: States) -> Tensor:
        logits = upcast(self.objective.logits(self.model, states))
        return logits if self.ids_without_token is None else logits.masked_fill(self.ids_without_token, float("-inf"))

    def extend(self, tokens: Sequence[int]) -> None:
        """Append one token to each sequence."""
        for row, token in zip(self.active, tokens, strict=True):
            self.rows[row].append(token)

    def add(self, sequences: Sequence[Sequence[int]]) -> None:
        """Append sequences, which the next step reads whole; the others go on from their cached keys and values."""
        self._drop_empty_rows(self.active)
        self.rows += [list(map(int, sequence)) for sequence in sequences]
        new = np.zeros(len(sequences), np.int64)
        self.starts, self.row_slides = np.concatenate([self.starts, new]), np.concatenate([self.row_slides, new])
        self.active = np.arange(len(self.rows))
        if self.cache is not None:
            self.cache.append(len(sequences))

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these sequences, in this order; a row may be repeated (beams)."""
        active = self.active[np.array(rows, np.int64)]
        is_subset = bool((np.diff(active) > 0).all())
        if self.recorder is not None and is_subset and 2 * len(active) > len(self.rows):
            self.active = active
        else:
            self._drop_empty_rows(active)

    def _drop_empty_rows(self, active: np.ndarray) -> None:
        if len(active) == len(self.rows) and bool((active == np.arange(len(active))).all()):
            self.active = active
            return
        self.rows = [list(self.rows[row]) for row in active]
        self.starts, self.row_slides = self.starts[active], self.row_slides[active]
        if self.cache is not None and len(active):
            self.cache.select(active)
        self.active = np.arange(len(active))


# --- generation -------------------------------------------------------------------------------------


class Sample:
    """A text being generated: sample `number` of its prompt."""

    def __init__(self, loaded: InferenceModel, prompt: str, sampling: Sampling, number: int = 0) -> None:
        if not loaded.model.causal:
            raise UserError(
                f"This model does not write on: only a causal Transformer (the GPTs) does. {describe_use(loaded)}"
            )
        loaded.require_trained_head()
        ids = loaded.tokenizer.encode(prompt).ids
        self.prompt, self.limit = prompt, sampling.tokens
        self.key = fold(sampling.seed, "generate", ids.tobytes().hex(), number)
        self.end = None if sampling.past_end else loaded.tokenizer.special.end
        self.framed: list[int] = loaded.objective.frame(ids, None).tolist()
        self.context: int | None = loaded.model.context
        self.room = self.context if sampling.overflow == "stop" else None
        if self.room is not None and len(self.framed) > self.room:
            raise UserError(
                f"The prompt has {len(self.framed)} tokens, and the model sees at most {self.room}: "
                "shorten it, or let it slide (overflow='slide')."
            )
        self.written = StoppingDecoder(StreamDecoder(loaded.tokenizer, ids), sampling.stop)
        self.ids: list[int] = []
        self.pieces: list[str] = []
        self.ended: Ended | None = None
        self.slides = 0

    def take(self, token: int) -> str:
        """Append a token and return the text that is final now."""
        piece = ""
        if token == self.end:
            self.ended = "end"
        else:
            self.ids.append(token)
            piece = self.written.push(token)
            if len(self.ids) == self.limit:
                self.ended = "tokens"
            elif self.room is not None and len(self.framed) + len(self.ids) > self.room:
                self.ended = "context"
        if self.ended is not None:
            piece += self.written.finish()
        if self.written.stopped:
            self.ended = "stop"
        self.pieces.append(piece)
        return piece

    def branch(self) -> Self:
        """Return a copy that can be continued independently (beams)."""
        copied = copy.copy(self)
        copied.written, copied.ids, copied.pieces = self.written.branch(), list(self.ids), list(self.pieces)
        return copied

    def result(self, score: float | None = None) -> Continuation:
        """Return the finished text."""
        assert self.ended is not None
        text = "".join(self.pieces)
        return Continuation(self.prompt, text, tuple(self.ids), self.ended, self.slides, score, self.context)


def generate(
    loaded: InferenceModel, prompts: Sequence[str], sampling: Sampling, samples: int = 1, cached: bool = True
) -> list[Continuation]:
    """Generate `samples` continuations of each prompt, those of the first prompt first."""
    if samples < 1:
        raise UserError(f"samples={samples}: ask for one or more.")
    texts = [Sample(loaded, prompt, sampling, number) for prompt in prompts for number in range(samples)]
    for _ in write(loaded, texts, sampling, cached):
        pass
    return [sample.result() for sample in texts]


def write(
    loaded: InferenceModel, samples: Sequence[Sample], sampling: Sampling, cached: bool = True
) -> Iterator[tuple[Sample, str]]:
    """Generate all samples to their ends; yield (sample, piece of text) as the pieces come."""
    for group in _group_samples(samples, loaded.model):
        prompts = list(dict.fromkeys(tuple(sample.framed) for sample in group))
        reader = Reader(loaded, prompts, cached)
        logits = reader.next_logits()  # of each prompt once, however many samples it has
        if len(prompts) < len(group):
            rows = [prompts.index(tuple(sample.framed)) for sample in group]
            reader.keep(rows)
            logits = logits[rows]
        while True:
            tokens = sampling.choose(logits, [fold(sample.key, len(sample.ids)) for sample in group])
            for sample, token, slides in zip(group, tokens, reader.slides.tolist(), strict=True):
                sample.slides = slides
                piece = sample.take(token)
                if piece:
                    yield sample, piece
            reader.extend(tokens)
            unfinished = [row for row, sample in enumerate(group) if sample.ended is None]
            if len(unfinished) < len(group):
                reader.keep(unfinished)
                group = [group[row] for row in unfinished]
            if not group:
                break
            logits = reader.next_logits()


def _group_samples(samples: Sequence[Sample], model: Model) -> Iterator[list[Sample]]:
    """Yield the samples in order, as many at a time as the cache may hold: bounds memory, never changes a result."""
    size = 2 * 4 * model.layers * model.width  # bytes of a token: a key and a value, float32
    group: list[Sample] = []
    cache_bytes = prompt_tokens = 0
    for sample in samples:
        prompt = min(len(sample.framed), model.max_length)
        need = size * min(prompt + sample.limit, model.max_length)
        if group and (cache_bytes + need > CACHE_BYTES or prompt_tokens + prompt > TOKENS):
            yield group
            group, cache_bytes, prompt_tokens = [], 0, 0
        group.append(sample)
        cache_bytes, prompt_tokens = cache_bytes + need, prompt_tokens + prompt
    if group:
        yield group
