"""More examples from few: copies of which some words were exchanged (TinyBERT: Jiao et al. 2020, algorithm 1).

What could stand in a word's place is said

    of a word of one piece     by a masked model: the word is masked, and the text as it was stands behind it
    of a word of several       by word vectors, where some are given: its nearest words

In a copy each word is exchanged with a chance of `rate`, for one of its `candidates`, each as likely. Words of closed
classes stay (text/function_words.py), and so does all that is not letters. An example comes first as it is; then up to
`copies` for each of its texts, none twice. Labels are those of the example: a copy may mean something else, so what its
label is, a teacher has to say (tasks/distilled_task.py).

Where this is not the released code: candidates are that many words, where the code drops pieces of words from so many
pieces; of a pair one text is exchanged and the other as it was, where the code keeps the last copy of the first.
"""

from __future__ import annotations

import json
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
from etude.tasks.data.records import records
from etude.text.function_words import FUNCTION_WORDS
from etude.train import checkpoint
from etude.view.neighbours import neighbours

WORD = re.compile(r"[^\W\d_]+")  # letters of any script
EXAMPLES = 256  # that are looked at together


@dataclass(frozen=True)
class Rules:
    copies: int = 20
    rate: float = 0.4
    candidates: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        if self.copies < 1 or self.candidates < 1 or not 0 < self.rate <= 1:
            raise UserError("Say one copy and one candidate at least, and a rate above 0 and up to 1.")


class Open(NamedTuple):
    """A word that may be exchanged, and for what."""

    start: int  # in the characters of its text
    stop: int
    words: list[str]


class _Asked(NamedTuple):
    """One masked word in its text."""

    text: int
    start: int
    stop: int
    framed: FramedText
    place: int  # of the mask in the sequence


class Exchange:
    """Finds what may be exchanged for what, and makes copies."""

    def __init__(self, model: LoadedModel, rules: Rules, vectors: WordVectors | None = None) -> None:
        if not isinstance(model.objective, Masked):
            raise UserError("A masked model is wanted that says what could stand in a word's place (BERT, ALBERT).")
        model.require_trained_head()
        self.model, self.rules, self.vectors = model, rules, vectors
        self.frame = model.model.frame(model.tokenizer.special)

    @cached_property
    def whole(self) -> list[str | None]:
        """(V,) the word that a token is, None where it is a part of one, a sign or a number."""
        tokenizer, vocab = self.model.tokenizer, int(self.model.model.vocab)
        written = [tokenizer.decode([number]).strip() if number < tokenizer.vocab else "" for number in range(vocab)]
        letters = [number for number, text in enumerate(written) if WORD.fullmatch(text)]
        # as it stands in a text, behind another word
        found = tokenizer.encode_batch([f"a {written[number]}" for number in letters])
        ahead = len(tokenizer.encode("a").ids)
        alone = {n for n, one in zip(letters, found, strict=True) if one.ids[ahead:].tolist() == [n]}
        return [text if number in alone else None for number, text in enumerate(written)]

    def candidates(self, texts: Sequence[str]) -> list[list[Open]]:
        """Of each text, in the order of its words."""
        found: list[list[Open]] = [[] for _ in texts]
        asked: list[_Asked] = []
        mask = self.model.tokenizer.special.mask
        for number, (text, encoding) in enumerate(zip(texts, self.model.tokenizer.encode_batch(texts), strict=True)):
            for word in WORD.finditer(text):
                if word.group().lower() in FUNCTION_WORDS:
                    continue
                pieces = np.flatnonzero((encoding.offsets[:, 1] > word.start()) & (encoding.offsets[:, 0] < word.end()))
                if len(pieces) == 1 and self.whole[int(encoding.ids[pieces[0]])] is not None:
                    ids = encoding.ids.copy()
                    ids[pieces[0]] = mask
                    framed, place = self.frame.join([ids, encoding.ids]), len(self.frame.before) + int(pieces[0])
                    if place < len(framed.tokens) and framed.tokens[place] == mask:  # else the text was cut before it
                        asked.append(_Asked(number, word.start(), word.end(), framed, place))
                elif (near := self._near(word.group())) is not None:
                    found[number].append(Open(word.start(), word.end(), near))
        for one, words in zip(asked, self._said(asked), strict=True):
            found[one.text].append(Open(one.start, one.stop, words))
        return [sorted(one) for one in found]

    def _near(self, word: str) -> list[str] | None:
        """The nearest words, where there are vectors and one of this word."""
        if self.vectors is None:
            return None
        known = next((one for one in (word, word.lower()) if self.vectors.find_row(one) is not None), None)
        if known is None:
            return None
        near = [one for one, _ in neighbours(self.vectors, known, self.rules.candidates) if WORD.fullmatch(one)]
        return near or None

    def _said(self, asked: Sequence[_Asked]) -> list[list[str]]:
        """The likeliest words at each mask."""
        model, device = self.model, self.model.device
        lacking = torch.tensor([word is None for word in self.whole], device=device)
        most = min(self.rules.candidates, int((~lacking).sum()))
        found: list[list[str]] = [[] for _ in asked]
        for group in by_length([len(one.framed.tokens) for one in asked]):
            some = [asked[number] for number in group]
            packed = pack([one.framed.tokens for one in some])
            if self.frame.segments:
                packed.segments = torch.from_numpy(np.concatenate([one.framed.segments for one in some])).long()
            places = packed.layout.host[:-1].astype(np.int64) + [one.place for one in some]
            with torch.no_grad():
                states = model.model(packed.to(device), only=torch.from_numpy(places).to(device))
                scores = model.objective.logits(model.model, states).float().masked_fill(lacking, -torch.inf)
            for number, row in zip(group, scores.topk(most).indices.tolist(), strict=True):
                found[number] = [str(self.whole[token]) for token in row]
        return found

    def copies(self, text: str, found: Sequence[Open], key: int) -> list[str]:
        """Of one text; `key` says which draws are its own."""
        made: dict[str, None] = {}
        for copy in range(self.rules.copies if found else 0):
            draw = np.random.default_rng(fold(key, copy))
            parts, end = [], 0
            for one, exchanged in zip(found, draw.random(len(found)) < self.rules.rate, strict=True):
                if exchanged:
                    parts += [text[end : one.start], one.words[draw.integers(len(one.words))]]
                    end = one.stop
            made["".join([*parts, text[end:]])] = None
        made.pop(text, None)
        return list(made)


