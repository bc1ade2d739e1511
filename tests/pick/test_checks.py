"""Inputs of a pick: all that is wrong is one message before anything is computed; the rest is a warning."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.pick.checks import Inputs, check_inputs
from etude.pick.splits import hold_out, make_folds
from etude.runs.task_plan import task_module
from etude.text.prepare.prepare import prepare
from tests.tasks.labelled_records import records


def write_lines(path: Path, items: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    return path


def reviews(count: int, start: int = 0, labels: str = "ab") -> list[dict[str, Any]]:
    return [{"text": f"review {n}", "label": labels[n % len(labels)]} for n in range(start, start + count)]


def check(tmp_path: Path, train: list[dict[str, Any]], **options: Any) -> Inputs:
    paths: dict[str, Any] = {"train": write_lines(tmp_path / "train.jsonl", train)}
    for name in ("dev", "test"):
        if name in options:
            paths[name] = write_lines(tmp_path / f"{name}.jsonl", options.pop(name))
    return check_inputs(options.pop("text", []), options.pop("kind", "classify"), **paths, **options)


def failure(tmp_path: Path, train: list[dict[str, Any]], **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        check(tmp_path, train, **options)
    return str(caught.value)


def test_good_inputs_pass_without_a_word(tmp_path: Path) -> None:
    text = tmp_path / "pile.txt"
    text.write_text("some text\n\nmore of it\n")
    inputs = check(tmp_path, reviews(30), dev=reviews(10, 100), test=reviews(60, 200), text=[str(text)])
    assert not inputs.warnings
    assert (len(inputs.train), len(inputs.dev or ()), len(inputs.test or ())) == (30, 10, 60)
    assert inputs.text is not None and inputs.text.documents == 2 and inputs.corpus is None


def test_labels_in_another_encoding(tmp_path: Path) -> None:
    train = tmp_path / "train.csv"
    rows = [f"영화 {n},{'좋음' if n % 2 else '나쁨'}\n" for n in range(30)]
    train.write_bytes("".join(["text,label\n", *rows]).encode("cp949"))
    with pytest.raises(UserError, match=r"CP949 \(Korean Windows\): name that, --encoding cp949"):
        check_inputs([], "classify", train)
    assert check_inputs([], "classify", train, encoding="cp949").train.classes == ["나쁨", "좋음"]


@pytest.mark.parametrize("kind", ["classify", "pair", "similarity", "choice", "rank", "relation", "tag", "span"])
def test_every_kind_passes(kind: str, tmp_path: Path) -> None:
    items = records(kind, 60, 0)
    if kind == "choice":
        items = [{**item, "question": f"plot {number}"} for number, item in enumerate(items)]
    inputs = check(tmp_path, items, kind=kind)
    assert len(inputs.train) == 60
    rest, held = hold_out(inputs.train, 0.2, 0)
    assert len(rest) + len(held) == 60 and len(held) >= 5
    assert make_folds(inputs.train, 3, 1, 0)


def test_text_and_labels_are_checked_in_one_message(tmp_path: Path) -> None:
    """Labels were checked inside cells, after all pre-training, by the line of an internal split."""
    train = [*reviews(30), {"text": "x"}, {"text": "", "label": "a"}]
    test = [*reviews(60, 100), {"text": "y", "label": "zebra"}]
    message = failure(
        tmp_path, train, test=test, text=[str(tmp_path / "gone.txt")], columns={"txet": "body"}, errors="ignore"
    )
    lines = message.split("\n")
    assert lines[0].startswith("6 problems")
    for words in (
        "gone.txt: no such file", "--errors is 'strict' or 'replace'", "no column 'txet'. Did you mean 'text'?",
        f"{tmp_path}/train.jsonl:31: there is no column 'label'", f"{tmp_path}/train.jsonl:32: the text",
        f"{tmp_path}/test.jsonl:61: the label 'zebra' is not in --train",
    ):  # fmt: skip
        assert any(words in line for line in lines[1:]), words


def test_labels_are_checked_before_the_text_is_read(tmp_path: Path) -> None:
    """Megabytes of text were read, for minutes on a busy machine, before a wrong column was named."""
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": 1}\n')
    message = failure(tmp_path, [{"txet": "x", "label": "a"}] * 30, text=[str(text)])
    assert "no column 'text'" in message and "text.jsonl" not in message
    assert "text.jsonl:1" in failure(tmp_path, reviews(30), text=[str(text)])


def test_skip_bad_leaves_out_and_counts(tmp_path: Path) -> None:
    train = [*reviews(30), {"text": "x"}, {"text": "", "label": "a"}]
    test = [*reviews(60, 100), {"text": "y", "label": "zebra"}]
    inputs = check(tmp_path, train, test=test, skip_bad=True)
    assert (len(inputs.train), len(inputs.test or ())) == (30, 60)
    assert [problem.count for problem in inputs.warnings] == [2, 1]
    assert f"{tmp_path}/train.jsonl:31" in str(inputs.warnings[0])
    assert f"{tmp_path}/test.jsonl:61" in str(inputs.warnings[1])


def test_one_rare_label_is_a_warning(tmp_path: Path) -> None:
    """One rare label killed the whole pick after five minutes."""
    train = [*reviews(40), {"text": "odd", "label": "rare"}]
    inputs = check(tmp_path, train)
    (warning,) = inputs.warnings
    assert str(warning).startswith(f"{tmp_path}/train.jsonl:41: the only example of 'rare'")
    for seed in range(20):
        rest, _ = hold_out(inputs.train, 0.2, seed)
        assert 40 in rest
        learnt = inputs.train.take(rest)
        assert all("rare" in learnt.take(part.train).classes for part in make_folds(learnt, 5, 1, seed))


def test_many_rare_labels_are_one_warning(tmp_path: Path) -> None:
    inputs = check(tmp_path, [*reviews(40), *({"text": f"odd {n}", "label": f"rare{n}"} for n in range(7))])
    (warning,) = inputs.warnings
    assert warning.count == 7 and "'rare0', 'rare1', 'rare2', 'rare3', 'rare4', ..." in str(warning)


def test_too_few_examples(tmp_path: Path) -> None:
    assert "12 different examples to learn from; at least 20 are needed" in failure(tmp_path, reviews(12))
    assert len(check(tmp_path, reviews(12), test=reviews(60, 100)).train) == 12
    assert "at least 10 are needed." in failure(tmp_path, reviews(8), test=reviews(60, 100))
    same = [{"text": "same", "label": "a"}] * 20 + reviews(5)
    assert "6 different examples" in failure(tmp_path, same)


def test_one_label_is_no_choice(tmp_path: Path) -> None:
    assert "Give two or more" in failure(tmp_path, reviews(30, labels="a"))
    assert f"{tmp_path}/train.jsonl" in failure(tmp_path, reviews(30, labels="a"))


def test_a_score_that_folds_cannot_add_up_is_said_first(tmp_path: Path) -> None:
    """It ended the pick after the first contender, with a word about studies."""
    settings = task_module("classify").Settings(score="auprc")
    message = failure(tmp_path, reviews(30), settings=settings)
    assert "task.score=auprc" in message and "study" not in message


def test_examples_of_test_leave_train(tmp_path: Path) -> None:
    test = [*reviews(50, 100), *reviews(3)]
    dev = [*reviews(20, 200), *reviews(2, 100)]
    inputs = check(tmp_path, reviews(30), dev=dev, test=test)
    assert (len(inputs.train), len(inputs.dev or ()), len(inputs.test or ())) == (27, 20, 53)
    assert [problem.count for problem in inputs.warnings] == [3, 2]
    assert str(inputs.warnings[0]).startswith(f"{tmp_path}/train.jsonl:1: 3 examples of --train are also in --test")
    assert inputs.train.examples.places[0] == f"{tmp_path}/train.jsonl:4"


def test_an_overlap_never_takes_a_class_from_train(tmp_path: Path) -> None:
    odd = {"text": "odd", "label": "rare"}
    inputs = check(tmp_path, [*reviews(30), odd], test=[*reviews(60, 100), odd])
    assert "rare" in inputs.train.classes
    assert inputs.test is not None and "rare" not in inputs.test.classes


@pytest.mark.parametrize("kind", ["classify", "pair", "similarity", "choice", "rank", "relation", "tag", "span"])
@pytest.mark.parametrize("name", ["dev", "test"])
def test_the_same_file_twice(kind: str, name: str, tmp_path: Path) -> None:
    """Of similarity it was a traceback; of others, nothing said why so few were left."""
    items = records(kind, 60, 0)
    message = failure(tmp_path, items, kind=kind, **{name: items})
    assert "different examples to learn from" in message and "others are also in --dev or --test" in message


def test_unseen_labels_name_their_lines(tmp_path: Path) -> None:
    test = [*reviews(60, 100), {"text": "x", "label": "B"}, {"text": "y", "label": "c"}]
    message = failure(tmp_path, reviews(30), test=test)
    assert f"{tmp_path}/test.jsonl:61: the label 'B' is not in --train." in message
    assert f"{tmp_path}/test.jsonl:62: the label 'c'" in message


def test_unseen_tags_of_test_count_as_wrong(tmp_path: Path) -> None:
    train, test = records("tag", 60, 0), records("tag", 60, 1)
    test.append({"tokens": ["Etna"], "ner": ["B-MOUNTAIN"]})
    inputs = check(tmp_path, train, test=test, kind="tag")
    assert any("count as wrong answers: 'B-MOUNTAIN'" in str(problem) for problem in inputs.warnings)
    assert "the label 'B-MOUNTAIN' is not in --train" in failure(tmp_path, train, dev=test, kind="tag")


def test_a_prepared_corpus_in_place_of_text(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one\n\ntwo\n")
    corpus = prepare(str(text), tmp_path / "corpus", "char", valid=0)
    inputs = check(tmp_path, reviews(30), text=[str(corpus.folder)])
    assert inputs.corpus == corpus.folder and inputs.text is None
    message = failure(tmp_path, reviews(30), text=[str(corpus.folder)], unique=True, text_field=["body"])
    assert "--unique says how text is read" in message and "--text-field says" in message, "they were ignored"
    assert "which stands alone" in failure(tmp_path, reviews(30), text=[str(corpus.folder), str(text)])
    (corpus.folder / "tokenizer.json").unlink()
    assert "tokenizer" in failure(tmp_path, reviews(30), text=[str(corpus.folder)])


def test_an_unknown_task_is_said_with_the_rest(tmp_path: Path) -> None:
    message = failure(tmp_path, reviews(30), kind="clasify", text=[str(tmp_path / "gone.txt")])
    assert "classify" in message and "gone.txt" in message


def list_options() -> set[str]:
    """The options of the verb itself."""
    from typer.core import TyperGroup
    from typer.main import get_command

    from etude.cli.main import app

    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return {name for option in group.commands["pick"].params for name in option.opts if name.startswith("--")}


def test_hints_name_options_of_pick_only(tmp_path: Path) -> None:
    """Hints named options that pick lacks, such as --data."""
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"body": 1}\n{"text": "\\ud800"}\n{"text": "x"}\n\xff\n')
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"text\0more")
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    table = tmp_path / "table.csv"
    table.write_text("id,memo\n1,x\n", encoding="utf-8")
    text = [str(path) for path in (bad, broken, latin, table, tmp_path / "gone.txt")]
    train = [*reviews(5), {"text": "x"}, {"label": "a"}, {"text": "", "label": "a"}, {"text": "z", "label": [1]}]
    messages = [
        failure(tmp_path, train, test=[{"text": "x", "label": "zebra"}], text=text, text_field=["gone=x", "=x"]),
        failure(tmp_path, reviews(12), test=[*reviews(1, 100), {"text": "x", "label": "zebra"}]),
        failure(tmp_path, reviews(12, labels="a")),
        failure(tmp_path, reviews(12)),
        failure(tmp_path, reviews(12), columns={"tex": "a"}),
        failure(tmp_path, [{"tokens": ["a"], "ner": ["B-"]}, *records("tag", 30, 0)], kind="tag"),
    ]
    with pytest.raises(UserError) as caught:
        check_inputs([], "classify", tmp_path / "gone.csv")
    named = re.sub(r"etude prepare[^.]*", "", "\n".join([*messages, str(caught.value)]))  # hints to another verb
    options = set(re.findall(r"--[a-z][a-z-]*", named))
    assert options <= list_options() and len(options) >= 5, options


def test_many_unknown_labels_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of thousands was compared with every label of train: minutes, for twenty lines."""
    compared: list[str] = []
    monkeypatch.setattr("etude.pick.checks.suggest_name", lambda label, known: compared.append(label) or " Like a.")
    words = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200)]
    test = [{"text": f"more {n}", "label": label} for n, label in enumerate(words * 2)]
    message = failure(tmp_path, reviews(30), test=test)
    assert message.startswith("400 problems") and "the label 'ab' is not in --train. Like a." in message
    assert len(compared) == 20


def test_labels_that_are_whole_texts_are_cut(tmp_path: Path) -> None:
    """With the wrong column, twenty whole articles stood in one message."""
    train = [{"text": f"review {n}", "label": f"{n} " + "long " * 500} for n in range(30)]
    test = [{"text": f"more {n}", "label": f"{chr(97 + n)} " + "long " * 500} for n in range(20)]
    message = failure(tmp_path, train, test=test, columns={})
    assert "the label 'a long long" in message and len(message) < 60_000, len(message)
    assert all(len(str(problem)) < 1000 for problem in check(tmp_path, train).warnings)
