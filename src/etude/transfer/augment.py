"""Data augmentation by word replacement (TinyBERT: Jiao et al. 2020, algorithm 1).

The candidates that may replace a word come from

    a word of one piece      a masked model: the word is masked, with the original text as the second segment
    a word of several        word vectors, where some are given: its nearest neighbours

In a copy each word is replaced with probability `rate` by one of its `candidates`, uniformly. Function words stay
(text/function_words.py), and so does all that is not letters. An example comes first as it is; then up to `copies` for
each of its texts, none twice. Labels are those of the example: a copy may mean something else, so a teacher should
label it again (tasks/distilled_task.py).

Differences from the released code: `candidates` counts words, where the code takes so many pieces and drops those
inside words; of a pair one text is replaced and the other kept, where the code keeps the last copy of the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from etude.chance import fold
from etude.errors import UserError
from etude.hub.word_vectors import WordVectors
from etude.inference.model import LoadedModel
from etude.models.framing import FramedText
from etude.nn.packed import pack
from etude.objectives.masked import Masked
from etude.runs.task_plan import task_module
from etude.tasks.base import by_length
from etude.tasks.data.examples import column_of, text_of
from etude.tasks.data.records import dump_record, records
from etude.text.function_words import FUNCTION_WORDS
from etude.train import checkpoint
from etude.view.neighbours import neighbours

WORD = re.compile(r"[^\W\d_]+")  # letters of any script
GROUP_SIZE = 256  # examples read at once


@dataclass(frozen=True)
class AugmentSettings:
    """Settings of word replacement; the defaults are TinyBERT's."""

    copies: int = 20  # of each text, at most
    rate: float = 0.4  # the probability that a word is replaced
    candidates: int = 15  # of each word
    seed: int = 0

    def __post_init__(self) -> None:
        if self.copies < 1 or self.candidates < 1 or not 0 < self.rate <= 1:
            raise UserError("Say one copy and one candidate at least, and a rate above 0 and up to 1.")


class Replaceable(NamedTuple):
    """A word that may be replaced, with its candidates."""

    start: int  # in the characters of its text
    stop: int
    words: list[str]


class _MaskedWord(NamedTuple):
    """A masked word in its text."""

    text: int
    start: int
    stop: int
    framed: FramedText
    place: int  # of the mask in the sequence


class WordReplacer:
    """Finds candidates for the words of a text, and makes copies with some words replaced."""

    def __init__(self, model: LoadedModel, rules: AugmentSettings, vectors: WordVectors | None = None) -> None:
        if not isinstance(model.objective, Masked):
            raise UserError("Words are replaced by the predictions of a masked model: name one (BERT, ALBERT).")
        model.require_trained_head()
        self.model, self.rules, self.vectors = model, rules, vectors
        self.frame = model.model.frame(model.tokenizer.special)

    @cached_property
    def token_words(self) -> list[str | None]:
        """The word that each token of the vocabulary is; None for parts of words, signs and numbers."""
        tokenizer, vocab = self.model.tokenizer, int(self.model.model.vocab)
        written = [tokenizer.decode([number]).strip() if number < tokenizer.vocab else "" for number in range(vocab)]
        word_tokens = [number for number, text in enumerate(written) if WORD.fullmatch(text)]
        # as it stands in a text, behind another word
        encodings = tokenizer.encode_batch([f"a {written[number]}" for number in word_tokens])
        offset = len(tokenizer.encode("a").ids)
        word_ids = {
            n for n, encoding in zip(word_tokens, encodings, strict=True) if encoding.ids[offset:].tolist() == [n]
        }
        return [text if number in word_ids else None for number, text in enumerate(written)]

    def find_candidates(self, texts: Sequence[str]) -> list[list[Replaceable]]:
        """Return the replaceable words of each text, in order."""
        replaceable: list[list[Replaceable]] = [[] for _ in texts]
        masked: list[_MaskedWord] = []
        mask = self.model.tokenizer.special.mask
        for number, (text, encoding) in enumerate(zip(texts, self.model.tokenizer.encode_batch(texts), strict=True)):
            for word in WORD.finditer(text):
                if word.group().lower() in FUNCTION_WORDS:
                    continue
                pieces = np.flatnonzero((encoding.offsets[:, 1] > word.start()) & (encoding.offsets[:, 0] < word.end()))
                if len(pieces) == 1 and self.token_words[int(encoding.ids[pieces[0]])] is not None:
                    ids = encoding.ids.copy()
                    ids[pieces[0]] = mask
                    framed, place = self.frame.join([ids, encoding.ids]), len(self.frame.before) + int(pieces[0])
                    if place < len(framed.tokens) and framed.tokens[place] == mask:  # else the text was cut before it
                        masked.append(_MaskedWord(number, word.start(), word.end(), framed, place))
                elif (near := self._nearest_words(word.group())) is not None:
                    replaceable[number].append(Replaceable(word.start(), word.end(), near))
        for masked_word, words in zip(masked, self._predict_masked(masked), strict=True):
            replaceable[masked_word.text].append(Replaceable(masked_word.start, masked_word.stop, words))
        return [sorted(masked_word) for masked_word in replaceable]

    def _nearest_words(self, word: str) -> list[str] | None:
        """Return the nearest words by their vectors; None where this word has no vector."""
        if self.vectors is None:
            return None
        known = next(
            (candidate for candidate in (word, word.lower()) if self.vectors.find_row(candidate) is not None), None
        )
        if known is None:
            return None
        near = [
            candidate
            for candidate, _ in neighbours(self.vectors, known, self.rules.candidates)
            if WORD.fullmatch(candidate)
        ]
        return near or None

    def _predict_masked(self, masked: Sequence[_MaskedWord]) -> list[list[str]]:
        """Return the likeliest words at each mask."""
        model, device = self.model, self.model.device
        is_no_word = torch.tensor([word is None for word in self.token_words], device=device)
        top_k = min(self.rules.candidates, int((~is_no_word).sum()))
        predictions: list[list[str]] = [[] for _ in masked]
        for group in by_length([len(masked_word.framed.tokens) for masked_word in masked]):
            batch = [masked[number] for number in group]
            packed = pack([masked_word.framed.tokens for masked_word in batch])
            if self.frame.segments:
                packed.segments = torch.from_numpy(
                    np.concatenate([masked_word.framed.segments for masked_word in batch])
                ).long()
            places = packed.layout.host[:-1].astype(np.int64) + [masked_word.place for masked_word in batch]
            with torch.no_grad():
                states = model.model(packed.to(device), only=torch.from_numpy(places).to(device))
                logits = model.objective.logits(model.model, states).float().masked_fill(is_no_word, -torch.inf)
            for number, row in zip(group, logits.topk(top_k).indices.tolist(), strict=True):
                predictions[number] = [str(self.token_words[token]) for token in row]
        return predictions

    def make_copies(self, text: str, replaceable: Sequence[Replaceable], key: int) -> list[str]:
        """Return different copies of a text; `key` seeds its random draws."""
        copies: dict[str, None] = {}
        for copy in range(self.rules.copies if replaceable else 0):
            draw = np.random.default_rng(fold(key, copy))
            parts, end = [], 0
            for word, exchanged in zip(replaceable, draw.random(len(replaceable)) < self.rules.rate, strict=True):
                if exchanged:
                    parts += [text[end : word.start], word.words[draw.integers(len(word.words))]]
                    end = word.stop
            copies["".join([*parts, text[end:]])] = None
        copies.pop(text, None)
        return list(copies)


