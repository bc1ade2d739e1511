"""A trained model as a function from token ids and texts to arrays: hidden states, logits, sentence vectors.

Sequences are packed, never padded, so a result does not depend on what else is in the call. Texts are framed
as the objective framed them in pre-training ([CLS] … [SEP] for BERT, nothing for a causal model).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from etude.errors import UserError
from etude.models.base import Model
from etude.models.framing import Framing
from etude.nn.packed import Packed, pack
from etude.objectives.base import UsableObjective
from etude.text.tokenizer.open_vocabulary import OpenVocabularyTokenizer
from etude.text.tokenizer.tokenizer import Tokenizer

Ids = Sequence[int] | np.ndarray  # of one sequence
Words = Sequence[str]
Pool = Literal["mean", "first", "last", "max"]
POOLS = {
    "mean": lambda states: states.mean(0),
    "first": lambda states: states[0],
    "last": lambda states: states[-1],
    "max": lambda states: states.amax(0),
}
TOKENS = 16_384  # of one forward pass; bounds memory, never changes a result


class InferenceModel:
    """Token ids or texts in, arrays out."""

    def __init__(
        self,
        model: Model,
        objective: UsableObjective,
        tokenizer: Tokenizer,
        device: str = "cpu",
        untrained: frozenset[str] = frozenset(),
    ) -> None:
        """`untrained` names tensors ("objective.head.bias") that no training has touched."""
        self.model: Model = model.eval().to(device)
        self.objective = objective.eval().to(device)
        self.tokenizer, self.device, self.untrained = model.attach_tokenizer(tokenizer), device, untrained

    # --- ids in, arrays out -------------------------------------------------------------------------

    @torch.no_grad()
    def states(self, ids: Iterable[Ids | Words], layers: Literal["all", "last"] = "all") -> list[np.ndarray]:
        """One array a sequence: (layers + 1, length, width) with the embeddings first, or (length, width).

        A sequence is a list of token ids, taken as they are. Of a model of whole words it may be a list of words,
        each one token as it stands; they are framed as in pre-training, and only their own states are given.
        """
        if layers not in ("all", "last"):
            raise UserError(f"layers is 'all' or 'last', not '{layers}'.")
        found: list[np.ndarray] = []
        edges: list[tuple[int, int]] = []  # markers before and behind each sequence, which are left out
        for packed in self.packed(self._of_words(ids, edges)):
            hidden = torch.stack(self.model.layer_states(packed)) if layers == "all" else self.model(packed).last
            for start, stop in spans(packed):
                before, behind = edges[len(found)]
                found.append(hidden[..., start + before : stop - behind, :].float().cpu().numpy())
        return found

    def _of_words(self, sequences: Iterable[Ids | Words], edges: list[tuple[int, int]]) -> Iterator[Any]:
        """Sequences of ids, those of words framed; `edges` learns what to leave out of each."""
        frame: Framing | None = None
        for number, sequence in enumerate(sequences):
            if isinstance(sequence, str):
                raise UserError("states takes a list of sequences, each a list: a text goes through encode.")
            if not isinstance(sequence, (list, tuple)) or not any(isinstance(one, str) for one in sequence):
                edges.append((0, 0))
                yield sequence
                continue
            if not all(isinstance(one, str) for one in sequence) or not self.tokenizer.word_level:
                raise UserError(
                    f"Sequence {number} is a list of words: this takes a model of whole words, and nothing but words. "
                    "Give token ids, or texts to encode."
                )
            frame = frame or self.model.frame(self.tokenizer.special)
            edges.append((len(frame.before), len(frame.after)))
            yield np.concatenate([frame.before, self._word_ids(sequence), frame.after]).astype(np.int64)

    def _word_ids(self, words: Any) -> np.ndarray:
        """(n,) one id a word: its own, or that of unknown words where the model has no letters to go by."""
        if isinstance(self.tokenizer, OpenVocabularyTokenizer):
            return self.tokenizer.encode_words(words)
        unknown = self.tokenizer.special.unknown
        found = []
        for word, encoding in zip(words, self.tokenizer.encode_batch(words), strict=True):
            if len(encoding) != 1 and unknown is None:
                raise UserError(f"'{word}' is not one word to this model, and it has no token for unknown ones.")
            found.append(int(encoding.ids[0]) if len(encoding) == 1 else unknown)
        return np.array(found, np.int64)

    @torch.no_grad()
    def logits(self, ids: Iterable[Ids]) -> list[np.ndarray]:
        """One (length, vocab) array a sequence, where the model has a language-model head."""
        self.must_speak()
        found: list[np.ndarray] = []
        for packed in self.packed(ids):
            states = self.objective.hidden_for_logits(self.model, packed)
            for start, stop in spans(packed):  # one after the other: scores of a whole pass may not fit
                part = replace(states, last=states.last[start:stop])
                found.append(self.objective.logits(self.model, part).float().cpu().numpy())
        return found

    def must_speak(self) -> None:
        """Refuses, by name, to use a head that was never trained."""
        if self._silent:
            raise UserError(
                f"This model came without a trained language-model head (nothing was given for "
                f"{', '.join(self._silent)}), so it has no logits. Its states and vectors can be used; "
                "pre-train it further, or load one that has its head."
            )

    @cached_property
    def _silent(self) -> list[str]:
        """The untrained tensors that logits depend on, found by asking the logits themselves."""
        learner = nn.ModuleDict({"model": self.model, "objective": self.objective})
        named = {name: one for name, one in learner.named_parameters() if name in self.untrained}
        if not named:
            return []
        packed = pack([[0]]).to(self.device)
        with torch.enable_grad():
            scores = self.objective.logits(self.model, self.objective.hidden_for_logits(self.model, packed))
            grads = torch.autograd.grad(scores.sum(), list(named.values()), allow_unused=True)
        return sorted(name for name, grad in zip(named, grads, strict=True) if grad is not None)

    @cached_property
    def nameless(self) -> Tensor | None:
        """(V,) bool: rows of the model's vocabulary for which the tokenizer has no token. None where it has all."""
        known = set(self.tokenizer.backend.get_vocab(with_added_tokens=True).values())
        if len(known) >= self.model.vocab:
            return None
        return torch.tensor([id not in known for id in range(self.model.vocab)], device=self.device)

    def packed(self, ids: Iterable[Ids]) -> Iterator[Packed]:
        """The sequences in order, at most TOKENS tokens at a time (at least one sequence)."""
        group: list[np.ndarray] = []
        size = 0
        for number, sequence in enumerate(ids):
            array = self._checked(np.asarray(sequence), number)
            if group and size + len(array) > TOKENS:
                yield pack(group).to(self.device)
                group, size = [], 0
            group.append(array)
            size += len(array)
        if group:
            yield pack(group).to(self.device)

    def _checked(self, ids: np.ndarray, number: int) -> np.ndarray:
        context, vocab = self.model.context, self.model.vocab
        if isinstance(self.tokenizer, OpenVocabularyTokenizer):
            vocab = self.tokenizer.id_count
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise UserError(f"Sequence {number} is not a list of token ids: give a list of lists of whole numbers.")
        if ids.size and not 0 <= ids.min() <= ids.max() < vocab:
            raise UserError(f"Sequence {number} has ids from {ids.min()} to {ids.max()}; the vocabulary has {vocab}.")
        if context is not None and len(ids) > context:
            raise UserError(f"Sequence {number} has {len(ids)} tokens, and the model sees at most {context}: cut it.")
        return ids.astype(np.int64)

    # --- texts in -----------------------------------------------------------------------------------

    def frame(self, ids: np.ndarray) -> np.ndarray:
        """The ids of a text as the model saw texts in pre-training, cut to its context."""
        return self.objective.frame(ids, self.model.context)

    @torch.no_grad()
    def encode(self, texts: Sequence[str], layer: int = -1, pool: Pool = "mean") -> np.ndarray:
        """(texts, width): one vector a text, pooled over its tokens and markers; a text is cut at the context."""
        if isinstance(texts, str):
            raise UserError("encode takes a list of texts: write encode([text]).")
        if pool not in POOLS:
            raise UserError(f"pool is one of {', '.join(POOLS)}, not '{pool}'.")
        found: list[np.ndarray] = []
        for packed in self.packed(self._framed(texts)):
            states = self.model.layer_states(packed)
            if not -len(states) <= layer < len(states):
                raise UserError(
                    f"layer={layer}: this model has layers 0 (the embeddings) to {len(states) - 1}; -1 is the last."
                )
            chosen = states[layer].float()
            found += [POOLS[pool](chosen[start:stop]).cpu().numpy() for start, stop in spans(packed)]
        return np.stack(found) if found else np.zeros((0, self.model.width), np.float32)

    def _framed(self, texts: Sequence[str]) -> Iterator[Any]:
        for start in range(0, len(texts), 1000):  # encodings are large: not all at once
            for number, encoding in enumerate(self.tokenizer.encode_batch(texts[start : start + 1000]), start):
                framed = self.frame(encoding.ids)
                if not len(framed):
                    raise UserError(f"Text {number} has no tokens, so it has no vector: leave it out.")
                yield framed


def spans(packed: Packed) -> list[tuple[int, int]]:
    """Where the sequences lie."""
    host = packed.layout.host.tolist()
    return list(pairwise(host))