def augment(
    model: LoadedModel,
    file: str | Path,
    out: str | Path,
    *,
    task: str = "classify",
    columns: dict[str, str] | None = None,
    rules: Rules | None = None,
    vectors: WordVectors | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Writes every example of a file and its copies as JSON lines; how many were read, and how many written."""
    out, module, named = Path(out), task_module(task), columns or {}
    roles: Sequence[str] = module.TEXTS
    if out.suffix != ".jsonl":
        raise UserError(f"{out}: examples are written as JSON lines. Name a file that ends with .jsonl.")
    if out.exists():
        raise UserError(f"{out} exists already. Remove it, or name another with -o.")
    if not roles:
        raise UserError(f"An example of the task {task} is no plain text, so its words cannot be exchanged.")
    exchange = Exchange(model, rules or Rules(), vectors)
    lines: list[str] = []
    read = 0
    for group in _examples(file):
        texts: dict[str, list[str]] = {}  # of each role
        names: dict[str, list[str]] = {}  # of its column
        for role in roles:
            names[role] = [column_of(record, role, named, module.COLUMNS[role]) for _, record in group]
            texts[role] = [
                model.tokenizer.normalise(text_of(record, column, where))
                for (where, record), column in zip(group, names[role], strict=True)
            ]
        open_words = {role: exchange.candidates(texts[role]) for role in roles}
        for number, (_, record) in enumerate(group):
            lines.append(json.dumps(record, ensure_ascii=False) + "\n")
            for role in roles:
                key = fold(exchange.rules.seed, read + number, role)
                for copy in exchange.copies(texts[role][number], open_words[role][number], key):
                    lines.append(json.dumps(record | {names[role][number]: copy}, ensure_ascii=False) + "\n")
        read += len(group)
        if tell is not None:
            tell(read, len(lines))
    if not read:
        raise UserError(f"{file} holds no examples.")
    checkpoint.write_text(out, "".join(lines))
    return read, len(lines)


def _examples(file: str | Path) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """(place, record) in groups."""
    group: list[tuple[str, dict[str, Any]]] = []
    for where, record in records(file):
        if isinstance(record, UserError):
            raise record
        group.append((where, dict(record)))
        if len(group) == EXAMPLES:
            yield group
            group = []
    if group:
        yield group
