"""What an answer behind a text is worth to a causal model: the log-probability of its tokens, and ways to compare it.

Text and answer are encoded together, and the answer is what lies behind the tokens that they share with the text alone:
byte-level BPE joins a space to the word behind it, so spaces at the end of the text belong to the answer too.

Rules to compare answers of different lengths by:

    tokens           the mean log-probability of a token; GPT-3's usual one (section 2.4)
    sum              of the whole answer; lm-evaluation-harness calls its accuracy acc
    characters       the sum over the answer's characters; there acc_norm
    bytes            over its bytes in UTF-8; there acc_bytes
    unconditional    the sum, less that of the same answer behind "Answer:" alone; GPT-3's for ARC, OpenBookQA and RACE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.inference.perplexity import judged_at
from etude.tasks.base import by_length

Rule = Literal["tokens", "sum", "characters", "bytes", "unconditional"]
Rated = dict[Rule, np.ndarray]  # (answers,) by rule: the highest is chosen


@dataclass(frozen=True)
class Answers:
    """A text with each of its possible answers, as tokens."""

    sequences: list[np.ndarray]  # text and answer; the last token is predicted, not read
    firsts: list[int]  # the place of the answer's first token in each
    cut: bool  # whether the beginning of the text was lost


@dataclass(frozen=True)
class Worth:
    """Of the answers of one text, (answers,) each."""

    nats: np.ndarray
    tokens: np.ndarray
    likeliest: np.ndarray  # bool: every token is the one that the model would write


def spelled(loaded: LoadedModel, text: str, answers: Sequence[str]) -> Answers:
    bare = text.rstrip(" ")
    ids = [one.ids for one in loaded.tokenizer.encode_batch([bare, *(text + answer for answer in answers)])]
    before, whole = ids[0], ids[1:]
    framed = loaded.objective.frame(before, None)
    markers = framed[: len(framed) - len(before)]
    sequences, firsts, cut = [], [], False
    for answer, tokens in zip(answers, whole, strict=True):
        shared = _shared(before, tokens)
        shared -= shared == len(tokens)  # an answer that ends in the text's last token has at least that one
        if shared < 0 or not answer.strip():
            raise UserError(f"The tokenizer leaves nothing of the answer '{answer.strip()}'. Choose other words.")
        if not len(markers) + shared:
            raise UserError(f"Nothing stands before the answer '{answer.strip()}': lengthen the template.")
        sequence, first = np.concatenate([markers, tokens]).astype(np.int64), len(markers) + shared
        over = max(0, len(sequence) - 1 - loaded.model.max_length)
        if over >= first:
            raise UserError(
                f"The answer '{answer.strip()[:40]}' leaves no room before it: "
                f"the model sees {loaded.model.max_length} tokens."
            )
        sequences.append(sequence[over:])
        firsts.append(first - over)
        cut = cut or over > 0
    return Answers(sequences, firsts, cut)


def _shared(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two sequences have in common from their beginning."""
    least = min(len(one), len(other))
    differ = np.flatnonzero(one[:least] != other[:least])
    return int(differ[0]) if len(differ) else least


def weigh(loaded: LoadedModel, group: Sequence[Answers]) -> list[Worth]:
    """Of each text's answers. What several answers read, such as a text before answers of one token, is read once."""
    read: dict[bytes, int] = {}
    inputs: list[np.ndarray] = []
    wanted: list[list[tuple[int, int, np.ndarray]]] = []  # of each input: (answer, the place before it, its tokens)
    total = 0
    for one in group:
        for sequence, first in zip(one.sequences, one.firsts, strict=True):
            key = sequence[:-1].tobytes()
            if key not in read:
                read[key] = len(inputs)
                inputs.append(sequence[:-1])
                wanted.append([])
            wanted[read[key]].append((total, first - 1, sequence[first:]))
            total += 1
    nats, tokens, missed = np.zeros(total), np.zeros(total, np.int64), np.zeros(total, np.int64)
    for numbers in by_length([len(one) for one in inputs]):
        (packed,) = loaded.packed([inputs[number] for number in numbers])
        asked = [
            (answer, start + place, ids)
            for start, number in zip(packed.layout.host[:-1].tolist(), numbers, strict=True)
            for answer, place, ids in wanted[number]
        ]
        index = np.concatenate([np.arange(place, place + len(ids)) for _, place, ids in asked])
        owner = np.repeat([answer for answer, _, _ in asked], [len(ids) for _, _, ids in asked])
        found, likeliest = judged_at(loaded, packed, index, np.concatenate([ids for _, _, ids in asked]))
        np.add.at(nats, owner, found.double().numpy())
        np.add.at(tokens, owner, 1)
        np.add.at(missed, owner, ~likeliest.numpy())
    ends = np.cumsum([len(one.sequences) for one in group])[:-1]
    return [
        Worth(*parts) for parts in zip(*(np.split(all_of, ends) for all_of in (nats, tokens, missed == 0)), strict=True)
    ]


def by_rules(worth: Worth, words: Sequence[str], unasked: Worth | None) -> Rated:
    """What answers of these words are worth under each rule; `unasked`, behind what stands before any answer."""
    found: Rated = {
        "tokens": -worth.nats / worth.tokens,
        "sum": -worth.nats,
        "characters": -worth.nats / [max(1, len(word)) for word in words],
        "bytes": -worth.nats / [max(1, len(word.encode())) for word in words],
    }
    if unasked is not None:
        found["unconditional"] = unasked.nats - worth.nats
    return found
