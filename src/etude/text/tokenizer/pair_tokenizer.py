"""Two tokenizers of one model: that of a source and that of its target.

To everything that reads a text it is the tokenizer of sources; what a translation model writes is decoded by `target`.
Of any other tokenizer, `target` is the tokenizer itself, so that code over pairs asks for it without a question.

Either side has ids of its own, as with Bahdanau's 30,000 words of each language, or both have the same ones and split
text in two ways, as in the models of OPUS-MT (`shares_ids`). Special tokens have the same ids on both sides, because
an objective knows each by one number.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

from etude.errors import UserError
from etude.text.tokenizer.special_tokens import ROLES
from etude.text.tokenizer.tokenizer import Tokenizer

TARGET_FILE = "target_tokenizer.json"


class PairTokenizer(Tokenizer):
    """The tokenizer of sources, with that of targets."""

    def __init__(self, content: str, target: Tokenizer, origin: str = "a tokenizer") -> None:
        """`content` is the tokenizer.json of sources."""
        super().__init__(content, origin)
        self._target = target
        for role in ROLES:
            ids = vars(self.special)[role], vars(target.special)[role]
            if ids[0] != ids[1]:
                raise UserError(
                    f"{origin}: the special token '{role}' is {_name(ids[0])} for sources and {_name(ids[1])} for "
                    "targets. Both tokenizers need the same special tokens under the same ids, as those trained here."
                )

    @property
    def target(self) -> Tokenizer:
        return self._target

    @property
    def source(self) -> Tokenizer:
        return Tokenizer(self.content)

    @cached_property
    def shares_ids(self) -> bool:
        vocabularies = [side.backend.get_vocab(with_added_tokens=True) for side in (self, self._target)]
        return vocabularies[0] == vocabularies[1]

    @property
    def largest_vocab(self) -> int:
        return max(self.vocab, self._target.vocab)

    @cached_property
    def fingerprint(self) -> str:
        """One hash of both files."""
        return hashlib.sha256(f"{super().fingerprint} {self._target.fingerprint}".encode()).hexdigest()

    @property
    def word_level(self) -> bool:
        """A corpus of pairs with two tokenizers stores no letters."""
        return False

    def save(self, folder: str | Path) -> Path:
        """Write tokenizer.json and target_tokenizer.json into a folder."""
        (Path(folder) / TARGET_FILE).write_bytes(self._target.content.encode())
        return super().save(folder)

    def __repr__(self) -> str:
        return f"PairTokenizer({self.kind}, vocab={self.vocab}, target={self._target!r})"

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[object, ...]]:
        return PairTokenizer, (self.content, self._target)


def open_tokenizers(path: str | Path) -> Tokenizer:
    """Open a tokenizer, or both of a folder that has one for each side."""
    target = Path(path) / TARGET_FILE
    tokenizer = Tokenizer.open(path)
    return PairTokenizer(tokenizer.content, Tokenizer.open(target), str(path)) if target.is_file() else tokenizer


def _name(id: int | None) -> str:
    return "missing" if id is None else str(id)
