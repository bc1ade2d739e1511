"""A trained model in use: `etude.load(run)` gives states, vectors, logits and filled blanks.

Sequences are packed, never padded, so a result does not depend on what else is in the call. Texts are framed
as the objective framed them in pre-training ([CLS] … [SEP] for BERT, nothing for a causal model).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from etude.errors import UserError
from etude.nn.packed import Packed, pack
from etude.objectives.base import Objective
from etude.run import Run
from etude.text.tokenizer import Tokenizer

Pool = Literal["mean", "first", "last", "max"]
MASK = "[MASK]"  # how a blank is written, whatever the tokenizer's own symbol is
TOKENS = 16_384  # of one forward pass; bounds memory, never changes a result


@dataclass(frozen=True)
class Guess:
    """One way to fill a blank."""

    token: str
    probability: float
    text: str  # the whole text with the blank filled


class Loaded:
    def __init__(self, model: nn.Module, objective: Objective | None, tokenizer: Tokenizer, device: str = "cpu") -> None:
        self.model = model.eval().to(device)
        self.objective = objective.eval().to(device) if objective is not None else None
        self.tokenizer, self.device = tokenizer, device

    # --- ids in, arrays out -------------------------------------------------------------------------

    @torch.no_grad()
    def states(self, ids: Sequence[Sequence[int]], layers: Literal["all", "last"] = "all") -> list[np.ndarray]:
        """One array a sequence: (layers + 1, length, width) with the embeddings first, or (length, width)."""
        found: list[np.ndarray] = []
        for packed in self._packed(ids):
            states = self.model(packed, layers=layers == "all")
            kept = torch.stack(states.layers) if layers == "all" else states.last[None]
            for start, stop in _spans(packed):
                part = kept[:, start:stop].float().cpu().numpy()
                found.append(part if layers == "all" else part[0])
        return found

    @torch.no_grad()
    def logits(self, ids: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """One (length, vocab) array a sequence, where the model has a language-model head."""
        head = self._head()
        found: list[np.ndarray] = []
        for packed in self._packed(ids):
            scores = head.logits(self.model, self.model(packed))
            found += [scores[start:stop].float().cpu().numpy() for start, stop in _spans(packed)]
        return found

    def _head(self) -> Objective:
        if self.objective is None:
            raise UserError("This model was loaded without a language-model head, so it has no logits.")
        return self.objective

    def _packed(self, ids: Sequence[Sequence[int]]) -> Iterator[Packed]:
        """Groups of at most TOKENS tokens, in order."""
        context = self.model.context
        group: list[Any] = []
        for number, sequence in enumerate(ids):
            if context is not None and len(sequence) > context:
                raise UserError(f"Sequence {number} has {len(sequence)} tokens, and the model sees at most {context}: cut it.")
            if group and sum(map(len, group)) + len(sequence) > TOKENS:
                yield pack(group).to(self.device)
                group = []
            group.append(np.asarray(sequence, dtype=np.int64))
        if group:
            yield pack(group).to(self.device)

    # --- texts in -----------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str] | str, layer: int = -1, pool: Pool = "mean") -> np.ndarray:
        """(texts, width): one vector a text, pooled over its tokens. Longer texts are cut at the context."""
        if isinstance(texts, str):
            raise UserError("encode takes a list of texts: write encode([text]).")
        ids = [self.frame(self.tokenizer.encode(text).ids) for text in texts]
        chosen = [states[layer] for states in self.states(ids)]
        reduce = {
            "mean": lambda a: a.mean(0),
            "max": lambda a: a.max(0),
            "first": lambda a: a[0],
            "last": lambda a: a[-1],
        }
        if pool not in reduce:
            raise UserError(f"pool is one of {', '.join(reduce)}, not '{pool}'.")
        return np.stack([reduce[pool](states) for states in chosen])

    def frame(self, ids: np.ndarray) -> np.ndarray:
        """The ids of a text as the model saw texts in pre-training, cut to its context."""
        context = self.model.context
        if self.objective is None:
            return ids[:context]
        return self.objective.frame(ids, context)

    def fill(self, text: str, top: int = 5) -> list[Guess] | list[list[Guess]]:
        """The likeliest tokens for each [MASK]; a list of guesses, or one such list a blank where there are several."""
        mask = self.tokenizer.special.mask
        if mask is None:
            raise UserError("This model's tokenizer has no mask token, so it cannot fill blanks; use generate.")
        parts = text.split(MASK)
        if len(parts) == 1:
            raise UserError(f"There is no {MASK} in: {text}")
        pieces = [self.tokenizer.encode(part).ids for part in parts]
        ids = np.concatenate([x for piece in pieces for x in (piece, [mask])][:-1]).astype(np.int64)
        framed = self.frame(ids)
        scores = torch.from_numpy(self.logits([framed])[0])
        blanks = np.flatnonzero(framed == mask)
        found = [self._guesses(text, scores[place], number, top) for number, place in enumerate(blanks)]
        return found[0] if len(found) == 1 else found

    def _guesses(self, text: str, scores: Tensor, number: int, top: int) -> list[Guess]:
        share = scores.softmax(-1)
        best = share.topk(min(top, len(share)))
        parts = text.split(MASK)
        left, right = MASK.join(parts[: number + 1]), MASK.join(parts[number + 1 :])
        guesses = []
        for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            word = self.tokenizer.decode([index]).strip() or self.tokenizer.token(index)
            guesses.append(Guess(self.tokenizer.token(index), value, f"{left}{word}{right}"))
        return guesses


def _spans(packed: Packed) -> list[tuple[int, int]]:
    host = packed.layout.host.tolist()
    return list(zip(host[:-1], host[1:], strict=True))


def load(folder: str | Path, device: str | None = None) -> Loaded:
    """A finished run, or one that is still training (its last checkpoint)."""
    run = Run.open(folder)
    model, objective = run.build()
    return Loaded(model, objective, run.tokenizer, device or ("cuda" if torch.cuda.is_available() else "cpu"))
