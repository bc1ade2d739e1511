"""Files of a study's tasks: no example on two sides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.study.label_splits import prepare_labels
from etude.study.text_source import TextSource
from tests.study.tiny_study import tiny


def test_a_sentence_that_is_repeated_is_on_one_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of the web repeats itself: what is asked about must not be learnt from."""

    def label_senses(self: TextSource, tokenizer: str) -> Iterator[dict[str, list[str]]]:
        for number in range(200):
            yield {"tokens": [f"word{number % 60}", "house"], "tags": ["O", "B-house" if number % 2 else "B-place"]}

    monkeypatch.setattr(TextSource, "label_senses", label_senses)
    task = {"kind": "tag", "made": "sense", "labels": 20, "dev_size": 20, "test_size": 20}
    corpus = {"text": {"corpus": "nowhere", "pseudo_words": 2}}
    study = tiny(tasks={"senses": task}, claims=[], **corpus)
    files = prepare_labels(study, "senses", TextSource(study.text, tmp_path), "word:100")
    paths = (files.write_train(None, 0), files.dev, files.test)
    parts = [{json.dumps(json.loads(line)) for line in path.read_text().splitlines()} for path in paths]
    assert [len(part) for part in parts] == [20, 20, 20]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
