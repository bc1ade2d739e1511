"""Fill-mask: the likeliest tokens for each blank of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.inference.base import InferenceModel, describe_use, gives_logits, spans

MASK = "[MASK]"  # how a blank is written, whatever the tokenizer's own symbol is


@dataclass(frozen=True)
class Guess:
    """One token for a blank."""

    token: str
    probability: float
    text: str  # the whole text with the blank filled


def fill(model: InferenceModel, text: str, top: int = 5) -> list[Guess] | list[list[Guess]]:
    """Return the likeliest tokens for each [MASK]: a list of guesses, or a list of lists for several blanks."""
    [guesses] = fill_texts(model, [text], [top])
    return guesses[0] if len(guesses) == 1 else guesses


def fill_texts(model: InferenceModel, texts: Sequence[str], tops: Sequence[int]) -> list[list[list[Guess]]]:
    """Return `tops[i]` guesses for each blank of each text, all read in packed forward passes.

    The output layer runs only where a blank is.
    """
    blanks = [find_blanks(model, text, top) for text, top in zip(texts, tops, strict=True)]
    model.require_trained_head()
    logits: list[Tensor] = []  # of each text: (blanks, V)
    for packed in model.pack_batches(blank.framed for blank in blanks):
        with torch.no_grad():
            states = model.objective.hidden_for_logits(model.model, packed)
            for start, _ in spans(packed):
                places = torch.from_numpy(start + blanks[len(logits)].places).to(states.last.device)
                part = replace(states, last=states.last.index_select(0, places))
                logits.append(model.objective.logits(model.model, part).float().cpu())
    return [
        [_rank_guesses(model, blank, number, row) for number, row in enumerate(rows)]
        for blank, rows in zip(blanks, logits, strict=True)
    ]


@dataclass(frozen=True)
class Blanks:
    """A text with blanks, ready to be read."""

    parts: list[str]  # the text between the blanks
    ids: np.ndarray  # without markers
    framed: np.ndarray
    places: np.ndarray  # of the blanks in `framed`
    top: int


def find_blanks(model: InferenceModel, text: str, top: int) -> Blanks:
    """Encode a text with its blanks; raise UserError where the model fills none, or the text has none."""
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
    return Blanks(parts, ids, framed, places, top)


def _encode_blanks(model: InferenceModel, parts: list[str], mask: int) -> np.ndarray:
    """Encode a text with one mask token a blank.

    Where the space before a word belongs to its token (byte-level BPE), a blank takes that space too: in
    pre-training the token that was masked had it.
    """
    takes_space = model.has_space_tokens
    symbol = model.tokenizer.token(mask)
    lefts = [part.removesuffix(" ") if takes_space else part for part in parts[:-1]]
    return model.tokenizer.encode(symbol.join([*lefts, parts[-1]]), special=True).ids


def _rank_guesses(model: InferenceModel, blanks: Blanks, number: int, logits: Tensor) -> list[Guess]:
    """Return the likeliest tokens for blank `number`, given its logits (V,)."""
    if model.ids_without_token is not None:
        logits = logits.masked_fill(model.ids_without_token.cpu(), float("-inf"))
    indices = logits.topk(min(blanks.top, int(logits.isfinite().sum()))).indices
    probs = logits.softmax(-1)[indices]
    left, right = MASK.join(blanks.parts[: number + 1]), MASK.join(blanks.parts[number + 1 :])
    place = int(np.flatnonzero(blanks.ids == model.tokenizer.special.mask)[number])
    before = blanks.ids[max(0, place - 1) : place]
    return [
        Guess(model.tokenizer.token(index), value, _fill_blank(model, left, index, before) + right)
        for value, index in zip(probs.tolist(), indices.tolist(), strict=True)
    ]


def _fill_blank(model: InferenceModel, left: str, index: int, before: np.ndarray) -> str:
    """Return the text up to a blank, followed by the token as it is written there."""
    piece = model.tokenizer.decode([*before, index])[len(model.tokenizer.decode(before)) :]
    if model.has_space_tokens:
        return left.removesuffix(" ") + piece
    if model.tokenizer.kind not in ("word", "wordpiece"):
        return left + piece
    if not len(before):
        return left + piece.removeprefix("##")
    # spaces are no tokens here: the text has its own, and decoding leaves them out before what continues a word
    return left + piece[1:] if piece.startswith(" ") else left.rstrip(" ") + piece
