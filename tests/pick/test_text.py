"""A corpus is found again by what it depends on."""

from __future__ import annotations

from pathlib import Path

from etude.pick.text import PickText
from etude.pick.text_pile import find_text, read_text
from etude.text.tokenizer.tokenizer import Tokenizer


def test_another_tokenizer_at_the_same_path_is_another_corpus(tmp_path: Path) -> None:
    """The corpus of the old one was taken: its name is the path."""
    file = tmp_path / "text.txt"
    file.write_text("one two three four five six\n" * 20, encoding="utf-8")
    pile, problems = read_text(find_text([file])[0])
    assert pile is not None and not problems
    text = PickText(pile, None, tmp_path / "corpora")
    fingerprints = []
    for words in ("one two three", "four five six"):
        Tokenizer.train("word:50", [words]).save(tmp_path)
        corpus = text.open_corpus(str(tmp_path / "tokenizer.json"), 1.0, lambda _: None)
        assert corpus.tokenizer.fingerprint == Tokenizer.open(tmp_path / "tokenizer.json").fingerprint
        fingerprints.append(corpus.fingerprint)
    assert fingerprints[0] != fingerprints[1]
