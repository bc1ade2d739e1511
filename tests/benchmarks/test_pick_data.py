"""The data of benchmarks/pick_tasks.py: no test text in labels or text, classes by their share, the same anywhere."""

from __future__ import annotations

import json
import lzma
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.picking import data as picking
from benchmarks.picking.data import Record, Task, compare_key, draw_labels, read_split, share_out

WITH_VALID = Task("made", "en", True)
WITHOUT_VALID = Task("made", "en", False)
TAGGED = Task("made", "en", False, kind="tag", text="tokens", label="ner")


def write_xz(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write(text)


def write_task(folder: Path, train: list[Record], valid: list[Record] | None = None) -> Path:
    for name, records in (("train", train), ("valid", valid)):
        if records is not None:
            write_xz(folder / "tasks/made" / f"{name}.jsonl.xz", "".join(json.dumps(r) + "\n" for r in records))
    return folder


def make_records(count: int, prefix: str = "sentence") -> list[Record]:
    labels = ["rare" if number % 200 == 0 else "a" if number % 3 == 0 else "b" for number in range(count)]
    return [{"text": f"{prefix} {number}", "label": label} for number, label in enumerate(labels)]


def keys(records: list[Record]) -> set[str]:
    return {compare_key(record) for record in records}


def test_a_text_of_valid_is_in_no_pool_however_it_is_written(tmp_path: Path) -> None:
    train = [*make_records(900), {"text": "HELD-1 !", "label": "a"}, {"text": "  held 2", "label": "b"}]
    split = read_split(WITH_VALID, write_task(tmp_path, train, make_records(50, "held")))
    assert len(split.test) == 50 and len(split.pool) == 900
    assert not keys(split.test) & keys(split.pool)


def test_valid_beyond_the_limit_is_not_in_the_pool_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picking, "MAX_TEST", 10)
    valid = make_records(50, "held")
    split = read_split(WITH_VALID, write_task(tmp_path, [*make_records(300), *valid], valid))
    assert len(split.test) == 10 and len(split.pool) == 300


def test_without_valid_a_third_is_held_out_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    records = make_records(900)
    split = read_split(WITHOUT_VALID, write_task(tmp_path / "x", records))
    shuffled = random.Random(0).sample(records, len(records))
    again = read_split(WITHOUT_VALID, write_task(tmp_path / "y", shuffled))
    assert len(split.test) == 300 and not keys(split.test) & keys(split.pool)
    assert split.test == again.test
    assert draw_labels(split, 100, 1) == draw_labels(again, 100, 1)


def test_draws_have_classes_by_their_share_and_each_twice(tmp_path: Path) -> None:
    split = read_split(WITHOUT_VALID, write_task(tmp_path, make_records(3000)))
    draws = [draw_labels(split, 100, draw) for draw in range(3)]
    share = sum(record["label"] == "a" for record in split.pool) / len(split.pool)
    for labels in draws:
        counts = Counter(record["label"] for record in labels)
        assert sum(counts.values()) == len(keys(labels)) == 100
        assert counts["rare"] == 2 and abs(counts["a"] - 100 * share) <= 2
    assert draws[0] != draws[1] != draws[2] and draws[0] == draw_labels(split, 100, 0)


def test_shares_add_up_also_where_rare_classes_were_raised() -> None:
    assert share_out(Counter(a=98, b=1, c=1), 10) == {"a": 6, "b": 2, "c": 2}
    assert share_out(Counter(a=1, b=1, c=1), 10) == {"a": 4, "b": 3, "c": 3}


def test_draws_of_sentences_have_every_entity_twice_or_are_refused(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"tokens": ["Ann", str(n)], "ner": ["B-PER" if n % 2 else "B-LOC", "O"]} for n in range(90)
    ]
    split = read_split(TAGGED, write_task(tmp_path, records))
    assert len(split.test) == 30 and len(draw_labels(split, 20, 0)) == 20
    with pytest.raises(ValueError, match="too few sentences"):
        draw_labels(split, 2, 0)


def test_the_text_holds_neither_test_nor_labels(tmp_path: Path) -> None:
    split = read_split(WITHOUT_VALID, write_task(tmp_path, make_records(300)))
    labels = draw_labels(split, 20, 0)
    picking.write_text(split, labels, tmp_path / "text.txt")
    texts = [{"text": text} for text in (tmp_path / "text.txt").read_text().strip().split("\n\n")]
    assert keys(texts) == keys(split.pool) - keys(labels)
    assert not keys(texts) & keys(split.test)


def test_documents_that_quote_the_test_are_left_out_of_wikipedia(tmp_path: Path) -> None:
    quote = "The quick brown fox jumped over thirteen lazy dogs in the yard."
    train = [*make_records(30), {"text": "x", "label": "a"}]
    write_task(tmp_path, train, [{"text": quote, "label": "a"}, {"text": "Bridge", "label": "b"}])
    pages = ["Bridge\nA bridge spans.", f"Fox\nSome say: {quote.replace(' ', '  ').lower()}", "Dog\nA dog barks."]
    write_xz(tmp_path / "corpora/enwiki_train.txt.xz", "\n\n".join(pages) + "\n")
    count = picking.write_wiki(read_split(WITH_VALID, tmp_path), tmp_path, tmp_path / "wiki.txt")
    assert count == 1
    assert (tmp_path / "wiki.txt").read_text() == f"{pages[0]}\n\n{pages[2]}\n"
