"""Fill-mask: the likeliest tokens for each blank of a text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.inference.base import InferenceModel

MASK = "[MASK]"  # how a blank is written, whatever the tokenizer's own symbol is


@dataclass(frozen=True)
class Guess:
    """One token for a blank."""

    token: str
    probability: float
    text: str  # the whole text with the blank filled


def fill(model: InferenceModel, text: str, top: int = 5) -> list[Guess] | list[list[Guess]]:
    """The likeliest tokens for each [MASK]; a list of guesses, or one such list a blank where there are several."""
    mask = model.tokenizer.special.mask
    if model.objective.predicts_next:
        raise UserError("This model predicts what follows, not what is left out: use generate.")
    if mask is None:
        raise UserError("This model's tokenizer has no mask token, so it cannot fill blanks.")
    if top < 1:
        raise UserError(f"top={top}: ask for one guess or more.")
    parts = model.tokenizer.normalise(text).replace(model.tokenizer.token(mask), MASK).split(MASK)
    if len(parts) == 1:
        raise UserError(f"There is no {MASK} in: {text}")
    ids = _with_blanks(model, parts, mask)
    framed = model.frame(ids)
    places = np.flatnonzero(framed == mask)
    if len(places) < len(parts) - 1:
        raise UserError(
            f"A blank lies behind the {model.model.context} tokens that the model sees at once: shorten the text."
        )
    scores = torch.from_numpy(model.logits([framed])[0])
    found = [_guesses(model, parts, number, ids, scores[place], top) for number, place in enumerate(places)]
    return found[0] if len(found) == 1 else found


def _with_blanks(model: InferenceModel, parts: list[str], mask: int) -> np.ndarray:
    """The ids of a text with one mask token a blank.

    Where the space before a word belongs to its token (byte-level BPE), a blank takes that space too: in
    pre-training the token that was masked had it.
    """
    takes_space = _space_in_tokens(model)
    symbol = model.tokenizer.token(mask)
    lefts = [part.removesuffix(" ") if takes_space else part for part in parts[:-1]]
    return model.tokenizer.encode(symbol.join([*lefts, parts[-1]]), special=True).ids


def _space_in_tokens(model: InferenceModel) -> bool:
    """Are there tokens of a space and letters? It is written as itself, as Ġ (byte level) or as ▁."""
    return any(len(token) > 1 and token[0] in " Ġ▁" for token in model.tokenizer.backend.get_vocab())


def _guesses(
    model: InferenceModel, parts: list[str], number: int, ids: np.ndarray, scores: Tensor, top: int
) -> list[Guess]:
    if model.nameless is not None:
        scores = scores.masked_fill(model.nameless.cpu(), float("-inf"))
    indices = scores.topk(min(top, int(scores.isfinite().sum()))).indices
    values = scores.softmax(-1)[indices]
    left, right = MASK.join(parts[: number + 1]), MASK.join(parts[number + 1 :])
    place = int(np.flatnonzero(ids == model.tokenizer.special.mask)[number])
    return [
        Guess(model.tokenizer.token(index), value, _filled(model, left, index, ids[max(0, place - 1) : place]) + right)
        for value, index in zip(values.tolist(), indices.tolist(), strict=True)
    ]


def _filled(model: InferenceModel, left: str, index: int, before: np.ndarray) -> str:
    """The text up to a blank, and behind it the token as it reads there."""
    piece = model.tokenizer.decode([*before, index])[len(model.tokenizer.decode(before)) :]
    if _space_in_tokens(model):
        return left.removesuffix(" ") + piece
    if model.tokenizer.kind not in ("word", "wordpiece"):
        return left + piece
    if not len(before):
        return left + piece.removeprefix("##")
    # spaces are no tokens here: the text has its own, and decoding leaves them out before what continues a word
    return left + piece[1:] if piece.startswith(" ") else left.rstrip(" ") + piece
