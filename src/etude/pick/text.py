"""The text of a pick, as one corpus for each tokenizer, no larger than its minutes can use."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.pick.text_pile import TextPile
from etude.study import cell_code
from etude.study.text_source import hash_json
from etude.text.checked_files import MANIFEST
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare
from etude.text.tokenizer.pair_tokenizer import open_tokenizers
from etude.text.tokenizer.tokenizer import Tokenizer

VALID = 0.01  # of the documents are held out, at least to see whether a pre-training learns


@dataclass(frozen=True)
class PickText:
    """A pile of text that passed its checks, or one prepared corpus; `folder` takes the corpora made of it."""

    pile: TextPile | None
    prepared: Path | None
    folder: Path

    @property
    def fingerprint(self) -> str:
        """Hash of the text and of how it is read."""
        if self.pile is not None:
            return self.pile.fingerprint
        assert self.prepared is not None
        return Corpus.open(self.prepared).fingerprint

    @property
    def size(self) -> int:
        """Bytes that a new tokenizer would have to read; 0 where the corpus is there already."""
        return self.pile.bytes if self.pile is not None else 0

    def open_corpus(
        self, tokenizer: str | Path | Tokenizer, share: float, on_progress: Callable[[str], None]
    ) -> Corpus:
        """Open the corpus of a tokenizer over a share of the documents, prepared if it is not there yet.

        A corpus that the user prepared has its own tokenizer, which every recipe then takes.
        """
        if self.pile is None:
            assert self.prepared is not None
            return Corpus.open(self.prepared)
        if not isinstance(tokenizer, Tokenizer) and Path(tokenizer).exists():
            tokenizer = open_tokenizers(tokenizer)  # what it holds counts, not where it lies
        name = tokenizer.fingerprint if isinstance(tokenizer, Tokenizer) else str(tokenizer)
        key = hash_json([self.fingerprint, name, VALID, share, cell_code.corpus()])
        folder = self.folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())[:24]}-{key[:12]}"
        if not (folder / MANIFEST).is_file():
            start = time.monotonic()
            sources, text_field = self.pile.unify_fields(self.folder / "text")
            weights: Sequence[float] | None = [share] * len(sources) if share < 1 else None
            corpus = prepare(
                sources, folder, tokenizer, valid=VALID, text_field=text_field, unique=self.pile.unique,
                errors=self.pile.errors, weights=weights,
            )  # fmt: skip
            seconds = time.monotonic() - start
            on_progress(f"text: {corpus.total:,} tokens ({corpus.tokenizer.kind}) in {seconds:.0f} s")
        return Corpus.open(folder)
