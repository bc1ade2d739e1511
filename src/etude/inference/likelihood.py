"""Log-likelihood of answers after a text under a causal model, and rules to compare answers.

Text and answer are encoded together, and the answer begins after the tokens shared with the text alone: byte-level BPE
joins a space to the word behind it, so spaces at the end of the text belong to the answer too.

Rules to compare answers of different lengths:

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
from etude.inference.perplexity import score_targets
from etude.tasks.base import by_length

Rule = Literal["tokens", "sum", "characters", "bytes", "unconditional"]
RuleScores = dict[Rule, np.ndarray]  # (answers,) by rule: the highest is chosen


@dataclass(frozen=True)
class Answers:
    """A text with each of its possible answers, as tokens."""

    sequences: list[np.ndarray]  # text and answer; the last token is predicted, not read
    firsts: list[int]  # the position of the answer's first token in each
    cut: bool  # whether the beginning of the text was lost


@dataclass(frozen=True)
class AnswerScores:
    """Scores of the answers of one text, (answers,) each."""

    nats: np.ndarray
    tokens: np.ndarray
    likeliest: np.ndarray  # bool: every token is the argmax, so greedy decoding would generate the answer


def encode_answers(loaded: LoadedModel, text: str, answers: Sequence[str]) -> Answers:
    """Encode a text with each of its possible answers, cut at the left to the context."""
    bare = text.rstrip(" ")
    before, *whole = loaded.tokenizer.encode_ids([bare, *(text + answer for answer in answers)])
    framed = loaded.objective.frame(before, None)
    markers = framed[: len(framed) - len(before)]
    sequences, firsts, cut = [], [], False
    for answer, tokens in zip(answers, whole, strict=True):
        shared = _common_prefix(before, tokens)
        shared -= shared == len(tokens)  # an answer that ends in the text's last token has at least that one
        if shared < 0 or not answer.strip():
            raise UserError(f"The tokenizer leaves nothing of the answer '{answer.strip()}'. Choose other words.")
        if not len(markers) + shared:
            raise UserError(f"Nothing stands before the answer '{answer.strip()}': lengthen the template.")
        sequence, first = np.concatenate([markers, tokens]).astype(np.int64), len(markers) + shared
        overflow = max(0, len(sequence) - 1 - loaded.model.max_length)
        if overflow >= first:
            raise UserError(
                f"The answer '{answer.strip()[:40]}' leaves no room before it: "
                f"the model sees {loaded.model.max_length} tokens."
            )
        sequences.append(sequence[overflow:])
        firsts.append(first - overflow)
        cut = cut or overflow > 0
    return Answers(sequences, firsts, cut)


def _common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """Return the length of the common prefix of two sequences."""
    shorter = min(len(left), len(right))
    differ = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(differ[0]) if len(differ) else shorter


def score_answers(loaded: LoadedModel, group: Sequence[Answers]) -> list[AnswerScores]:
    """Score the answers of each text; an input shared by several answers (of one token each) is read once."""
    input_numbers: dict[bytes, int] = {}
    inputs: list[np.ndarray] = []
    targets: list[list[tuple[int, int, np.ndarray]]] = []  # of each input: (answer, the place before it, its tokens)
    total = 0
    for encoded in group:
        for sequence, first in zip(encoded.sequences, encoded.firsts, strict=True):
            key = sequence[:-1].tobytes()
            if key not in input_numbers:
                input_numbers[key] = len(inputs)
                inputs.append(sequence[:-1])
                targets.append([])
            targets[input_numbers[key]].append((total, first - 1, sequence[first:]))
            total += 1
    nats, tokens, missed = np.zeros(total), np.zeros(total, np.int64), np.zeros(total, np.int64)
    for numbers in by_length([len(encoded) for encoded in inputs]):
        (packed,) = loaded.pack_batches([inputs[number] for number in numbers])
        spans = [
            (answer, start + place, ids)
            for start, number in zip(packed.layout.host[:-1].tolist(), numbers, strict=True)
            for answer, place, ids in targets[number]
        ]
        index = np.concatenate([np.arange(place, place + len(ids)) for _, place, ids in spans])
        owner = np.repeat([answer for answer, _, _ in spans], [len(ids) for _, _, ids in spans])
        target_nats, likeliest = score_targets(loaded, packed, index, np.concatenate([ids for _, _, ids in spans]))
        np.add.at(nats, owner, target_nats.double().numpy())
        np.add.at(tokens, owner, 1)
        np.add.at(missed, owner, ~likeliest.numpy())
    ends = np.cumsum([len(encoded.sequences) for encoded in group])[:-1]
    return [
        AnswerScores(*parts)
        for parts in zip(*(np.split(all_of, ends) for all_of in (nats, tokens, missed == 0)), strict=True)
    ]


def score_by_rule(answer_scores: AnswerScores, words: Sequence[str], unconditional: AnswerScores | None) -> RuleScores:
    """Score answers of these words under each rule; `unconditional` are their scores without the question."""
    scores: RuleScores = {
        "tokens": -answer_scores.nats / answer_scores.tokens,
        "sum": -answer_scores.nats,
        "characters": -answer_scores.nats / [max(1, len(word)) for word in words],
        "bytes": -answer_scores.nats / [max(1, len(word.encode())) for word in words],
    }
    if unconditional is not None:
        scores["unconditional"] = unconditional.nats - answer_scores.nats
    return scores
