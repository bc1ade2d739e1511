"""Fill-mask: the likeliest tokens for each blank of a text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.inference.base import InferenceModel, describe_use, gives_logits

MASK = "[MASK]"  # how a blank is written, whatever the tokenizer's own symbol is


@dataclass(frozen=True)
class Guess:
    """One token for a blank."""

    token: str
    probability: float
    text: str  # the whole text with the blank filled


def fill(model: InferenceModel, text: str, top: int = 5) -> list[Guess] | list[list[Guess]]:
    """Return the likeliest tokens for each [MASK]: a list of guesses, or a list of lists for several blanks."""
    mask = model.tokenizer.special.mask
    if model.objective.predicts_next:
        raise UserError(f"This model predicts what follows, not what is left out. {describe_use(model)}")
    if not gives_logits(model):
        raise UserError(f"This model has no language-model head, so it fills no blanks. {describe_use(model)}")
    if mask is None:
        raise UserError(f"This model's tokenizer has no mask token, so it cannot fill blanks. {describe_use(model)}")
    if top < 1:
        raise UserError(f"top={top}: ask for one guess or more.")
    parts = model.tokenizer.normalise(text).replace(model.tokenizer.token(mask), MASK).split(MASK)
    if len(parts) == 1:
        raise UserError(f"There is no {MASK} in: {text}")
    ids = _encode_blanks(model, parts, mask)
    framed = model.frame(ids)
    places = np.flatnonzero(framed == mask)
    if len(places) < len(parts) - 1:
        raise UserError(
            f"A blank lies behind the {model.model.context} tokens that the model sees at once: shorten the text."
        )
    logits = torch.from_numpy(model.logits([framed])[0])
    guesses = [_rank_guesses(model, parts, number, ids, logits[place], top) for number, place in enumerate(places)]
    return guesses[0] if len(guesses) == 1 else guesses


def _encode_blanks(model: InferenceModel, parts: list[str], mask: int) -> np.ndarray:
    """Encode a text with one mask token a blank.

    Where the space before a word belongs to its token (byte-level BPE), a blank takes that space too: in
    pre-training the token that was masked had it.
    """
    takes_space = _has_space_tokens(model)
    symbol = model.tokenizer.token(mask)
    lefts = [part.removesuffix(" ") if takes_space else part for part in parts[:-1]]
    return model.tokenizer.encode(symbol.join([*lefts, parts[-1]]), special=True).ids


def _has_space_tokens(model: InferenceModel) -> bool:
    """Whether tokens begin with their space, written as itself, as Ġ (byte level) or as ▁."""
    return any(len(token) > 1 and token[0] in " Ġ▁" for token in model.tokenizer.backend.get_vocab())


def _rank_guesses(
    model: InferenceModel, parts: list[str], number: int, ids: np.ndarray, logits: Tensor, top: int
) -> list[Guess]:
    """Return the `top` likeliest tokens for blank `number`, given its logits (V,)."""
    if model.ids_without_token is not None:
        logits = logits.masked_fill(model.ids_without_token.cpu(), float("-inf"))
    indices = logits.topk(min(top, int(logits.isfinite().sum()))).indices
    probs = logits.softmax(-1)[indices]
    left, right = MASK.join(parts[: number + 1]), MASK.join(parts[number + 1 :])
    place = int(np.flatnonzero(ids == model.tokenizer.special.mask)[number])
    return [
        Guess(
            model.tokenizer.token(index), value, _fill_blank(model, left, index, ids[max(0, place - 1) : place]) + right
        )
        for value, index in zip(probs.tolist(), indices.tolist(), strict=True)
    ]


def _fill_blank(model: InferenceModel, left: str, index: int, before: np.ndarray) -> str:
    """Return the text up to a blank, followed by the token as it is written there."""
    piece = model.tokenizer.decode([*before, index])[len(model.tokenizer.decode(before)) :]
    if _has_space_tokens(model):
        return left.removesuffix(" ") + piece
    if model.tokenizer.kind not in ("word", "wordpiece"):
        return left + piece
    if not len(before):
        return left + piece.removeprefix("##")
    # spaces are no tokens here: the text has its own, and decoding leaves them out before what continues a word
    return left + piece[1:] if piece.startswith(" ") else left.rstrip(" ") + piece
