"""The table of benchmarks/pick_tasks.py on made-up results, and the picks on a made-up program."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from benchmarks.picking.data import TASKS, Split
from benchmarks.picking.picks import Bench, Job, run_jobs
from benchmarks.picking.results import Result, ResultStore
from benchmarks.picking.scoring import score_answers
from benchmarks.picking.table import compare, format_missing, format_table


def add_scores(store: ResultStore, side: str, scores: list[float], minutes: float | None = None) -> None:
    for draw, score in enumerate(scores):
        store.add(Result("sst2", 100, draw, side, score, 366.0, 1291, minutes, "tfidf" if minutes else None))


def cells_of(table: str, task: str) -> dict[str, str]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line]
    return dict(zip(lines[0], next(line for line in lines if line[0] == task), strict=True))


def test_the_table_compares_a_pick_with_the_best_rival_draw_by_draw(tmp_path: Path) -> None:
    store = ResultStore([tmp_path])
    add_scores(store, "tfidf", [0.60, 0.62, 0.64])
    add_scores(store, "fasttext", [0.50, 0.70, 0.30])
    add_scores(store, "probe", [0.80, 0.80, 0.80])
    add_scores(store, "pick-text", [0.61, 0.61, 0.63], minutes=6)
    cells = cells_of(format_table(store.read()), "sst2")
    assert cells["TF-IDF + LR"] == "62.0 ± 1.2" and cells["MiniLM probe"] == "80.0 ± 0.0"
    assert cells["pick-text"] == "61.7 ± 0.7"
    assert cells["best rival"] == "TF-IDF + LR", "MiniLM was not given to this pick"
    assert cells["difference"] == "-0.3 ± 0.7" and cells["within 1 SE"] == "yes"
    assert cells["time"] == "102%"


def test_a_pick_with_a_start_is_compared_with_the_probe() -> None:
    scores = {"tfidf": {0: 60.0, 1: 62.0}, "probe": {0: 80.0, 1: 82.0}, "pick-start": {0: 70.0, 1: 71.0}}
    comparison = compare(scores, "pick-start")
    assert comparison is not None
    assert comparison[0] == "probe" and comparison[1] == pytest.approx(-10.5) and comparison[2] == pytest.approx(0.5)


def test_averages_count_the_rows_within_one_standard_error(tmp_path: Path) -> None:
    store = ResultStore([tmp_path])
    for task, score in (("sst2", 0.7), ("trec6", 0.5)):
        for draw in range(3):
            store.add(Result(task, 100, draw, "tfidf", 0.6, 1.0, 100))
            store.add(Result(task, 100, draw, "pick-text", score, 300.0, 100, 6.0, "probe"))
    table = format_table(store.read())
    assert cells_of(table, "trec6")["within 1 SE"] == "**no**"
    mean = cells_of(table, "**mean**")
    assert mean["within 1 SE"] == "1 of 2" and mean["difference"] == "+0.0" and mean["time"] == "≤ 83%"


def test_results_of_several_folders_add_up_and_a_failure_replaces_nothing(tmp_path: Path) -> None:
    first, second = ResultStore([tmp_path / "a"]), ResultStore([tmp_path / "a", tmp_path / "b"])
    first.add(Result("sst2", 100, 0, "pick-text", 0.7, 1.0, 10, 6.0))
    second.add(Result("sst2", 100, 0, "pick-text", None, 1.0, 10, 6.0, error="broke"))
    second.add(Result("sst2", 100, 1, "pick-text", None, 1.0, 10, 6.0, error="broke"))
    assert second.list_finished() == {("sst2", 100, 0, "pick-text")}
    assert second.read()["sst2", 100, 0, "pick-text"].score == 0.7
    assert "Failed: sst2 100 draw 1 pick-text: broke" in format_table(second.read())


def test_one_scorer_for_labels_and_tags() -> None:
    labels = [{"text": "x", "label": "1"}, {"text": "y", "label": "0"}]
    assert score_answers(TASKS["sst2"], labels, ["1", "1"]) == 0.5
    tagged = [{"tokens": ["New", "York", "Ann"], "ner": ["B-LOC", "I-LOC", "B-PER"]}]
    assert score_answers(TASKS["wikigold_ner"], tagged, [["B-LOC", "O", "B-PER"]]) == 0.5
    assert score_answers(TASKS["wikigold_ner"], tagged, [["O", "O", "O"]]) == 0.0
    with pytest.raises(ValueError, match="1 answers to 2"):
        score_answers(TASKS["sst2"], labels, ["1"])


PROGRAM = """
import json, os, pathlib, sys
words = sys.argv[1:]
if words[0] == "pick":
    option = lambda name: words[words.index(name) + 1]
    labels = [json.loads(line) for line in open(option("--train"))]
    assert len(labels) == 4 and option("--minutes") == "0.1" and option("--device") == "cpu", words
    if FAILS: sys.exit("a pick that breaks")
    out = pathlib.Path(option("-o"), "best"); out.mkdir(parents=True)
    rows = [{"name": "x", "score": 1, "error": 0, "fit_seconds": 1}]
    cores = [sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"], os.environ["CUDA_VISIBLE_DEVICES"]]
    (out.parent / "results.json").write_text(json.dumps(
        {"winner": "x", "held_out": cores, "seconds": 1, "rows": rows}))
else:
    test = [json.loads(line) for line in open(words[2])]
    answers = "".join(json.dumps({"label": record["label"]}) + "\\n" for record in test[:-1])
    pathlib.Path(words[4]).write_text(answers + json.dumps({"label": "?"}) + "\\n")
"""


def make_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> Bench:
    program = tmp_path / "program.py"
    program.write_text(f"FAILS = {fails}\n{PROGRAM}")
    monkeypatch.setattr("benchmarks.picking.picks.write_wiki", lambda split, data, path: path.write_text("wiki") * 0)
    cores = [min(os.sched_getaffinity(0))]
    store, command = ResultStore([tmp_path / "results"]), (sys.executable, str(program))
    return Bench(tmp_path, tmp_path / "work", tmp_path, store, "abc", [cores], False, command)


def make_job(minutes: float = 0.1) -> Job:
    pool = [{"text": f"text {number}", "label": str(number % 2)} for number in range(20)]
    test = [{"text": f"test {number}", "label": str(number % 2)} for number in range(10)]
    return Job(Split(TASKS["sst2"], test, pool), 4, 0, "text", minutes)


def test_a_pick_runs_on_its_own_cores_and_its_best_model_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(tmp_path, monkeypatch, fails=False)
    assert run_jobs(bench, [make_job()], None) == 0
    (result,) = bench.store.read().values()
    assert (result.score, result.winner, result.error, result.commit) == (0.9, "x", None, "abc")
    assert result.details["held_out"] == [list(bench.groups[0]), "1", ""]
    assert 0 <= result.seconds < 60 and not (tmp_path / "work" / "sst2-4-0-text").exists()


def test_a_failed_pick_is_recorded_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(tmp_path, monkeypatch, fails=True)
    run_jobs(bench, [make_job()], None)
    (result,) = bench.store.read().values()
    assert result.score is None and "a pick that breaks" in (result.error or "")
    assert not bench.store.list_finished()


def test_no_pick_begins_that_would_not_end_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(tmp_path, monkeypatch, fails=False)
    assert run_jobs(bench, [make_job(minutes=6)], end=time.monotonic() + 60 * 6) == 1
    assert not bench.store.read()


def test_results_are_lines_of_json(tmp_path: Path) -> None:
    store = ResultStore([tmp_path])
    add_scores(store, "tfidf", [0.5, 0.6])
    lines = (tmp_path / "tfidf.jsonl").read_text().splitlines()
    assert [json.loads(line)["score"] for line in lines] == [0.5, 0.6]


def test_picks_of_an_older_version_do_not_count(tmp_path: Path) -> None:
    store = ResultStore([tmp_path])
    old = {
        "task": "sst2",
        "labels": 100,
        "draw": 0,
        "score": 0.6,
        "seconds": 1.0,
        "test": 10,
        "date": "2026-11-16T10:00",
    }
    store.add(Result(**old, side="pick-text"))
    store.add(Result(**old, side="tfidf"))
    assert len(store.list_finished()) == 2
    assert [key[-1] for key in ResultStore([tmp_path], after="2026-11-16T12:00").list_finished()] == ["tfidf"]


def test_what_is_missing_is_named_and_a_visit_is_merged_once(tmp_path: Path) -> None:
    store, visit = ResultStore([tmp_path / "home"]), ResultStore([tmp_path / "visit"])
    add_scores(store, "pick-text", [0.6, 0.6], minutes=6)
    add_scores(visit, "pick-text", [0.9, 0.6, 0.7], minutes=6)
    visit.add(Result("trec6", 100, 0, "pick-text", None, 1.0, 100, 6.0, error="killed"))
    missing = format_missing(store.list_finished(), ["text"], ["sst2", "trec6"], [100], [0, 1, 2])
    assert missing == "text, 100 labels: 4 of 6 missing. sst2 2; trec6 0, 1, 2"
    assert store.merge(tmp_path / "visit") == 1 and store.merge(tmp_path / "visit") == 0
    assert store.read()["sst2", 100, 0, "pick-text"].score == 0.6, "what is there stays"
    assert "3 of 6 missing. trec6 0, 1, 2" in format_missing(
        store.list_finished(), ["text"], ["sst2", "trec6"], [100], [0, 1, 2]
    )
