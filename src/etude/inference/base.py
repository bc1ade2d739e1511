"""A trained model as a function from token ids and texts to arrays: hidden states, logits, sentence vectors.

Sequences are packed, never padded, so a result does not depend on what else is in the call. Texts are framed
as the objective framed them in pre-training ([CLS] … [SEP] for BERT, nothing for a causal model).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from etude.errors import UserError
from etude.inference.recorded_decoding import StepRecorder
from etude.models.base import Model
from etude.models.framing import Framing
from etude.nn.packed import Packed, pack
from etude.objectives.base import UsableObjective
from etude.tasks.translate.recorded_search import SearchRecorder
from etude.text.tokenizer.open_vocabulary import OpenVocabularyTokenizer
from etude.text.tokenizer.tokenizer import Tokenizer

Ids = Sequence[int] | np.ndarray  # of one sequence
Words = Sequence[str]
TOKENS = 16_384  # of one forward pass; bounds memory, never changes a result


class InferenceModel:
    """Model, objective and tokenizer in evaluation mode: token ids or texts in, arrays out."""

    def __init__(
        self,
        model: Model,
        objective: UsableObjective,
        tokenizer: Tokenizer,
        device: str = "cpu",
        untrained: frozenset[str] = frozenset(),
    ) -> None:
        """Move model and objective to `device`; `untrained` names tensors that were never trained.

        Such a name is "objective.head.bias": a published checkpoint may come without its head.
        """
        self.model: Model = model.eval().to(device)
        self.objective = objective.eval().to(device)
        self.tokenizer, self.device, self.untrained = model.attach_tokenizer(tokenizer), device, untrained
        # recordings on a GPU, kept between calls: of translations, and of generation
        self.search_recorder: SearchRecorder | None = None
        self.step_recorder: StepRecorder | None = None

    # --- ids in, arrays out -------------------------------------------------------------------------

    @torch.no_grad()
    def states(self, ids: Iterable[Ids | Words], layers: Literal["all", "last"] = "all") -> list[np.ndarray]:
        """Return the hidden states of each sequence: (layers + 1, length, width), embeddings first, or (length, width).

        A sequence is a list of token ids, used as they are. For a model of whole words it may be a list of words,
        each one token; they are framed as in pre-training, and only the words' own states are returned.
        """
        if layers not in ("all", "last"):
            raise UserError(f"layers is 'all' or 'last', not '{layers}'.")
        arrays: list[np.ndarray] = []
        edges: list[tuple[int, int]] = []  # markers before and behind each sequence, which are left out
        for packed in self.pack_batches(self._frame_word_lists(ids, edges)):
            hidden = torch.stack(self.model.layer_states(packed)) if layers == "all" else self.model(packed).last
            hidden = hidden.cpu().float()  # of all sequences at once: a GPU is waited for at each copy
            for start, stop in spans(packed):
                before, behind = edges[len(arrays)]
                arrays.append(hidden[..., start + before : stop - behind, :].numpy())
        return arrays

    def _frame_word_lists(self, sequences: Iterable[Ids | Words], edges: list[tuple[int, int]]) -> Iterator[Ids]:
        """Yield sequences of ids, framing those of words; append to `edges` the number of markers on each side."""
        frame: Framing | None = None
        for number, sequence in enumerate(sequences):
            if isinstance(sequence, str):
                raise UserError("states takes a list of sequences, each a list: a text goes through encode.")
            if not isinstance(sequence, (list, tuple)) or not any(isinstance(item, str) for item in sequence):
                edges.append((0, 0))
                yield sequence  # type: ignore[misc]  # ids: no item is a string
                continue
            if not all(isinstance(item, str) for item in sequence) or not self.tokenizer.word_level:
                raise UserError(
                    f"Sequence {number} is a list of words: this takes a model of whole words, and nothing but words. "
                    "Give token ids, or texts to encode."
                )
            frame = frame or self.model.frame(self.tokenizer.special)
            edges.append((len(frame.before), len(frame.after)))
            yield np.concatenate([frame.before, self._word_ids(sequence), frame.after]).astype(np.int64)

    def _word_ids(self, words: Words) -> np.ndarray:
        """Return (n,) ids, one a word: the unknown token where a word has none and the model reads no letters."""
        if isinstance(self.tokenizer, OpenVocabularyTokenizer):
            return self.tokenizer.encode_words(words)
        unknown = self.tokenizer.special.unknown
        ids = []
        for word, encoding in zip(words, self.tokenizer.encode_batch(words), strict=True):
            if len(encoding) != 1 and unknown is None:
                raise UserError(f"'{word}' is not one word to this model, and it has no token for unknown ones.")
            ids.append(int(encoding.ids[0]) if len(encoding) == 1 else unknown)
        return np.array(ids, np.int64)

    @torch.no_grad()
    def logits(self, ids: Iterable[Ids]) -> list[np.ndarray]:
        """Return the logits of each sequence, (length, vocab); the model must have a trained language-model head."""
        self.require_trained_head()
        arrays: list[np.ndarray] = []
        for packed in self.pack_batches(ids):
            states = self.objective.hidden_for_logits(self.model, packed)
            for start, stop in spans(packed):  # one after the other: logits of a whole pass may not fit
                part = replace(states, last=states.last[start:stop])
                arrays.append(self.objective.logits(self.model, part).float().cpu().numpy())
        return arrays

    def require_trained_head(self) -> None:
        """Raise UserError, naming the tensors, where the language-model head was never trained."""
        if self._untrained_head_tensors:
            raise UserError(
                f"This model came without a trained language-model head (nothing was given for "
                f"{', '.join(self._untrained_head_tensors)}), so it has no logits. Its states and vectors can be used; "
                "pre-train it further, or load one that has its head."
            )

    @cached_property
    def _untrained_head_tensors(self) -> list[str]:
        """Names of the untrained tensors that have a gradient from the logits."""
        learner = nn.ModuleDict({"model": self.model, "objective": self.objective})
        named = {name: parameter for name, parameter in learner.named_parameters() if name in self.untrained}
        if not named:
            return []
        packed = pack([[0]]).to(self.device)
        with torch.enable_grad():
            logits = self.objective.logits(self.model, self.objective.hidden_for_logits(self.model, packed))
            grads = torch.autograd.grad(logits.sum(), list(named.values()), allow_unused=True)
        return sorted(name for name, grad in zip(named, grads, strict=True) if grad is not None)

    @cached_property
    def ids_without_token(self) -> Tensor | None:
        """Mask (V,) of the rows of the output layer for which the tokenizer has no token; None where it has all."""
        known = set(self.tokenizer.target.backend.get_vocab(with_added_tokens=True).values())
        rows = self.model.target_vocab
        if len(known) >= rows:
            return None
        return torch.tensor([id not in known for id in range(rows)], device=self.device)

    def pack_batches(self, ids: Iterable[Ids]) -> Iterator[Packed]:
        """Pack the sequences in order, at most TOKENS tokens at a time (at least one sequence)."""
        arrays = (self._check_ids(np.asarray(sequence), number) for number, sequence in enumerate(ids))
        return self.pack_arrays(arrays, TOKENS)

    def pack_arrays(self, sequences: Iterable[np.ndarray], tokens: int) -> Iterator[Packed]:
        """The same of arrays that hold ids of this model, none longer than its context."""
        group: list[np.ndarray] = []
        size = 0
        for sequence in sequences:
            if group and size + len(sequence) > tokens:
                yield pack(group).to(self.device)
                group, size = [], 0
            group.append(sequence)
            size += len(sequence)
        if group:
            yield pack(group).to(self.device)

    def _check_ids(self, ids: np.ndarray, number: int) -> np.ndarray:
        """Return the ids as int64; raise UserError for other types, unknown ids and sequences over the context."""
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
        """Frame the ids of a text as in pre-training, cut to the context."""
        return self.objective.frame(ids, self.model.context)


def describe_use(loaded: InferenceModel) -> str:
    """What a model can be asked for, as advice where it was asked for something else."""
    if loaded.model.causal and loaded.objective.predicts_next:
        return "It writes on: use generate."
    if not loaded.objective.predicts_next and loaded.tokenizer.special.mask is not None and gives_logits(loaded):
        return "It fills blanks: use fill."
    return "Its states are what it is for: use features, or finetune it on a task."


def gives_logits(loaded: InferenceModel) -> bool:
    """Whether the objective has a language-model head."""
    return type(loaded.objective).logits is not UsableObjective.logits


def spans(packed: Packed) -> list[tuple[int, int]]:
    """Return (start, stop) of each sequence in a packed batch."""
    return list(pairwise(packed.layout.host.tolist()))
