"""What a new user is told to do next: it fits the text and the machine, its cost is known, and the commands run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from etude.cli.advice import (
    CAUSAL_CPU,
    CAUSAL_GPU,
    CPU,
    ERNIE,
    GPU,
    LINKED_GPU,
    PAIRS,
    WORDS,
    advise,
    advise_on_time,
    find_continuable,
    format_duration,
)  # fmt: skip
from etude.cli.main import app
from etude.pretraining.trial import TRIAL_TOKENS, shorten_steps
from etude.recipes.schema import Recipe
from etude.train import schedule


def manifest(tokens: int, kind: str = "wordpiece", pairs: list[str] | None = None, held_out: int = 2) -> dict[str, Any]:
    parts = {"train": {"tokens": tokens, "documents": 100}, "valid": {"tokens": 50, "documents": held_out}}
    return {"parts": parts, "tokenizer": {"kind": kind}, "settings": {"reading": {"pairs": pairs}}}


def test_the_recipe_fits_the_text_and_the_machine() -> None:
    assert advise(manifest(90_000), has_gpu=False).recipe == "bert-toy"
    assert advise(manifest(2_000_000), has_gpu=False).recipe == "bert-tiny"
    assert advise(manifest(40_000_000), has_gpu=True).recipe == "bert-small"
    assert advise(manifest(90_000, "word"), has_gpu=True).recipe == "skipgram-toy"
    assert advise(manifest(90_000, "bytebpe"), has_gpu=False).recipe == "gpt2-toy"  # as the first tutorial goes on
    assert advise(manifest(90_000, "bpe"), has_gpu=False).recipe == "bert-toy"
    assert advise(manifest(90_000, "bytebpe", pairs=["en", "ko"]), has_gpu=False).recipe == "transformer-toy"
    assert advise(manifest(90_000, pairs=["en", "ko"]), has_gpu=False).recipe == "transformer-toy"
    words = advise(manifest(2_000_000), has_gpu=False)
    assert "2 million tokens on this CPU" in words.reason
    assert all(f"train.minutes={words.minutes}" in line for line in words.commands("data/x")), "its cost is known"


def test_no_next_sentence_is_asked_where_there_is_no_other_document() -> None:
    settings = advise(manifest(2_000_000, held_out=1), has_gpu=False).settings
    assert "objective.sentence=none" in settings and "train.warmup=0.1" in settings
    assert "sentence" not in advise(manifest(2_000_000), has_gpu=False).settings
    assert "sentence" not in advise(manifest(90_000, "word", held_out=1), has_gpu=False).settings


@pytest.mark.parametrize("part", ["train", "valid"])
def test_no_next_sentence_is_asked_where_documents_are_single_sentences(part: str) -> None:
    single = manifest(2_000_000)
    for values in single["parts"].values():
        values["sentences"] = 3 * values["documents"]
    assert "sentence" not in advise(single, has_gpu=False).settings
    single["parts"][part]["sentences"] = single["parts"][part]["documents"]
    assert "objective.sentence=none" in advise(single, has_gpu=False).settings


def test_a_tokenizer_without_a_mask_gets_a_causal_model(tmp_path: Path, short_trials: None) -> None:
    """GPT-2's has end-of-text alone."""
    letters = {letter: number for number, letter in enumerate([*map(chr, range(33, 127)), "Ġ", "Ċ", "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(letters), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("A cat sat on a mat. It was glad.\n\n" * 60, encoding="utf-8")
    done = CliRunner().invoke(
        app, ["prepare", str(tmp_path / "text.txt"), "-o", str(tmp_path / "data"), "-t", str(tmp_path)]
    )
    line = next(line.strip() for line in done.stdout.splitlines() if line.strip().startswith("etude check"))
    assert "gpt2" in line and "a causal model for" in done.stdout
    assert CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False).exit_code == 0


@pytest.mark.parametrize("row", [*CPU, *GPU, *CAUSAL_CPU, *CAUSAL_GPU, *PAIRS, *WORDS], ids=lambda row: row[1])
def test_every_advised_recipe_takes_its_settings(row: tuple[int, str, int, str]) -> None:
    _, recipe, minutes, settings = row
    loaded = Recipe.load(recipe, [f"train.minutes={minutes}", *settings.split()]).resolve(vocab=2000)
    assert loaded.train.minutes == minutes and loaded.train.steps is None
    assert schedule.warmup_steps(loaded.train, 200) < 100, "a short run is not all warm-up"


@pytest.mark.parametrize("row", [*CPU, *LINKED_GPU], ids=lambda row: row[1])
def test_ernie_has_the_sizes_of_the_masked_model_that_it_starts_from(row: tuple[int, str, int, str]) -> None:
    _, recipe, minutes, settings = row
    bert = Recipe.load(recipe).resolve(vocab=2000).model
    words = [f"train.minutes={minutes}", *settings.split(), *shlex.split(ERNIE[recipe].settings)]
    ernie = Recipe.load(ERNIE[recipe].recipe, words).resolve(vocab=2000).model
    for name in ("layers", "width", "heads", "context"):
        assert getattr(ernie, name) == getattr(bert, name), name
    vectors = Recipe.load(ERNIE[recipe].vectors, ERNIE[recipe].vector_settings.split()).model
    assert ernie.entity_width == vectors.width


def test_text_that_is_linked_to_a_graph_is_led_to_ernie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_trials: None
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["Seoul", "Korea", "Busan", "Paris", "France"]
    pairs = [(0, 1), (2, 1), (3, 4)]
    Path("t.tsv").write_text("".join(f"{names[a]}\tin\t{names[b]}\n" for a, b in pairs), encoding="utf-8")
    text = [f"Seoul is in Korea. So is Busan {number}. Paris is in France." for number in range(60)]
    Path("text.txt").write_text("\n\n".join(text), encoding="utf-8")
    for words in ("t.tsv --graph -o 'my graph'", "text.txt --link 'my graph' -o data -t wordpiece:200"):
        done = CliRunner().invoke(app, ["prepare", *shlex.split(words)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("etude ")]
    assert [shlex.split(line)[1] for line in lines] == ["check", "pretrain", "pretrain", "pretrain"]
    assert "ernie" in lines[-1] and "'my graph'" in lines[2]
    for line in lines[1:]:  # as printed, but for a few steps
        words = [word for word in shlex.split(line)[1:] if not word.startswith("train.minutes")]
        done = CliRunner().invoke(app, [*words, "train.steps=2"], catch_exceptions=False)
        assert done.exit_code == 0, done.output


def test_a_run_may_go_on_with_text_in_its_own_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_trials: None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("A cat sat on a mat. It was glad.\n\n" * 60, encoding="utf-8")
    for line in ("prepare text.txt -o data -t wordpiece:200", "pretrain bert-toy data -o 'runs/my bert' train.steps=2"):
        done = CliRunner().invoke(app, shlex.split(line), catch_exceptions=False)
        assert done.exit_code == 0 and "go on with the model" not in done.output, done.output
    done = CliRunner().invoke(app, ["prepare", "text.txt", "-o", "more", "-t", "runs/my bert"])
    (line,) = (line.strip() for line in done.stdout.splitlines() if line.startswith("  etude pretrain 'runs/my bert'"))
    words = shlex.split(line)[1:]
    assert words[:5] == ["pretrain", "runs/my bert", "more", "-o", "runs/my bert-2"] and "train.minutes" in words[5]
    done = CliRunner().invoke(app, [*words[:5], "train.steps=2"], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_no_run_is_proposed_that_the_text_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    recipe = tmp_path / "recipe.yaml"
    for content, fits_text, fits_pairs in (
        ("objective: {kind: masked}", True, False), ("objective: {kind: causal}", True, False),
        ("objective: {kind: translate}", False, True), ("objective: {kind: skipgram}", False, False),
        ("objective: [", False, False), ("objective: 5", False, False),
    ):  # fmt: skip
        recipe.write_text(content, encoding="utf-8")
        found = [find_continuable(tmp_path, are_pairs) is not None for are_pairs in (False, True)]
        assert found == [fits_text, fits_pairs], content
    recipe.write_text("objective: {kind: masked}", encoding="utf-8")
    (tmp_path / "task.yaml").touch()
    assert find_continuable(tmp_path, False) is None and find_continuable("wordpiece:200", False) is None


def test_linked_words_get_no_ernie() -> None:
    linked = {"entities": {"graph": "x"}}
    assert advise(manifest(90_000, "word") | linked, has_gpu=False).ernie is None
    assert advise(manifest(90_000), has_gpu=True).ernie is None
    assert advise(manifest(10**9) | linked, has_gpu=True).recipe == "bert-base"


@pytest.mark.parametrize("document", ["A cat sat on a mat. It was glad.", "고양이가 앉았다."])
def test_prepare_ends_with_commands_that_can_be_typed(document: str, tmp_path: Path, short_trials: None) -> None:
    text = tmp_path / "a text.txt"
    text.write_text(f"{document}\n\n" * 60, encoding="utf-8")
    done = CliRunner().invoke(app, ["prepare", str(text), "-o", str(tmp_path / "my data"), "-t", "wordpiece:200"])
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("etude ")]
    assert len(lines) == 2 and "bert-small" not in done.stdout
    assert "in about 2 min" in done.stdout or "in about 1 min" in done.stdout, "on a CPU, on a GPU"
    check = shlex.split(lines[0])[1:]
    checked = CliRunner().invoke(app, check, catch_exceptions=False)
    assert checked.exit_code == 0 and "time" in checked.stdout


def test_the_run_is_a_folder_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    advice = advise(manifest(2_000_000), has_gpu=False)
    for wanted in ("runs/bert", "runs/bert-2", "runs/bert-3"):
        assert f" -o {wanted} " in advice.commands("data/x")[1]
        (tmp_path / wanted).mkdir(parents=True)


def test_a_run_of_years_is_called_so() -> None:
    assert format_duration(90) == "1.5 min" and format_duration(51_216.9 * 3600) == "5.8 years"
    assert advise_on_time("bert-small", "data/x", 3600.0) is None
    assert "train.minutes=60" in str(advise_on_time("bert-small", "data/x", 1e9))


def test_a_trial_on_a_cpu_takes_short_steps() -> None:
    import torch

    recipe = Recipe.load("bert-small").resolve(vocab=2000)
    assert shorten_steps(recipe, torch.device("cpu"), 512).train.batch_tokens == TRIAL_TOKENS
    assert shorten_steps(recipe, torch.device("cpu"), 4096).train.batch_tokens == 4096, "one row at least"
    assert shorten_steps(recipe, torch.device("cuda"), 512) is recipe
