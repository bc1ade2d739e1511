"""Files of a study's tasks: no example on two sides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.study.label_splits import prepare_labels, split_files
from etude.study.sections import Task
from etude.study.text_source import TextSource
from etude.tasks import rank
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


def test_a_part_of_a_sorted_file_has_all_its_classes(tmp_path: Path) -> None:
    """The first hundred of a test file that is sorted by label are all of one class, and any majority is right."""
    examples = [{"text": f"text {number}", "label": "ab"[number // 200]} for number in range(400)]
    shuffled = [examples[number * 7 % 400] for number in range(400)]
    for name, records in (("sorted.jsonl", examples), ("shuffled.jsonl", shuffled)):
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in ("sorted", "shuffled")}
    for name, test in paths.items():
        task = Task(
            kind="classify", train=paths["shuffled"], dev=paths["shuffled"], test=test, dev_size=40, test_size=100
        )
        part = split_files(task, None)["test"]
        assert len(part) == 100 and 30 <= sum(record["label"] == "a" for record in part) <= 70
        assert name == "sorted" or part == shuffled[:100], "a file in any order is read from its start"


@pytest.mark.parametrize("own", [{"seed": 1}, {"valid": 0.01}])
def test_nobody_learns_from_what_tasks_are_made_from(own: dict[str, float], tmp_path: Path) -> None:
    task = {"kind": "classify", "made": "next", "labels": 4}
    changes = {"text": {"files": ["books.txt"], "valid": 0.1}, "contenders.bert.text": own, "tasks": {"next": task}}
    study = tiny(claims=[], **changes)
    with pytest.raises(UserError, match=r"contenders\.bert\.text: .* documents that tasks are made from"):
        prepare_labels(study, "next", TextSource(study.text, tmp_path), "word:100")


@pytest.mark.parametrize("own", [["books/a.txt"], ["more.txt", "books"]])
def test_nor_where_it_reads_some_of_the_files(own: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a pattern and a name may be of one file: that the lists differ says nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    for name in ("books/a.txt", "books/b.txt", "more.txt"):
        (tmp_path / name).write_text("One. Two. Three.\n")
    task = {"kind": "classify", "made": "next", "labels": 4}
    changes = {"text": {"files": ["books/*.txt"], "valid": 0.1}, "tasks": {"next": task}}
    study = tiny(claims=[], **changes, **{"contenders.bert.text": {"files": own, "valid": 0.1, "seed": 1}})
    with pytest.raises(UserError, match=r"contenders\.bert\.text: .* documents that tasks are made from"):
        prepare_labels(study, "next", TextSource(study.text, tmp_path), "word:100")
    apart = tiny(claims=[], **changes, **{"contenders.bert.text": {"files": ["more.txt"], "valid": 0.1, "seed": 1}})
    with pytest.raises(UserError, match=r"The split 'valid' .* is empty"):  # it is no concern of the task's
        prepare_labels(apart, "next", TextSource(apart.text, tmp_path), "word:100")


def test_a_query_is_on_one_side_with_all_its_candidates(tmp_path: Path) -> None:
    """A file of pairs has a line for each candidate: lines of one query must not be learnt from and asked about."""
    lines = ["Question\tSentence\tLabel"]
    lines += [f"query {query}\tanswer {query}.{place}\t{int(place == 1)}" for query in range(60) for place in range(4)]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n")
    parts = split_files(Task(kind="rank", train=str(path)), None)
    queries = {name: [record["query"] for record in part] for name, part in parts.items()}
    assert sorted(query for part in queries.values() for query in part) == sorted(f"query {n}" for n in range(60))
    assert all(len(record["candidates"]) == 4 for part in parts.values() for record in part)
    study = tiny(tasks={"answers": {"kind": "rank", "train": str(path), "labels": 10}}, claims=[])
    train = prepare_labels(study, "answers", TextSource(study.text, tmp_path), "word:100").write_train(10, 0)
    assert len(rank.read(train)) == 10, "and labels are drawn by the query"


def test_pseudo_words_of_different_tokenizers_are_refused(tmp_path: Path) -> None:
    """Which words are merged follows from the tokenizer: others would have read the words of the task as they were."""
    task = {"kind": "tag", "made": "sense", "labels": 4, "dev_size": 4, "test_size": 4}
    changes = {"text": {"files": ["books.txt"], "pseudo_words": 2}, "contenders.gpt.set.tokenizer": "word:200"}
    study = tiny(tasks={"senses": task}, claims=[], **changes)
    with pytest.raises(UserError, match=r"contenders\.gpt: pseudo-words .* tokenizer word:200 has others"):
        prepare_labels(study, "senses", TextSource(study.text, tmp_path), "word:100")


def test_columns_that_nobody_reads_may_hold_anything(tmp_path: Path) -> None:
    """Half a surrogate pair, as scraped text has it, broke off a study before its first cell."""
    records = [{"text": f"text {number}", "label": "ab"[number % 2], "note": "\ud83d"} for number in range(60)]
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    study = tiny(tasks={"topic": {"kind": "classify", "train": str(path), "labels": 10}}, claims=[])
    train = prepare_labels(study, "topic", TextSource(study.text, tmp_path), "word:100").write_train(10, 0)
    written = [json.loads(line) for line in train.read_text(encoding="utf-8").splitlines()]
    assert len(written) == 10 and all(record in records for record in written)


@pytest.mark.parametrize(
    ("bad", "message"),
    [({"text": "", "label": "a"}, "the text in the column 'text' is empty"), ({"text": "x"}, "no column 'label'")],
)
@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_a_bad_example_is_found_before_anything_runs(
    part: str, bad: dict[str, str], message: str, tmp_path: Path
) -> None:
    """A cell would find it after its pre-training, and name a line of the study's own copy."""
    good = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(40)]
    for name in ("train", "dev", "test"):
        records = [*good, bad, *good] if name == part else good
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "dev", "test")}
    study = tiny(tasks={"topic": {"kind": "classify", **paths}}, claims=[])
    with pytest.raises(UserError, match=rf"{part}\.jsonl:41: .*{message}") as refused:
        prepare_labels(study, "topic", TextSource(study.text, tmp_path), "word:100")
    assert "--skip-bad" not in str(refused.value), "a study has no such option"


