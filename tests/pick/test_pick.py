"""A whole pick: the winner is returned, scored on what nothing was chosen on, refitted on all labels, and exported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.errors import UserError
from etude.inference.abstention import FILE as ABSTENTION
from etude.inference.abstention import Abstention, read_abstention
from etude.pick import report
from etude.pick.candidates import parse_candidates
from etude.pick.pick import PickResult, identify_recipe
from etude.text.run_checksums import verify_checksums
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.world import World


def write_labels(path: Path, count: int, first: int = 0) -> Path:
    records = World().task("topic", "train", first + count)[first:]
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def picked(tmp_path_factory: pytest.TempPathFactory) -> tuple[PickResult, list[str]]:
    folder = tmp_path_factory.mktemp("pick")
    lines: list[str] = []
    train = write_labels(folder / "labels.jsonl", 60)
    result = etude.pick(task="classify", train=train, out=folder / "out", minutes=2, on_progress=lines.append)
    return result, lines


def test_the_winner_comes_home(picked: tuple[PickResult, list[str]]) -> None:
    result, lines = picked
    results = result.results
    assert results["labels"] == {"chosen_on": 48, "scored_on": 12, "refit_on": 60, "has_test": False}
    assert results["held_out"]["examples"] == 12
    assert results["winner"] in ("tfidf", "ngrams") and results["rows"][0]["name"] == results["winner"]
    rows = [row for row in results["rows"] if row["is_selectable"] and row["folds"] == results["folds"]]
    for better, worse in pairwise(rows):
        is_likelier = better["log_loss"] <= worse["log_loss"]
        assert better["score"] >= worse["score"] or is_likelier, "the table is ordered by what chose"
    assert any("leads" in line for line in lines) and any("refitting" in line for line in lines)
    assert results["seconds"] <= 1.1 * 120


def test_it_is_used_like_any_model(picked: tuple[PickResult, list[str]], tmp_path: Path) -> None:
    result, _ = picked
    test = World().task("topic", "test", 20)
    texts = [record["text"] for record in test]
    answers = etude.load(result.model).predict(texts)
    assert answers == result.predict(texts) and {*answers[0]} == {"label", "scores"}
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in test))
    assert result.evaluate(path)["accuracy"].count == 20
    loader = sorted((result.model / "export").glob("*.py"))
    assert result.results["not_exported"] is None and loader, "the export runs without etude"
    assert result.export(tmp_path / "exported").is_dir()


def test_the_card_of_a_baseline_names_no_path_of_this_machine(picked: tuple[PickResult, list[str]]) -> None:
    """It is published with the model: its commands are those of the folder, as on the cards of runs."""
    folder = picked[0].model
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# best\n") and "learnt from all 60 labels" in card
    assert "    etude predict . < lines.txt\n" in card and "`report.html`" in card and "`export`" in card
    assert str(folder.parent) not in card and (folder / "export/predict.py").is_file()
    assert verify_checksums(folder), "a card may be edited: it is not among the files that are checked"


def test_the_report_says_it_in_two_languages(picked: tuple[PickResult, list[str]]) -> None:
    page = picked[0].page.read_text(encoding="utf-8")
    assert "Which model is best here" in page and "여기서는 어떤 모형이 가장 좋은가" in page
    assert "etude predict best" in page and not re.search(r"https?://", page), "nothing is loaded from elsewhere"
    assert str(picked[0].folder) not in page
    assert "정확도" in page and "5 folds, 3 times" in page and "5겹씩 3번" in page
    for note in picked[0].results["notes"]:
        assert note["en"] in page and note["ko"] in page and re.search("[가-힣]", note["ko"])


def test_only_what_was_tried_is_beaten(picked: tuple[PickResult, list[str]]) -> None:
    """Where there was time for bags of words alone, nothing is known of the others."""
    result, claim = picked[0], "Nothing beats a bag of words here"
    assert not any(line.startswith(claim) for line in report.summarize(result))
    rows = [*result.results["rows"], {**result.results["rows"][0], "name": "vectors"}]
    rival = PickResult(result.folder, {**result.results, "rows": rows})
    assert any(line.startswith(claim) for line in report.summarize(rival))


def test_the_same_pick_again_is_there_already(picked: tuple[PickResult, list[str]]) -> None:
    result, _ = picked
    lines: list[str] = []
    again = etude.pick(
        task="classify", train=result.folder.parent / "labels.jsonl", out=result.folder, minutes=2,
        on_progress=lines.append,
    )  # fmt: skip
    assert again.results == result.results and any("done already" in line for line in lines)


def test_changed_labels_are_not_ignored(tmp_path: Path) -> None:
    """A changed --train in the same folder used to return the old model."""
    train = write_labels(tmp_path / "labels.jsonl", 40)
    dev = write_labels(tmp_path / "dev.jsonl", 20, first=200)
    first = etude.pick(task="classify", train=train, dev=dev, out=tmp_path / "out", minutes=2)
    old = (first.model / "model.safetensors").read_bytes()
    write_labels(train, 40, first=100)
    lines: list[str] = []
    etude.pick(task="classify", train=train, dev=dev, out=tmp_path / "out", minutes=2, on_progress=lines.append)
    assert any(line.startswith("Changed since the last pick here: the labels.") for line in lines)
    assert (first.model / "model.safetensors").read_bytes() != old


def test_a_dev_and_a_test_file_are_used_as_such(tmp_path: Path) -> None:
    parts = {name: write_labels(tmp_path / f"{name}.jsonl", 30, 50 * number)
             for number, name in enumerate(("train", "dev", "test"))}  # fmt: skip
    result = etude.pick(
        task="classify", train=parts["train"], dev=parts["dev"], test=parts["test"], out=tmp_path / "out", minutes=2
    )
    labels = result.results["labels"]
    assert labels["has_test"] and labels["scored_on"] <= 30 and result.results["folds"] == 1
    assert labels["refit_on"] == labels["chosen_on"] > 40, "dev is learnt from in the end, the test file never"
    page, count = result.page.read_text(encoding="utf-8"), result.results["dev_examples"]
    assert count <= 30 and f"compared on the {count} of the dev file" in page and "one split" not in page
    assert f"개발(dev) 파일의 {count}개로 후보를 비교했으며" in page and "교차 검증" not in page


def test_unsure_answers_are_withheld(picked: tuple[PickResult, list[str]], tmp_path: Path) -> None:
    result, _ = picked
    texts = [record["text"] for record in World().task("topic", "test", 20)]
    plain = result.predict(texts)
    confidence = sorted(max(answer["scores"].values()) for answer in plain)
    Abstention(confidence[10], 0.9).write(result.model)
    try:
        answers = etude.load(result.model).predict(texts)
    finally:
        (result.model / ABSTENTION).unlink()
    assert sum(answer["label"] is None for answer in answers) == 10
    assert [answer.get("guess", answer["label"]) for answer in answers] == [answer["label"] for answer in plain]
    (tmp_path / ABSTENTION).write_text('{"threshold": 2, "accuracy": 1}')
    with pytest.raises(UserError, match="between 0 and 1"):
        read_abstention(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 0.1}, "at least 20 seconds"),
        ({"accuracy": 95}, "such as 0.95"),
        ({"start": ["nowhere"]}, "there is no such folder"),
        ({"columns": {"txt": "a"}}, "Did you mean 'text'"),
        ({"score": "accurracy"}, "accuracy"),
        ({"task": "entity_typing"}, "A pick compares models of choice, .* and has none of entity_typing"),
        ({"recipes": "bert-toy,bert-tyo"}, "There is no recipe named 'bert-tyo'"),
        ({"recipes": "bert-toy"}, "--recipes is of plain text, and none is named"),
        ({"text_field": ["body"]}, "--text-field is of plain text"),
        ({"unique": True}, "--unique is of plain text"),
        ({"seed": -1}, "a seed is 0 or more"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_done(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    train = write_labels(tmp_path / "labels.jsonl", 40)
    with pytest.raises(UserError, match=message):
        etude.pick(**{"task": "classify", "train": train, "out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["best", "results.json", "recipe.yaml"])
def test_what_lies_in_another_folder_is_not_written_over(name: str, tmp_path: Path) -> None:
    """With -o runs, a run that somebody had called runs/best was removed for the model of the pick."""
    train = write_labels(tmp_path / "labels.jsonl", 40)
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(UserError, match=f"out holds {name}, which no pick has put there"):
        etude.pick(task="classify", train=train, out=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_a_folder_that_cannot_be_written_is_told_before_text_is_read(tmp_path: Path) -> None:
    """Reading all text may take minutes."""
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(UserError, match=r"file is a file\. Choose another folder with -o"):
            etude.pick("nowhere.txt", task="classify", train="nowhere.jsonl", out=out)


def test_what_a_pick_writes_is_no_text(tmp_path: Path) -> None:
    """With -o in the folder of the text, the same command read the answers of its own trials, and failed."""
    train = write_labels(tmp_path / "labels.jsonl", 40)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("one two three\n")
    for out in (tmp_path / "text", tmp_path / "text" / "deep" / "out"):
        with pytest.raises(UserError, match="all files there are read as text"):
            etude.pick(tmp_path / "text", task="classify", train=train, out=out)
    assert [path.name for path in (tmp_path / "text").iterdir()] == ["a.txt"]


def test_a_start_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    """It was left out with a line in the middle of the pick, and neither answer nor report knew of it."""
    train = write_labels(tmp_path / "labels.jsonl", 40)
    start = tmp_path / "start"
    start.mkdir()
    (start / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="neither a run"):
        etude.pick(task="classify", train=train, out=tmp_path / "out", start=[str(start)])
    (start / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=f"--start {start}: "):
        etude.pick(task="classify", train=train, out=tmp_path / "out", start=[str(start)])
    assert not (tmp_path / "out").exists()


def test_a_data_set_by_name_has_its_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "'klue-tc' is not a kind of task. Did you mean 'klue-tc'?", though `etude tasks` lists it."""
    calls: list[tuple[str, str]] = []

    def stop(text: object, task: str, train: object, *, settings: Any, **_: object) -> None:
        calls.append((task, settings.score))
        raise UserError("enough")

    monkeypatch.setattr("etude.pick.pick.check_inputs", stop)
    for options in ({}, {"score": "mcc"}):
        with pytest.raises(UserError, match="enough"):
            etude.pick(task="klue-tc", train=tmp_path / "a.jsonl", out=tmp_path / "out", **options)
    assert calls == [("classify", "macro_f1"), ("classify", "mcc")]


