"""Beam search: the likeliest whole text, nearly, in place of the likeliest next token.

`beams` beginnings are kept; each step extends them by every token and keeps the likeliest again. A text is over at
end-of-text or at a stop string. Longer texts are less likely, so texts of different lengths are compared by

    log-probability / ((5 + n) / 6) ** penalty,     n tokens, the end-of-text among them

(Wu et al. 2016, equation 14). GPT-3 wrote its free-form answers with 4 beams and penalty 0.6 (section 2.4).
The search ends when no beginning can become better than the best text that is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.inference.generation import Continuation, Reader, Sample, Sampling


def length_penalty(tokens: int, penalty: float) -> float:
    return ((5 + tokens) / 6) ** penalty


def search(
    loaded: InferenceModel,
    prompt: str,
    tokens: int = 40,
    *,
    beams: int = 4,
    penalty: float = 0.6,
    stop: Sequence[str] = (),
    cached: bool = True,
) -> list[Continuation]:
    """At most `beams` texts, best first: those that are over, or where none is after `tokens` tokens, the beginnings.

    A text that fills the context slides, as in sampling.
    """
    if beams < 1:
        raise UserError(f"beams={beams}: keep one or more.")
    if penalty < 0:
        raise UserError(f"penalty={penalty} is below 0: 0 compares log-probabilities, 1 nearly their means a token.")
    sampling = Sampling(tokens=tokens, stop=stop)
    alive = [Sample(loaded, prompt, sampling)]  # row for row the sequences of the reader
    reader = Reader(loaded, [alive[0].framed], cached)
    likelihoods = torch.zeros(1, dtype=torch.float64)
    over: list[tuple[float, Sample]] = []
    for length in range(1, tokens + 1):
        likely = reader.scores().double().log_softmax(-1).cpu()  # (S, V)
        vocab = likely.shape[1]
        total = (likelihoods[:, None] + likely).flatten()
        # of so many, at most one a beginning is its end-of-text: enough others are left, unless stop strings end them
        best = total.topk(min(2 * beams, len(total)))
        kept: list[tuple[float, int, Sample]] = []
        for value, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if value == float("-inf") or len(kept) == beams:
                break
            row, token = divmod(place, vocab)
            text = alive[row].branch()
            text.slides = int(reader.slides[row])
            text.take(token)
            if text.ended in ("end", "stop"):
                over.append((value / length_penalty(length, penalty), text))
            else:
                kept.append((value, row, text))
        over = sorted(over, key=lambda one: one[0], reverse=True)[:beams]
        # a log-probability only falls, and the longest text has the largest divisor
        if not kept or (over and over[0][0] >= kept[0][0] / length_penalty(tokens, penalty)):
            break
        likelihoods = torch.tensor([value for value, _, _ in kept], dtype=torch.float64)
        alive = [text for _, _, text in kept]
        reader.keep([row for _, row, _ in kept])
        reader.extend([text.ids[-1] for text in alive])
    unfinished = [
        (value / length_penalty(tokens, penalty), text) for value, text in zip(likelihoods.tolist(), alive, strict=True)
    ]
    return [text.result(score) for score, text in over or unfinished]
