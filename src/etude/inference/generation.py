"""Text from a causal model: one token after the other, drawn from what the model says comes next.

The choice of a token, in the order of GPT-2's released code (sample.py): temperature, then the `top_k` likeliest, then
the likeliest that have `top_p` of the probability together; temperature 0 takes the likeliest (greedy).

Chance is a hash of (seed, the prompt's own ids, number of the sample, number of the token): a sample is the same
whatever other prompts are in the call, and its beginning is the same however many tokens are asked for.

Prompts of several lengths are read and continued together, without padding, from kept keys and values (nn/attention/kv_cache.py).
A text that fills the context slides: the older half is left out, the newer half is read again from position 0, and
the text goes on; or it stops there (`overflow`). `cached=False` reads the whole window anew for every token: slow,
and what the cache is tested against.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from etude.chance import fold, gumbel
from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.models.base import Model
from etude.nn.attention.kv_cache import KVCache
from etude.nn.packed import pack
from etude.nn.precision import upcast
from etude.text.tokenizer.stream_decoder import StoppingDecoder, StreamDecoder

Ended = Literal["tokens", "end", "stop", "context"]
Overflow = Literal["slide", "stop"]
Rule = Literal["usual", "gpt2"]
KEPT = 2**30  # bytes of keys and values held at once: more prompts than fit are continued in turn
TOKENS = 16_384  # of prompts read at once


@dataclass(frozen=True)
class Continuation:
    """What was written behind a prompt."""

    prompt: str
    text: str
    ids: tuple[int, ...]  # the tokens written, without the end-of-text that ended them
    ended: Ended  # by the number of tokens, end-of-text, a stop string, or the end of the context
    slides: int = 0  # how often the older half of the context was left out
    score: float | None = None  # beam search: log-probability over the length penalty
    context: int | None = field(default=None, compare=False)  # tokens the model sees at most

    def __str__(self) -> str:
        return self.prompt + self.text


# --- how to write -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How texts are written, and the choice of a token from its scores.

    Scores equal to the last one kept are kept too, so no order among equals matters.
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

    def choose(self, scores: Tensor, keys: Sequence[int]) -> list[int]:
        """(S, V), a key each -> a token each."""
        if self.temperature == 0:
            return scores.argmax(-1).tolist()
        scores = self.kept(scores)
        key = torch.from_numpy(np.array(keys, np.uint64).view(np.int64)).to(scores.device)
        noise = gumbel(key[:, None], torch.arange(scores.shape[1], device=scores.device))
        return (scores + noise).argmax(-1).tolist()

    def kept(self, scores: Tensor) -> Tensor:
        """(S, V) scores under the temperature, minus infinity where a token is ruled out."""
        scores = (scores - scores.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[1]:
            scores = _at_least(scores, scores.topk(self.top_k).values[:, -1:])
        if self.top_p is not None and self.top_p < 1:
            falling = scores.sort(-1, descending=True).values
            share = falling.double().softmax(-1)
            upto = share.cumsum(-1)
            inside = upto <= self.top_p if self.top_p_rule == "gpt2" else upto - share < self.top_p
            last = (inside.sum(-1, keepdim=True) - 1).clamp(min=0)
            scores = _at_least(scores, falling.gather(1, last))
        return scores


def _at_least(scores: Tensor, least: Tensor) -> Tensor:
    return scores.masked_fill(scores < least, float("-inf"))


# --- what comes next --------------------------------------------------------------------------------


def window_start(length: int, context: int, stride: int) -> int:
    """The first token that is seen when the one behind `length` tokens is predicted.

    Windows begin at multiples of the stride, and the first one that reaches is taken: it sees most of the past.
    """
    return 0 if length <= context else -(-(length - context) // stride) * stride


class Reader:
    """Sequences that grow, and the scores of what follows each."""

    def __init__(self, loaded: InferenceModel, sequences: Sequence[Sequence[int]], cached: bool = True) -> None:
        self.model, self.objective, self.device = loaded.model, loaded.objective, loaded.device
        self.context = self.model.max_length
        self.stride = max(1, self.context // 2)
        self.sequences = [list(map(int, sequence)) for sequence in sequences]
        self.starts = np.zeros(len(self.sequences), np.int64)
        self.slides = np.zeros(len(self.sequences), np.int64)
        self.cache = KVCache() if cached else None
        self.nameless = loaded.nameless

    @torch.no_grad()
    def scores(self) -> Tensor:
        """(S, V) of the token behind each sequence; minus infinity for ids that are no token."""
        starts = np.array([window_start(len(one), self.context, self.stride) for one in self.sequences], np.int64)
        moved = np.flatnonzero(starts != self.starts)
        self.slides[moved] += 1
        self.starts = starts
        kept = np.zeros_like(starts)
        if self.cache is not None and self.cache.keys:
            self.cache.reset(moved)
            kept = self.cache.lengths
        new = [sequence[start:] for sequence, start in zip(self.sequences, starts + kept, strict=True)]
        if self.cache is None:
            packed = pack(new).to(self.device)
            states = self.model(packed)
        else:
            packed = self.cache.pack(new).to(self.device)
            states = self.model(packed, cache=self.cache)
        states.last = states.last.index_select(0, packed.layout.bounds[1:].long() - 1)  # (S, D)
        scores = upcast(self.objective.logits(self.model, states))
        return scores if self.nameless is None else scores.masked_fill(self.nameless, float("-inf"))

    def extend(self, tokens: Sequence[int]) -> None:
        """One more token for each sequence."""
        for sequence, token in zip(self.sequences, tokens, strict=True):
            sequence.append(token)

    def keep(self, rows: Sequence[int]) -> None:
        """Only these sequences, in this order; one may be named twice (beams)."""
        index = np.array(rows, np.int64)
        self.sequences = [list(self.sequences[row]) for row in rows]
        self.starts, self.slides = self.starts[index], self.slides[index]
        if self.cache is not None and len(rows):
            self.cache.select(index)


# --- writing ----------------------------------------------------------------------------------------


class Sample:
    """One text in the making: number `number` of its prompt."""

    def __init__(self, loaded: InferenceModel, prompt: str, sampling: Sampling, number: int = 0) -> None:
        if not loaded.model.causal:
            raise UserError(
                "This model does not write on: only a causal Transformer (the GPTs) does. "
                "A masked model fills blanks: use fill."
            )
        loaded.must_speak()
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
        """One more token: the piece of text that is certain now."""
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
        """A second text that begins as this one (beams)."""
        other = copy.copy(self)
        other.written, other.ids, other.pieces = self.written.branch(), list(self.ids), list(self.pieces)
        return other

    def result(self, score: float | None = None) -> Continuation:
        assert self.ended is not None
        text = "".join(self.pieces)
        return Continuation(self.prompt, text, tuple(self.ids), self.ended, self.slides, score, self.context)


def generate(
    loaded: InferenceModel, prompts: Sequence[str], sampling: Sampling, samples: int = 1, cached: bool = True
) -> list[Continuation]:
    """`samples` continuations of each prompt, those of the first prompt first."""
    if samples < 1:
        raise UserError(f"samples={samples}: ask for one or more.")
    made = [Sample(loaded, prompt, sampling, number) for prompt in prompts for number in range(samples)]
    for _ in write(loaded, made, sampling, cached):
        pass
    return [sample.result() for sample in made]


def write(
    loaded: InferenceModel, samples: Sequence[Sample], sampling: Sampling, cached: bool = True
) -> Iterator[tuple[Sample, str]]:
    """Writes all samples to their ends; (sample, piece of text) as the pieces come."""
    for group in _groups(samples, loaded.model):
        prompts = list(dict.fromkeys(tuple(sample.framed) for sample in group))
        reader = Reader(loaded, prompts, cached)
        scores = reader.scores()  # of each prompt once, however many samples it has
        if len(prompts) < len(group):
            rows = [prompts.index(tuple(sample.framed)) for sample in group]
            reader.keep(rows)
            scores = scores[rows]
        while True:
            chosen = sampling.choose(scores, [fold(sample.key, len(sample.ids)) for sample in group])
            for sample, token, slides in zip(group, chosen, reader.slides.tolist(), strict=True):
                sample.slides = slides
                piece = sample.take(token)
                if piece:
                    yield sample, piece
            reader.extend(chosen)
            going = [row for row, sample in enumerate(group) if sample.ended is None]
            if len(going) < len(group):
                reader.keep(going)
                group = [group[row] for row in going]
            if not group:
                break
            scores = reader.scores()


def _groups(samples: Sequence[Sample], model: Model) -> Iterator[list[Sample]]:
    """In order, as many at a time as memory allows: bounds it, never changes a result."""
    size = 2 * 4 * model.layers * model.width  # bytes of a token: a key and a value, float32
    group: list[Sample] = []
    kept = read = 0
    for sample in samples:
        prompt = min(len(sample.framed), model.max_length)
        need = size * min(prompt + sample.limit, model.max_length)
        if group and (kept + need > KEPT or read + prompt > TOKENS):
            yield group
            group, kept, read = [], 0, 0
        group.append(sample)
        kept, read = kept + need, read + prompt
    if group:
        yield group