def augment(
    model: LoadedModel,
    file: str | Path,
    out: str | Path,
    *,
    task: str = "classify",
    columns: dict[str, str] | None = None,
    rules: AugmentSettings | None = None,
    vectors: WordVectors | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Write every example of a file and its copies as JSON lines; return how many were read and written."""
    out, module, column_names = Path(out), task_module(task), columns or {}
    roles: Sequence[str] = module.TEXTS
    if out.suffix != ".jsonl":
        raise UserError(f"{out}: examples are written as JSON lines. Name a file that ends with .jsonl.")
    if out.exists():
        raise UserError(f"{out} exists already. Remove it, or name another with -o.")
    if not out.parent.is_dir():  # before an hour of predictions, not after
        raise UserError(f"There is no folder {out.parent} for the examples. Make it, or name another file with -o.")
    if not roles:
        raise UserError(f"An example of the task {task} is no plain text, so its words cannot be exchanged.")
    replacer = WordReplacer(model, rules or AugmentSettings(), vectors)
    lines: list[str] = []
    example_count = 0
    for group in _read_groups(file):
        texts: dict[str, list[str]] = {}  # of each role
        names: dict[str, list[str]] = {}  # of its column
        for role in roles:
            names[role] = [column_of(record, role, column_names, module.COLUMNS[role]) for _, record in group]
            texts[role] = [
                model.tokenizer.normalise(text_of(record, column, where))
                for (where, record), column in zip(group, names[role], strict=True)
            ]
        open_words = {role: replacer.find_candidates(texts[role]) for role in roles}
        for number, (_, record) in enumerate(group):
            lines.append(dump_record(record) + "\n")
            for role in roles:
                key = fold(replacer.rules.seed, example_count + number, role)
                for copy in replacer.make_copies(texts[role][number], open_words[role][number], key):
                    lines.append(dump_record(record | {names[role][number]: copy}) + "\n")
        example_count += len(group)
        if on_progress is not None:
            on_progress(example_count, len(lines))
    if not example_count:
        raise UserError(f"{file} holds no examples.")
    checkpoint.write_text(out, "".join(lines))
    return example_count, len(lines)


def _read_groups(file: str | Path) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield (place, record) in groups."""
    group: list[tuple[str, dict[str, Any]]] = []
    for where, record in records(file):
        if isinstance(record, UserError):
            raise record
        group.append((where, dict(record)))
        if len(group) == GROUP_SIZE:
            yield group
            group = []
    if group:
        yield group