def test_an_edited_recipe_is_another_input(tmp_path: Path) -> None:
    """A pick knew recipes by their name: after an edit it was "done already"."""
    recipe, tokenizer = tmp_path / "mine.yaml", tmp_path / "tokenizer.json"

    def fingerprint() -> dict[str, str]:
        (candidate,) = parse_candidates([str(recipe)], "cpu")
        return {"recipe": json.dumps(identify_recipe(candidate))}

    Tokenizer.train("word:50", ["one two three"]).save(tmp_path)
    recipe.write_text(f"extends: bert-toy\nname: mine\ntokenizer: {tokenizer}\n")
    first = fingerprint()
    assert fingerprint() == first
    Tokenizer.train("word:50", ["four five six"]).save(tmp_path)
    second = fingerprint()
    recipe.write_text(f"{recipe.read_text()}train: {{lr: 0.5}}\n")
    assert first != second != fingerprint()


def test_an_accuracy_is_one_of_labels(tmp_path: Path) -> None:
    """Of a number there is nothing to withhold: the option had no effect, and nobody was told."""
    records = [{"text_a": f"text {n}", "text_b": "film", "score": n % 5} for n in range(30)]
    train = tmp_path / "labels.jsonl"
    train.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(UserError, match="--accuracy withholds labels that are unsure, and similarity answers none"):
        etude.pick(task="similarity", train=train, out=tmp_path / "out", accuracy=0.9)
    assert not (tmp_path / "out").exists()


