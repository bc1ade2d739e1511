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
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from etude.chance import fold, fold_arrays, gumbel
from etude.errors import UserError
from etude.inference.base import InferenceModel, describe_use
from etude.inference.reader import Reader
from etude.nn.packed import send_array
from etude.nn.top_tokens import choose_likeliest
from etude.text.tokenizer.stream_decoder import StoppingDecoder, StreamDecoder

Ended = Literal["tokens", "end", "stop", "context"]
Overflow = Literal["slide", "stop"]
Rule = Literal["usual", "gpt2"]
CACHE_BYTES = 2**30  # bytes of keys and values held at once: more prompts than fit are continued in turn
CACHE_SHARE = 4  # on a GPU: of its free memory, the bytes above or one part in so many, whichever is more
TOKENS = 16_384  # of prompts read at once
AHEAD = 8  # tokens of each text that a GPU writes before the host looks at them: a lot
LOTS = 2  # that are under way at once, so that the GPU has the next one when it ends one


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
        if not 0 <= self.temperature < math.inf:
            raise UserError(
                f"temperature={self.temperature} is below 0 or not finite: take 0 for the likeliest token, 1 as it is."
            )
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
        """Sample a token for each row of (S, V) logits, with one random key a row."""
        return self.draw(logits, self.send_keys(np.array(keys, np.uint64), logits.device)).tolist()

    def send_keys(self, keys: np.ndarray, device: torch.device) -> Tensor:
        """Random keys, uint64, as `draw` takes them on a device, without waiting for what it does at the moment."""
        return send_array(keys.view(np.int64), device)

    def draw(self, logits: Tensor, keys: Tensor | None) -> Tensor:
        """Sample (S,) tokens from (S, V) logits and (S,) keys (the Gumbel-max trick), without waiting for a GPU.

        The likeliest tokens (temperature 0) need no keys.
        """
        if self.temperature == 0:
            return choose_likeliest(logits)
        assert keys is not None
        logits = self.filter_logits(logits)
        noise = gumbel(keys[:, None], torch.arange(logits.shape[1], device=logits.device))
        return (logits + noise).argmax(-1)

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


# --- generation -------------------------------------------------------------------------------------


class Sample:
    """A text being generated: sample `number` of its prompt."""

    def __init__(
        self,
        loaded: InferenceModel,
        prompt: str,
        sampling: Sampling,
        number: int = 0,
        ids: np.ndarray | None = None,
    ) -> None:
        """`ids` are those of the prompt, where they are known."""
        if not loaded.model.causal:
            raise UserError(
                f"This model does not write on: only a causal Transformer (the GPTs) does. {describe_use(loaded)}"
            )
        loaded.require_trained_head()
        ids = loaded.tokenizer.encode_ids([prompt])[0] if ids is None else ids
        self.prompt, self.limit = prompt, sampling.tokens
        self._origin = sampling.seed, ids, number
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

    @cached_property
    def key(self) -> int:
        """The random key of this sample; the likeliest tokens need none."""
        seed, ids, number = self._origin
        return fold(seed, "generate", ids.tobytes().hex(), number)

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

    def take_all(self, tokens: Sequence[int]) -> str:
        """Append tokens, those behind the end of the text left out, and return the text that is final now."""
        if len(tokens) == 1 or self.written.stops:
            taken = (self.take(token) for token in tokens if self.ended is None)
            return "".join(taken)
        left = self.limit - len(self.ids)
        room = len(tokens) if self.room is None else self.room + 1 - len(self.framed) - len(self.ids)
        tokens = tokens[: min(left, room)]
        if self.end is not None and self.end in tokens:
            tokens, self.ended = tokens[: tokens.index(self.end)], "end"
        elif len(tokens) == left:
            self.ended = "tokens"
        elif len(tokens) == room and self.room is not None:
            self.ended = "context"
        self.ids += tokens
        piece = self.written.push_all(tokens)
        if self.ended is not None:
            piece += self.written.finish()
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
    encoded = zip(prompts, loaded.tokenizer.encode_ids(prompts), strict=True)
    texts = [Sample(loaded, prompt, sampling, n, ids) for prompt, ids in encoded for n in range(samples)]
    for _ in write(loaded, texts, sampling, cached):
        pass
    return [sample.result() for sample in texts]


