"""Texts of many requests generated together: each step writes one token of every text (continuous batching).

A request joins between two tokens, with its whole prompt, and leaves when its texts have ended or its client has gone.
Noise is a hash of (seed, prompt, token) and sequences never see each other, so a text is the one it would be alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from etude.chance import fold
from etude.inference.generation import CACHE_BYTES, TOKENS, Continuation, Sample, Sampling
from etude.inference.model import LoadedModel
from etude.inference.reader import Reader
from etude.serve.requests import GenerateRequest


@dataclass(frozen=True)
class Piece:
    """New text of one of a request's texts; with its end, the whole of it."""

    number: int  # of the text in the request
    text: str
    continuation: Continuation | None = None


@dataclass(eq=False)
class GenerateJob:
    """A request for texts; the engine calls `deliver` with pieces, or with the exception that ends the request."""

    request: GenerateRequest
    deliver: Callable[[list[Piece] | Exception], None]
    cancelled: bool = False
    unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = len(self.request.texts())

    def sampling(self) -> Sampling:
        """The settings of the request."""
        request = self.request
        return Sampling(
            request.tokens, request.temperature, request.top_k, request.top_p, seed=request.seed, stop=request.stop
        )


@dataclass(eq=False)
class _Text:
    """One text that is being written."""

    job: GenerateJob
    number: int
    sampling: Sampling
    sample: Sample


class TextGenerator:
    """Writes the texts of all requests to one model, a token of each a step."""

    def __init__(self, model: LoadedModel, most_texts: int) -> None:
        self.model = model
        row_bytes = 2 * 4 * model.model.layers * model.model.width * model.model.max_length  # keys and values, float32
        self.most_texts = max(1, min(most_texts, CACHE_BYTES // row_bytes))
        self.waiting: deque[_Text] = deque()
        self.texts: list[_Text] = []  # a row of the reader each
        self.reader: Reader | None = None
        self.new_tokens = 0  # since the start, for /metrics

    def add(self, job: GenerateJob) -> None:
        """Queue the texts of a request; raises UserError where one cannot be written on."""
        sampling = job.sampling()
        texts = [
            _Text(job, number, sampling, Sample(self.model, prompt, sampling))
            for number, prompt in enumerate(job.request.texts())
        ]
        self.waiting.extend(texts)

    @property
    def is_idle(self) -> bool:
        return not self.texts and not self.waiting

    def step(self) -> None:
        """Write one token of each text, and deliver what is new; a fault ends the requests that took part."""
        try:
            self._leave([row for row, text in enumerate(self.texts) if not text.job.cancelled])
            self._join()
            if self.reader is not None:
                self._write(self.reader)
        except Exception as fault:
            self.fail(fault)

    def fail(self, fault: Exception) -> None:
        """End all requests by an exception."""
        jobs = dict.fromkeys(text.job for text in [*self.texts, *self.waiting])
        if self.reader is not None:
            self.reader.close()
        self.texts, self.reader = [], None
        self.waiting.clear()
        for job in jobs:
            job.deliver(fault)

    def _join(self) -> None:
        new: list[_Text] = []
        tokens = 0  # of prompts that are read in this step: bounds its memory, and how long the texts of others wait
        while self.waiting and len(self.texts) + len(new) < self.most_texts:
            length = min(len(self.waiting[0].sample.framed), self.model.model.max_length)
            if new and tokens + length > TOKENS:
                break
            text = self.waiting.popleft()
            if not text.job.cancelled:
                new.append(text)
                tokens += length
        if not new:
            return
        self.texts += new  # before their prompts are read: a fault of that must reach them, too
        prompts = [text.sample.framed for text in new]
        if self.reader is None:
            self.reader = Reader(self.model, prompts)
        else:
            self.reader.add(prompts)

    def _write(self, reader: Reader) -> None:
        logits = reader.next_logits()  # (S, V)
        tokens = [0] * len(self.texts)
        groups: dict[tuple[float, int | None, float | None], list[int]] = {}
        for row, text in enumerate(self.texts):
            groups.setdefault((text.sampling.temperature, text.sampling.top_k, text.sampling.top_p), []).append(row)
        for rows in groups.values():
            keys = [fold(self.texts[row].sample.key, len(self.texts[row].sample.ids)) for row in rows]
            chosen = self.texts[rows[0]].sampling.choose(logits if len(groups) == 1 else logits[rows], keys)
            for row, token in zip(rows, chosen, strict=True):
                tokens[row] = token
        self.new_tokens += len(tokens)
        pieces: dict[GenerateJob, list[Piece]] = {}
        for text, token, slides in zip(self.texts, tokens, reader.slides.tolist(), strict=True):
            text.sample.slides = slides
            piece = text.sample.take(token)
            ended = text.sample.ended is not None
            if piece or ended:
                continuation = text.sample.result() if ended else None
                pieces.setdefault(text.job, []).append(Piece(text.number, piece, continuation))
        reader.extend(tokens)
        self._leave([row for row, text in enumerate(self.texts) if text.sample.ended is None])
        for job, new in pieces.items():
            job.unfinished -= sum(piece.continuation is not None for piece in new)
            job.deliver(new)

    def _leave(self, rows: list[int]) -> None:
        """Keep only these rows."""
        if len(rows) == len(self.texts):
            return
        self.texts = [self.texts[row] for row in rows]
        if not rows and self.reader is not None:
            self.reader.close()
            self.reader = None
        elif self.reader is not None:
            self.reader.keep(rows)