def test_the_command_tries_the_default_recipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An option that is not given must reach the pick as nothing: `()` was once read as the name of a recipe."""
    from typer.testing import CliRunner

    from etude.cli.main import app
    from etude.pick import pick as picking

    calls: list[dict[str, Any]] = []

    def record(*arguments: Any, **options: Any) -> PickResult:
        calls.append(options)
        raise UserError("enough")

    monkeypatch.setattr(picking, "pick", record)
    CliRunner().invoke(
        app, ["pick", "town.txt", "--task", "classify", "--train", "labels.csv", "-o", str(tmp_path / "x")]
    )
    assert calls and not calls[0]["recipes"] and not calls[0]["starts"] and not calls[0]["text_field"]


def test_settings_of_the_task_stand_among_the_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hints such as "set task.scheme=auto" can be followed."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("etude.pick.pick.pick", lambda *words, **options: calls.append((words[0], options["settings"])))
    etude.pick(["a.txt", "task.scheme=auto"], task="tag", train="x.conll", out=tmp_path, score="accuracy")
    assert calls == [(["a.txt"], {"task.scheme": "auto", "task.score": "accuracy"})]


def test_the_command_loads_nothing_heavy_before_its_clock_starts() -> None:
    """Loading torch takes seconds on a busy machine, and they count: the verb starts its clock, then loads."""
    code = (
        "import sys\nfrom etude.cli.exits import interruptible\nimport etude.cli.main\n"
        "with interruptible('stopped'):\n    assert 'torch' not in sys.modules, 'loaded before the verb is called'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