def test_files_in_another_encoding_are_read_by_its_name(tmp_path: Path) -> None:
    rows = "".join(f"재밌었다 {number},{'좋음' if number % 2 else '나쁨'}\n" for number in range(60))
    file = tmp_path / "all.csv"
    file.write_bytes(f"text,label\n{rows}".encode("cp949"))

    def prepare(**settings: object) -> list[dict[str, str]]:
        study = tiny(tasks={"topic": {"kind": "classify", "train": str(file), "labels": 10, **settings}}, claims=[])
        files = prepare_labels(study, "topic", TextSource(study.text, tmp_path), "word:100")
        lines = files.write_train(10, 0).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    read = prepare(encoding="cp949")
    assert {record["label"] for record in read} == {"좋음", "나쁨"} and read[0]["text"].startswith("재밌었다 ")
    with pytest.raises(
        UserError, match=r"all\.csv:2: not UTF-8.*CP949 \(Korean Windows\): name that, encoding: cp949"
    ) as told:
        prepare()
    assert "take it out of the file" not in str(told.value), "the file is well, and is read in another way"
    with pytest.raises(UserError, match="is not text in ascii: name another encoding, or none for UTF-8"):
        prepare(encoding="ascii")
    file.write_bytes(f"text,label\n{rows}".encode())
    assert prepare() == read, "what the file says is the task, not how its letters are stored"


def test_an_encoding_is_one_of_files_and_there_is_one_of_that_name() -> None:
    with pytest.raises(UserError, match="There is no encoding of text 'cp99'"):
        tiny(tasks={"topic": {"kind": "classify", "train": "a.csv", "encoding": "cp99"}}, claims=[])
    with pytest.raises(UserError, match="encoding is that of files"):
        tiny(tasks={"topic": {"kind": "classify", "world": "topic", "labels": 4, "encoding": "cp949"}}, claims=[])


def test_missing_columns_are_named_with_the_setting_for_others(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,words,stars\n" + "".join(f"{n},a text {n},{n % 2}\n" for n in range(9)))
    with pytest.raises(UserError, match=r"no columns 'text' and 'label'.* columns: {text: words, label: stars}\."):
        split_files(Task(kind="classify", train=str(path)), None)


@pytest.mark.parametrize("part", ["dev", "test"])
def test_a_label_that_nobody_can_learn_is_found_before_anything_runs(part: str, tmp_path: Path) -> None:
    good = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(40)]
    for name in ("train", "dev", "test"):
        records = [*good, {"text": "odd", "label": "c"}] if name == part else good
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "dev", "test")}
    with pytest.raises(UserError, match=rf"{part}\.jsonl: the label 'c' of {part} is none of an example to learn from"):
        split_files(Task(kind="classify", **paths), None)
    size = {f"{part}_size": 40}
    assert split_files(Task(kind="classify", **paths, **size), None)[part] == good, "what is not used is no matter"


def test_examples_that_two_files_have_in_common_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    examples = [{"id": number, "text": f"text {number}", "label": "ab"[number % 2]} for number in range(60)]
    files = {"train": examples[:40], "dev": examples[40:50], "test": [*examples[50:], {**examples[3], "id": 99}]}
    for name, records in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in files}
    split_files(Task(kind="classify", **paths), None)
    [record] = caplog.records
    assert "test.jsonl: 1 of 11 examples of test are in train too" in record.getMessage(), "whatever their numbers"
    caplog.clear()
    split_files(Task(kind="classify", train=paths["train"]), None)
    assert not caplog.records, "parts that are made here share none"
    parts = split_files(Task(kind="classify", train=paths["train"], dev_size=30, test_size=2), None)
    [record] = caplog.records
    assert "train.jsonl: fewer examples than" in record.getMessage()
    assert f" ask for: {len(parts['dev'])} of 30 for dev. Name files" in record.getMessage()
