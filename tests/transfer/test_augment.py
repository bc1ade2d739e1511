"""Copies of examples: only open words change, for words that the model names, and every draw is an example's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import etude
from etude.cli.main import app
from etude.errors import UserError
from etude.hub.word_vectors import WordVectors
from etude.inference.model import LoadedModel
from etude.tasks import base as base_of_tasks
from etude.tasks.data.records import records
from etude.transfer import augment as module
from etude.transfer.augment import AugmentSettings, Replaceable, WordReplacer, augment

Bases = Callable[[str], Path]


@pytest.fixture(scope="module")
def model(base: Bases) -> LoadedModel:
    return etude.load(base("bert"))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_candidates_are_what_the_model_says_before_the_text_as_it_was(model: LoadedModel) -> None:
    """[CLS] a [MASK] text [SEP] the text [SEP], with segments: the likeliest whole words there."""
    replacer = WordReplacer(model, AugmentSettings(candidates=4))
    [result] = replacer.find_candidates(["this film is very good , 3 actor"])
    words = ["film", "good", "actor"]  # closed: this is very; no letters: , 3
    text = "this film is very good , 3 actor"
    assert [text[item.start : item.stop] for item in result] == words
    encoding = model.tokenizer.encode(text)
    special = model.tokenizer.special
    for item in result:
        ids = encoding.ids.copy()
        place = int(np.flatnonzero(encoding.offsets[:, 0] == item.start)[0])
        ids[place] = special.mask
        sequence = np.concatenate([[special.start], ids, [special.separator], encoding.ids, [special.separator]])
        packed = module.pack([sequence])
        packed.segments = torch.tensor([0] * (len(ids) + 2) + [1] * (len(ids) + 1))
        with torch.no_grad():
            scores = model.objective.logits(model.model, model.model(packed))[place + 1]
        ranked = [model.tokenizer.token(int(token)) for token in scores.argsort(descending=True)]
        assert item.words == [token for token in ranked if token.isalpha()][:4]


def test_pieces_of_words_signs_and_numbers_are_no_candidates(model: LoadedModel) -> None:
    whole = WordReplacer(model, AugmentSettings()).token_words
    known = {word for word in whole if word}
    assert {"film", "good", "좋다"} <= known
    assert not known & {"?", ",", "3", "[MASK]", "[CLS]"}
    assert len(whole) == model.model.vocab


def test_word_pieces(base: Bases, tmp_path: Path) -> None:
    """A tokenizer of pieces: those that continue a word are none themselves, and words of several ask the vectors."""
    from etude.recipes.learner import build_learner
    from etude.recipes.schema import Recipe
    from etude.text.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.train("wordpiece:60", ["lowing lows slowing rows rowing flow flowing bow"] * 20)
    recipe = Recipe.load("bert-toy", ["model.width=16", "model.heads=2"]).resolve(vocab=tokenizer.vocab)
    pieces = LoadedModel(*build_learner(recipe, tokenizer), tokenizer)
    vectors = WordVectors(["zqxy", "near", "far"], np.array([[1, 0], [1, 0.1], [-1, 0]], np.float32))
    replacer = WordReplacer(pieces, AugmentSettings(candidates=1), vectors)
    assert not any(word and word.startswith("##") for word in replacer.token_words)
    for number, word in enumerate(replacer.token_words):
        assert word is None or tokenizer.token(number) == word
    [result] = replacer.find_candidates(["zqxy unheard"])
    assert [(item.start, item.words) for item in result] == [(0, ["near"])]
    assert WordReplacer(pieces, AugmentSettings()).find_candidates(["zqxy"]) == [[]]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_copies_change_open_words_alone(data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(["one", "두", "three", "."]), min_size=1, max_size=6))
    text, spans, at = " ".join(words), [], 0
    for word in words:
        if data.draw(st.booleans()):
            spans.append(Replaceable(at, at + len(word), ["X", "YY"]))
        at += len(word) + 1
    replacer = WordReplacer.__new__(WordReplacer)
    replacer.rules = AugmentSettings(copies=8, rate=0.5)
    copies = replacer.make_copies(text, spans, key=data.draw(st.integers(0, 2**32)))
    assert len(set(copies)) == len(copies) <= 8 and text not in copies
    opened = {item.start for item in spans}
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
    for copy in copies:
        for word, start, result in zip(words, starts, copy.split(" "), strict=True):
            assert result == word or (start in opened and result in ("X", "YY"))


def test_every_example_comes_first_and_keeps_its_label(
    model: LoadedModel, reviews: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "more.jsonl"
    read, written = augment(model, reviews[1], out, rules=AugmentSettings(copies=3, rate=1.0))
    given_, made = lines_of(reviews[1]), lines_of(out)
    assert (read, written) == (len(given_), len(made)) and written > 2 * read
    place = 0
    for example in given_:
        assert made[place] == example
        place += 1
        copies = []
        while place < len(made) and made[place] not in given_:
            copies.append(made[place]["text"])
            assert made[place]["label"] == example["label"]
            assert len(made[place]["text"].split()) == len(example["text"].split())
            place += 1
        assert len(copies) <= 3
    assert list(records(out))  # and it is a file of examples again


def test_copies_depend_on_the_example_and_the_seed_alone(
    model: LoadedModel, reviews: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(name: str, seed: int = 0) -> str:
        augment(model, reviews[1], tmp_path / name, rules=AugmentSettings(copies=2, seed=seed))
        return (tmp_path / name).read_text(encoding="utf-8")

    with pytest.raises(UserError, match="There is no folder"):
        made("nowhere/a.jsonl")
    whole = made("a.jsonl")
    assert made("b.jsonl", seed=1) != whole
    monkeypatch.setattr(module, "GROUP_SIZE", 3)
    monkeypatch.setattr(base_of_tasks, "TOKENS", 40)
    assert made("c.jsonl") == whole


def test_of_a_pair_one_text_changes_at_a_time(model: LoadedModel, tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", [{"premise": "good film", "hypothesis": "bad plot", "gold_label": "no"}])
    augment(model, file, tmp_path / "out.jsonl", task="pair", rules=AugmentSettings(copies=4, rate=1.0))
    original, *copies = lines_of(tmp_path / "out.jsonl")
    assert original == lines_of(file)[0]
    changed = [[name for name in original if copy[name] != original[name]] for copy in copies]
    assert ["premise"] in changed and ["hypothesis"] in changed
    assert all(len(names) == 1 for names in changed)


def test_columns_that_nobody_reads_may_hold_half_a_character(model: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_text('{"text": "good film", "label": "a", "note": "\\ud83d"}\n')
    augment(model, file, tmp_path / "out.jsonl", rules=AugmentSettings(copies=1, rate=1.0))
    assert {line["note"] for line in lines_of(tmp_path / "out.jsonl")} == {"\ud83d"}


def test_words_behind_what_the_model_sees_stay(model: LoadedModel) -> None:
    for count in (60, 200):
        [result] = WordReplacer(model, AugmentSettings()).find_candidates([" ".join(["film"] * count)])
        assert 20 < len(result) < 40  # twice the text and three markers, in 64 tokens


def test_the_python_interface(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    read, written = etude.augment(base("bert"), reviews[1], out=tmp_path / "a.jsonl", copies=2, seed=3)
    assert read == 40 < written <= 120
    augment(etude.load(base("bert")), reviews[1], tmp_path / "b.jsonl", rules=AugmentSettings(copies=2, seed=3))
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_examples_in_another_encoding(base: Bases, tmp_path: Path) -> None:
    rows = "".join(f"{text},{label}\n" for text, label in (("영화 정말 좋다", "좋음"), ("good film", "good")))
    for name, codec in (("plain.csv", "utf-8"), ("korean.csv", "cp949")):
        (tmp_path / name).write_bytes(f"text,label\n{rows}".encode(codec))
    etude.augment(base("bert"), tmp_path / "plain.csv", out=tmp_path / "a.jsonl", copies=2)
    etude.augment(base("bert"), tmp_path / "korean.csv", out=tmp_path / "b.jsonl", copies=2, encoding="cp949")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"korean\.csv:2: not UTF-8.*name that, --encoding cp949"):
        etude.augment(base("bert"), tmp_path / "korean.csv", out=tmp_path / "c.jsonl")
    assert not (tmp_path / "c.jsonl").exists()


def test_the_command_line(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    line = ["augment", str(base("bert")), str(reviews[1]), "--copies", "1", "-o", str(tmp_path / "out.jsonl")]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    assert "40 examples and" in done.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": "out.csv"}, "ends with .jsonl"),
        ({"out": "there.jsonl"}, "exists already"),
        ({"task": "tag"}, "cannot be exchanged"),
        ({"task": "tagg"}, "Did you mean"),
        ({"columns": {"text": "review"}}, "there is no column 'review'"),
        ({"file": "none.jsonl"}, "There is no file"),
        ({"file": "empty.jsonl"}, "holds no examples"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_written(
    model: LoadedModel, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write(tmp_path / "in.jsonl", [{"text": "good film", "label": "good"}])
    write(tmp_path / "there.jsonl", [])
    write(tmp_path / "empty.jsonl", [])
    file, out = tmp_path / changes.pop("file", "in.jsonl"), tmp_path / changes.pop("out", "out.jsonl")
    with pytest.raises(UserError) as told:
        augment(model, file, out, **changes)
    assert message in str(told.value)
    assert not (tmp_path / "out.jsonl").exists()


def test_the_wrong_model_or_rules(base: Bases) -> None:
    with pytest.raises(UserError, match="the predictions of a masked model"):
        WordReplacer(etude.load(base("gpt")), AugmentSettings())
    for wrong in ({"copies": 0}, {"rate": 0.0}, {"rate": 1.5}, {"candidates": 0}):
        with pytest.raises(UserError, match="one copy"):
            AugmentSettings(**wrong)  # type: ignore[arg-type]
