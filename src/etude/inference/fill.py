"""Fill-mask: the likeliest tokens for each blank of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from etude.errors import UserError
from etude.inference.base import InferenceModel, describe_use, gives_logits, spans
from etude.inference.text_inputs import require_text, require_texts
from etude.nn.states import States

MASK = "[MASK]"  # how a blank is written, whatever the tokenizer's own symbol is
LOGITS = 2**22  # numbers that are in memory at once


@dataclass(frozen=True)
class Guess:
    """One token for a blank."""

    token: str
    probability: float
    text: str  # the whole text with the blank filled


def fill(model: InferenceModel, texts: Sequence[str], top: int = 5) -> list[list[Guess]]:
    """Return the likeliest tokens for the one [MASK] of each text; UserError where a text has several."""
    listed = require_texts(texts, "fill")
    filled = fill_texts(model, listed, [top] * len(listed))
    for text, blanks in zip(listed, filled, strict=True):
        if len(blanks) > 1:
            raise UserError(
                f"{text!r:.80} has {len(blanks)} blanks, and fill guesses one: fill_blanks gives a list for each."
            )
    return [guesses for [guesses] in filled]


def fill_blanks(model: InferenceModel, text: str, top: int = 5) -> list[list[Guess]]:
    """Return the likeliest tokens for each [MASK] of a text: one list a blank."""
    [guesses] = fill_texts(model, [require_text(text, "fill_blanks")], [top])
    return guesses


def fill_texts(model: InferenceModel, texts: Sequence[str], tops: Sequence[int]) -> list[list[list[Guess]]]:
    """Return `tops[i]` guesses for each blank of each text, all read in packed forward passes.

    The output layer runs only where a blank is, for all blanks of a pass at once.
    """
    texts_with_blanks = find_blanks(model, texts, tops)
    model.require_trained_head()
    rankings: list[list[Ranking]] = []
    for packed in model.pack_batches(blanks.framed for blanks in texts_with_blanks):
        here = texts_with_blanks[len(rankings) : len(rankings) + len(spans(packed))]
        places = np.concatenate([start + blanks.places for (start, _), blanks in zip(spans(packed), here, strict=True)])
        with torch.no_grad():
            states = model.objective.hidden_for_logits(model.model, packed)
            ranked = _rank_tokens(model, states, places, max(blanks.top for blanks in here))
        rankings += [[next(ranked) for _ in blanks.places] for blanks in here]
    return [
        [_read_guesses(model, blanks, number, ranking) for number, ranking in enumerate(rows)]
        for blanks, rows in zip(texts_with_blanks, rankings, strict=True)
    ]


@dataclass(frozen=True)
class Blanks:
    """A text with blanks, ready to be read."""

    parts: list[str]  # the text between the blanks
    ids: np.ndarray  # without markers
    framed: np.ndarray
    places: np.ndarray  # of the blanks in `framed`
    top: int


def find_blanks(model: InferenceModel, texts: Sequence[str], tops: Sequence[int]) -> list[Blanks]:
    """Encode texts with their blanks; raise UserError where the model fills none, or a text has none."""
    mask = model.tokenizer.special.mask
    if model.objective.predicts_next:
        raise UserError(f"This model predicts what follows, not what is left out. {describe_use(model)}")
    if not gives_logits(model):
        raise UserError(f"This model has no language-model head, so it fills no blanks. {describe_use(model)}")
    if mask is None:
        raise UserError(f"This model's tokenizer has no mask token, so it cannot fill blanks. {describe_use(model)}")
    symbol = model.tokenizer.token(mask)
    parts = [model.tokenizer.normalise(text).replace(symbol, MASK).split(MASK) for text in texts]
    for text, top, pieces in zip(texts, tops, parts, strict=True):
        if top < 1:
            raise UserError(f"top={top}: ask for one guess or more.")
        if not text.strip():
            raise UserError(f"The text is empty: write one with {MASK} where a word is to be guessed.")
        if len(pieces) == 1:
            raise UserError(f"There is no {MASK} in: {text} (write {MASK} where a word is to be guessed)")
    blanks = []
    for top, pieces, ids in zip(tops, parts, _encode_blanks(model, parts, mask), strict=True):
        framed = model.frame(ids)
        places = np.flatnonzero(framed == mask)
        if len(places) < len(pieces) - 1:
            raise UserError(
                f"A blank lies behind the {model.model.context} tokens that the model sees at once: shorten the text."
            )
        blanks.append(Blanks(pieces, ids, framed, places, top))
    return blanks


def _encode_blanks(model: InferenceModel, texts: Sequence[list[str]], mask: int) -> list[np.ndarray]:
    """Encode texts, given by the parts between their blanks, with one mask token a blank.

    Where the space before a word belongs to its token (byte-level BPE), a blank takes that space too: in
    pre-training the token that was masked had it.
    """
    takes_space = model.tokenizer.has_space_tokens
    symbol = model.tokenizer.token(mask)
    joined = [
        symbol.join([*(part.removesuffix(" ") if takes_space else part for part in parts[:-1]), parts[-1]])
        for parts in texts
    ]
    return [encoding.ids for encoding in model.tokenizer.encode_batch(joined, special=True)]


@dataclass(frozen=True)
class Ranking:
    """The likeliest tokens for one blank, best first."""

    tokens: list[int]
    probabilities: list[float]


def _rank_tokens(model: InferenceModel, states: States, places: np.ndarray, top: int) -> Iterator[Ranking]:
    """Yield the `top` likeliest tokens at each place of a packed batch; the logits of a few places are in memory."""
    rows = max(1, LOGITS // model.model.target_vocab)
    for start in range(0, len(places), rows):
        index = torch.from_numpy(places[start : start + rows]).to(states.last.device)
        part = replace(states, last=states.last.index_select(0, index))
        logits = model.objective.logits(model.model, part).float()  # (blanks, V)
        if model.ids_without_token is not None:
            logits = logits.masked_fill(model.ids_without_token, float("-inf"))
        best = logits.topk(min(top, logits.shape[1]))
        probabilities = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
        counts = best.values.isfinite().sum(-1)  # behind them come rows without a token
        for tokens, values, count in zip(best.indices.tolist(), probabilities.tolist(), counts.tolist(), strict=True):
            yield Ranking(tokens[:count], values[:count])


def _read_guesses(model: InferenceModel, blanks: Blanks, number: int, ranking: Ranking) -> list[Guess]:
    """Return the guesses for blank `number`, each with the whole text."""
    left, right = MASK.join(blanks.parts[: number + 1]), MASK.join(blanks.parts[number + 1 :])
    place = int(np.flatnonzero(blanks.ids == model.tokenizer.special.mask)[number])
    before = blanks.ids[max(0, place - 1) : place]
    return [
        Guess(model.tokenizer.token(index), value, _fill_blank(model, left, index, before) + right)
        for index, value in list(zip(ranking.tokens, ranking.probabilities, strict=True))[: blanks.top]
    ]


def _fill_blank(model: InferenceModel, left: str, index: int, before: np.ndarray) -> str:
    """Return the text up to a blank, followed by the token as it is written there."""
    piece = model.tokenizer.decode([*before, index])[len(model.tokenizer.decode(before)) :]
    if model.tokenizer.has_space_tokens:
        return left.removesuffix(" ") + piece
    if model.tokenizer.kind not in ("word", "wordpiece"):
        return left + piece
    if not len(before):
        return left + piece.removeprefix("##")
    # spaces are no tokens here: the text has its own, and decoding leaves them out before what continues a word
    return left + piece[1:] if piece.startswith(" ") else left.rstrip(" ") + piece