def write(
    loaded: InferenceModel, samples: Sequence[Sample], sampling: Sampling, cached: bool = True
) -> Iterator[tuple[Sample, str]]:
    """Generate all samples to their ends; yield (sample, piece of text) as the pieces come."""
    for group in _group_samples(samples, loaded):
        prompts = list(dict.fromkeys(tuple(sample.framed) for sample in group))
        with Reader(loaded, prompts, cached) as reader:
            logits: Tensor | None = None
            if len(prompts) < len(group):  # a prompt is read once, however many samples it has
                rows = [prompts.index(tuple(sample.framed)) for sample in group]
                logits = reader.next_logits()[rows]
                reader.keep(rows)
            tokens = reader.write(_Drawing(sampling, group, reader.device), logits)  # (steps, S)
            while group:
                # the device writes on while the host looks at what it has written
                _write_ahead(reader, sampling, group, len(tokens))
                for sample, new, slides in zip(group, zip(*tokens, strict=True), reader.slides.tolist(), strict=True):
                    sample.slides = slides
                    piece = sample.take_all(new)
                    if piece:
                        yield sample, piece
                unfinished = [row for row, sample in enumerate(group) if sample.ended is None]
                if len(unfinished) < len(group):  # rows change places when nothing is under way
                    tokens = [step for _ in reader.steps_under_way for step in reader.collect()]
                    reader.keep(unfinished)
                    group = [group[row] for row in unfinished]
                    tokens = [[step[row] for row in unfinished] for step in tokens]
                else:
                    tokens = reader.collect() if reader.steps_under_way else []
                if group and not tokens:
                    tokens = reader.write(_Drawing(sampling, group, reader.device))


def _write_ahead(reader: Reader, sampling: Sampling, samples: Sequence[Sample], unseen: int) -> None:
    """Let the device have LOTS of tokens under way; `unseen` the host has, and the samples have not."""
    while len(under_way := reader.steps_under_way) < LOTS:
        draw = _Drawing(sampling, samples, reader.device, unseen + sum(under_way))
        if not draw.steps or not reader.write_ahead(draw):
            return


class _Drawing:
    """The choice of the next tokens of some samples, with their keys on the device beforehand."""

    def __init__(self, sampling: Sampling, samples: Sequence[Sample], device: torch.device, ahead: int = 0) -> None:
        """`ahead`: tokens of each that are written, or being written, and that the sample has not."""
        self.sampling = sampling
        counts = np.array([len(sample.ids) + ahead for sample in samples])
        left = max(sample.limit - int(count) for sample, count in zip(samples, counts, strict=True))
        self.steps = max(0, min(AHEAD, left))
        self.keys: Tensor | None = None  # (steps, S)
        if sampling.temperature == 0 or not self.steps:
            return
        keys = np.array([sample.key for sample in samples], np.uint64)
        numbers = counts + np.arange(self.steps)[:, None]  # (steps, S)
        self.keys = sampling.send_keys(fold_arrays(np.broadcast_to(keys, numbers.shape), numbers), device)

    def __call__(self, logits: Tensor, step: int) -> Tensor:
        """The tokens (S,) of a step, from its logits (S, V)."""
        return self.sampling.draw(logits, None if self.keys is None else self.keys[step])


def _find_cache_limit(device: torch.device) -> int:
    """The bytes of keys and values that may be held at once."""
    return CACHE_BYTES if device.type != "cuda" else max(CACHE_BYTES, torch.cuda.mem_get_info(device)[0] // CACHE_SHARE)


def _group_samples(samples: Sequence[Sample], loaded: InferenceModel) -> Iterator[list[Sample]]:
    """Yield the samples in order, as many at a time as the cache may hold: bounds memory, never changes a result."""
    model, limit = loaded.model, _find_cache_limit(torch.device(loaded.device))
    size = 2 * 4 * model.layers * model.width  # bytes of a token: a key and a value, float32
    group: list[Sample] = []
    cache_bytes = prompt_tokens = 0
    for sample in samples:
        prompt = min(len(sample.framed), model.max_length)
        need = size * min(prompt + sample.limit, model.max_length)
        if group and (cache_bytes + need > limit or prompt_tokens + prompt > TOKENS):
            yield group
            group, cache_bytes, prompt_tokens = [], 0, 0
        group.append(sample)
        cache_bytes, prompt_tokens = cache_bytes + need, prompt_tokens + prompt
    if group:
        yield group
