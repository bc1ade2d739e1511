"""Beam search: an approximation of the likeliest whole text.

Each step extends `beams` hypotheses by every token and keeps the `beams` likeliest. A hypothesis is finished at
end-of-text or at a stop string. Longer texts are less likely, so texts of different lengths are compared by

    log-probability / ((5 + n) / 6) ** penalty,     n tokens, the end-of-text among them

(Wu et al. 2016, equation 14). GPT-3 wrote its free-form answers with 4 beams and penalty 0.6 (section 2.4).
The search ends when no unfinished hypothesis can become better than the best finished one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.inference.generation import Continuation, Sample, Sampling
from etude.inference.reader import Reader


def length_penalty(tokens: int, penalty: float) -> float:
    """Return the divisor of a log-probability of `tokens` tokens (Wu et al. 2016, equation 14)."""
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
    """Return at most `beams` texts, best first: the finished ones, or where there are none, those of `tokens` tokens.

    A text that fills the context slides, as in sampling.
    """
    if beams < 1:
        raise UserError(f"beams={beams}: keep one or more.")
    if not 0 <= penalty < math.inf:
        raise UserError(
            f"penalty={penalty} is below 0 or not finite: 0 compares log-probabilities, 1 nearly their means a token."
        )
    first = Sample(loaded, prompt, Sampling(tokens=tokens, stop=stop))
    with Reader(loaded, [first.framed], cached) as reader:
        return _search(reader, first, beams, penalty)


def _search(reader: Reader, first: Sample, beams: int, penalty: float) -> list[Continuation]:
    """Return the best texts that begin with that of `first`."""
    tokens, alive = first.limit, [first]  # row for row the sequences of the reader
    beam_log_probs = torch.zeros(1, dtype=torch.float64)
    finished: list[tuple[float, Sample]] = []
    for length in range(1, tokens + 1):
        log_probs = reader.next_logits().double().log_softmax(-1).cpu()  # (S, V)
        vocab = log_probs.shape[1]
        total = (beam_log_probs[:, None] + log_probs).flatten()
        # each hypothesis has at most one end-of-text among these: enough are left, unless stop strings end them
        best = total.topk(min(2 * beams, len(total)))
        survivors: list[tuple[float, int, Sample]] = []
        for value, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if value == float("-inf") or len(survivors) == beams:
                break
            row, token = divmod(place, vocab)
            text = alive[row].branch()
            text.slides = int(reader.slides[row])
            text.take(token)
            if text.ended in ("end", "stop"):
                finished.append((value / length_penalty(length, penalty), text))
            else:
                survivors.append((value, row, text))
        finished = sorted(finished, key=lambda entry: entry[0], reverse=True)[:beams]
        # a log-probability only falls, and the longest text has the largest divisor
        if not survivors or (finished and finished[0][0] >= survivors[0][0] / length_penalty(tokens, penalty)):
            break
        beam_log_probs = torch.tensor([value for value, _, _ in survivors], dtype=torch.float64)
        alive = [text for _, _, text in survivors]
        reader.keep([row for _, row, _ in survivors])
        reader.extend([text.ids[-1] for text in alive])
    unfinished = [
        (value / length_penalty(tokens, penalty), text)
        for value, text in zip(beam_log_probs.tolist(), alive, strict=True)
    ]
    return [text.result(score) for score, text in finished or unfinished]
