"""A document in windows that overlap, and which window a token is scored in (BERT's run_squad).

Windows start every `stride` tokens. A token in several of them is scored in the one where it has the most context:
max over windows of min(tokens to its left, tokens to its right) + 0.01 * length of the window.

BERT's code lets an answer be lost: its first token may have its most context in a window that ends before the answer
does. Here the stride is shortened where that could happen for an answer of `answer` tokens, so that every such
answer can be given. With BERT's own numbers (384, 128, 30) nothing changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from etude.errors import UserError

SMALLEST = 8  # tokens of a document in one window: with fewer, hardly an answer fits


@dataclass(frozen=True)
class Windows:
    starts: np.ndarray  # (W,)
    stops: np.ndarray  # (W,)
    scored_in: np.ndarray  # (tokens,) the window each token is scored in
    answer: int  # the longest answer that can be given


def windows(tokens: int, room: int, stride: int, answer: int) -> Windows:
    """Windows of at most `room` tokens over a document of so many."""
    if room < SMALLEST:
        raise UserError(
            f"The question leaves room for {max(0, room)} tokens of the text in a sequence: set a larger task.length, "
            "or a smaller task.question."
        )
    if tokens > room:  # else one window holds every answer
        answer = min(answer, max(1, room // 4))
    stride = max(1, min(stride, room - 2 * answer - 2 - math.ceil(0.02 * room)))
    starts = [0]
    while starts[-1] + room < tokens:
        starts.append(starts[-1] + stride)
    begin = np.array(starts)
    end = np.minimum(begin + room, tokens)
    scored_in, most = np.zeros(tokens, np.int64), np.full(tokens, -np.inf)
    for number, (start, stop) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        places = np.arange(stop - start)
        context = np.minimum(places, places[::-1]) + 0.01 * (stop - start)
        is_more = context > most[start:stop]  # of equals the first window stays
        most[start:stop][is_more], scored_in[start:stop][is_more] = context[is_more], number
    return Windows(begin, end, scored_in, answer)
