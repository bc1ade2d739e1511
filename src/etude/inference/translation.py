"""Translation of texts by an encoder-decoder: greedy decoding and beam search, many sources at a time.

Each step extends the hypotheses of every source by all tokens and keeps the `beams` likeliest. A hypothesis that ends
is finished. Finished ones are compared by (Wu et al. 2016, equation 14)

    log P(target | source) / ((5 + n) / 6) ** penalty + coverage * sum_i log(min(sum_j a_ij, 1)),

with n tokens, the end among them, and a_ij the attention of target token j to source token i: what no token looked at
counts against a translation. Vaswani et al. 2017, section 6.1: 4 beams, penalty 0.6, no coverage, at most 50 tokens
more than the source. The search of a source ends when no hypothesis can become better than the finished ones
that are asked for. With one beam it is greedy: the likeliest token each time, until that is the end.

States of the decoder are cached, so a token costs one step; no source sees another, and nothing depends on what else
is translated in the same call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.inference.beam_search import length_penalty
from etude.models.base import require
from etude.models.seq2seq import Seq2Seq
from etude.nn.packed import pack
from etude.nn.precision import upcast
from etude.objectives.translate import Translate

EXTRA = 50  # tokens of a target beyond those of its source, at most
HYPOTHESES = 512  # decoded at once; bounds memory, never changes a result


@dataclass(frozen=True)
class Translation:
    """A target for a source."""

    source: str
    text: str
    ids: tuple[int, ...]  # of the target, without its end
    score: float  # what hypotheses are compared by
    log_prob: float  # of the target and its end
    finished: bool  # False: cut at the greatest length

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Search:
    """Settings of a beam search."""

    beams: int = 4
    penalty: float = 0.6  # of length
    coverage: float = 0.0
    best: int = 1  # translations of each source

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise UserError(f"beams={self.beams}: keep one or more.")
        if not 1 <= self.best <= self.beams:
            raise UserError(f"best={self.best}: {self.beams} beams give from 1 to {self.beams} translations.")
        for name in ("penalty", "coverage"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)} is below 0: 0 leaves it out.")

    def score(self, log_prob: float, tokens: int, attended: np.ndarray | None) -> float:
        """The score of a hypothesis; `attended` (source tokens,) sums the attention of all target tokens."""
        score = log_prob / length_penalty(tokens, self.penalty)
        if self.coverage and attended is not None:
            score += self.coverage * float(np.log(np.clip(attended, 1e-9, 1.0)).sum())
        return score

    def bound(self, log_prob: float, tokens: int) -> float:
        """No continuation up to so many tokens has a higher score: a log-probability and a coverage only fall."""
        return log_prob / length_penalty(tokens, self.penalty)


@dataclass
class _Hypothesis:
    """A target in progress."""

    ids: tuple[int, ...] = ()
    log_prob: float = 0.0
    attended: np.ndarray | None = None  # (source tokens,)


@dataclass
class _Source:
    """One source, its hypotheses and its finished targets."""

    number: int
    tokens: np.ndarray
    limit: int  # tokens of a target, its end among them
    alive: list[_Hypothesis] = field(default_factory=lambda: [_Hypothesis()])
    finished: list[tuple[float, _Hypothesis]] = field(default_factory=list)


def translate(loaded: InferenceModel, texts: Sequence[str], search: Search | None = None) -> list[list[Translation]]:
    """Return the `search.best` translations of each text, best first; of an empty text the empty translation."""
    search = search or Search()
    model, objective = require_translator(loaded)
    sources = _encode_sources(loaded, objective, texts)
    translations: list[list[Translation]] = [[Translation(text, "", (), 0.0, 0.0, True)] for text in texts]
    per_batch = max(1, HYPOTHESES // search.beams)
    # of like lengths together: all hypotheses of a batch are read up to the longest source
    order = sorted(sources, key=lambda source: len(source.tokens))
    for start in range(0, len(order), per_batch):
        for source in _decode(loaded, model, objective, order[start : start + per_batch], search):
            translations[source.number] = _results(loaded, texts[source.number], source, search)[: search.best]
    return translations


def is_translator(loaded: InferenceModel) -> bool:
    """Whether a model translates."""
    return isinstance(loaded.objective, Translate)


def require_translator(loaded: InferenceModel) -> tuple[Seq2Seq, Translate]:
    """The encoder-decoder and its objective; UserError where the model does not translate."""
    message = "This model does not translate: take a run of a recipe such as transformer-small."
    if not isinstance(loaded.objective, Translate):
        raise UserError(message)
    return require(loaded.model, Seq2Seq, message), loaded.objective  # type: ignore[type-abstract]


def _encode_sources(loaded: InferenceModel, objective: Translate, texts: Sequence[str]) -> list[_Source]:
    """The texts that are not empty, framed as in training; UserError where one is too long."""
    limit = loaded.model.max_length
    sources = []
    for number, encoding in enumerate(loaded.tokenizer.encode_batch([" ".join(text.split()) for text in texts])):
        if not len(encoding.ids):
            continue
        if len(encoding.ids) + 1 > limit:
            raise UserError(
                f"Text {number + 1} has {len(encoding.ids)} tokens, and this model reads at most {limit - 1}: split it."
            )
        tokens = objective.frame(encoding.ids.astype(np.int64), None)
        sources.append(_Source(number, tokens, min(limit, len(tokens) + EXTRA)))
    return sources


@torch.no_grad()
def _decode(
    loaded: InferenceModel, model: Seq2Seq, objective: Translate, sources: list[_Source], search: Search
) -> Iterator[_Source]:
    """Yield each source when its search has ended."""
    decoding = model.start_decoding(pack([source.tokens for source in sources]).to(loaded.device))
    tokens = [objective.start_token] * len(sources)
    active = sources
    length = 0
    while active:
        length += 1
        last = decoding.step(torch.tensor(tokens, device=loaded.device))  # (S, D)
        log_probs = upcast(objective.decoder_logits(model, last)).log_softmax(-1)
        if loaded.ids_without_token is not None:
            log_probs = log_probs.masked_fill(loaded.ids_without_token, -torch.inf)
        attention = decoding.attention if search.coverage else None
        values, rows, next_tokens = _best_extensions(log_probs, active, search.beams)
        attended = None if attention is None else attention.float().cpu().numpy()
        kept_rows: list[int] = []
        tokens = []
        remaining = []
        first = 0
        for place, source in enumerate(active):
            parents = source.alive
            survivors = _extend(
                source, zip(values[place], rows[place], next_tokens[place], strict=True), search, objective.end, length,
                None if attended is None else attended[first : first + len(parents), : len(source.tokens)],
            )  # fmt: skip
            if survivors and length < source.limit and not _is_settled(source, survivors, search):
                source.alive = [hypothesis for _, hypothesis in survivors]
                kept_rows += [first + row for row, _ in survivors]
                tokens += [hypothesis.ids[-1] for hypothesis in source.alive]
                remaining.append(source)
            else:
                source.alive = [hypothesis for _, hypothesis in survivors]
                yield source
            first += len(parents)
        active = remaining
        if active:
            decoding.select(np.array(kept_rows))


def _best_extensions(
    log_probs: Tensor, active: list[_Source], beams: int
) -> tuple[list[list[float]], list[list[int]], list[list[int]]]:
    """Of each source the 2 * beams likeliest extensions: log-probability, hypothesis and token.

    Twice as many as are kept: each hypothesis may end in one of them. Sources have up to `beams` hypotheses each.
    """
    device, vocab = log_probs.device, log_probs.shape[1]
    counts = [len(source.alive) for source in active]
    width = max(counts)
    slots = torch.tensor([place * width + row for place, count in enumerate(counts) for row in range(count)])
    totals = torch.tensor([hypothesis.log_prob for source in active for hypothesis in source.alive], device=device)
    padded = log_probs.new_full((len(active) * width, vocab), -torch.inf)
    padded[slots.to(device)] = log_probs + totals[:, None].to(log_probs.dtype)
    flat = padded.view(len(active), width * vocab)
    top = flat.topk(min(2 * beams, flat.shape[1]))
    indices = top.indices.cpu()
    return top.values.tolist(), (indices // vocab).tolist(), (indices % vocab).tolist()


def _extend(
    source: _Source,
    extensions: Iterator[tuple[float, int, int]],
    search: Search,
    end: int,
    length: int,
    attention: np.ndarray | None,
) -> list[tuple[int, _Hypothesis]]:
    """Finish the hypotheses that end; return the others that are kept, each with the row of its parent."""
    survivors: list[tuple[int, _Hypothesis]] = []
    for rank, (log_prob, row, token) in enumerate(extensions):
        if log_prob == float("-inf") or len(survivors) == search.beams:
            break
        parent = source.alive[row]
        attended = None
        if attention is not None:
            attended = attention[row] + (0.0 if parent.attended is None else parent.attended)
        if token != end:
            survivors.append((row, _Hypothesis((*parent.ids, token), log_prob, attended)))
        elif rank < search.beams:  # an end that is not among the likeliest is no candidate
            ended = _Hypothesis(parent.ids, log_prob, attended)
            source.finished.append((search.score(log_prob, length, attended), ended))
            if search.beams == 1:
                return []
    source.finished = sorted(source.finished, key=lambda entry: entry[0], reverse=True)[: search.beams]
    return survivors


def _is_settled(source: _Source, survivors: list[tuple[int, _Hypothesis]], search: Search) -> bool:
    """Whether no hypothesis can become better than the finished ones that are asked for."""
    best_alive = max(hypothesis.log_prob for _, hypothesis in survivors)
    if len(source.finished) < search.best:
        return False
    return source.finished[search.best - 1][0] >= search.bound(best_alive, source.limit)


def _results(loaded: InferenceModel, text: str, source: _Source, search: Search) -> list[Translation]:
    """The finished targets, or where there are none, those cut at the greatest length."""
    is_finished = bool(source.finished)
    scored = source.finished or [
        (search.score(hypothesis.log_prob, len(hypothesis.ids), hypothesis.attended), hypothesis)
        for hypothesis in source.alive
    ]
    return [
        Translation(
            text, loaded.tokenizer.decode(hypothesis.ids, special=False).strip(), hypothesis.ids, score,
            hypothesis.log_prob, is_finished,
        )
        for score, hypothesis in sorted(scored, key=lambda entry: entry[0], reverse=True)
    ]  # fmt: skip
