"""The board of a folder: what runs, what has ended, what is damaged; live curves, comparisons, reports in a sandbox."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.pick.folder_lock import lock_folder
from etude.runs.run import Run
from etude.serve.app import Service
from etude.serve.board import Board
from etude.serve.board_files import as_number
from etude.serve.limits import Limits
from etude.serve.problems import Problem
from etude.serve.run_curves import Curves, thin
from etude.serve.server import Server
from etude.study.cells import CellStore
from tests.serve.toy_runs import ToyRuns, ask

TOKEN = "a-token-of-many-letters"


def line(step: int, loss: float, split: str = "train") -> str:
    return (
        json.dumps(
            {"step": step, "tokens": 10 * step, "flops": 1e6 * step, "seconds": step, "split": split, "loss": loss}
        )
        + "\n"
    )


@pytest.fixture
def folder(runs: ToyRuns, tmp_path: Path) -> Path:
    """A finished run, one without weights, a damaged one, and a study with a report."""
    root = tmp_path / "work"
    for name in ("done", "half"):
        shutil.copytree(runs("bert-toy"), root / "runs" / name)
        log = "".join(line(step, 5 - step / 100) for step in range(10, 210, 10)) + line(200, 3.2, "valid")
        (root / "runs" / name / "metrics.jsonl").write_text(log, encoding="utf-8")
    (root / "runs" / "half" / "model.safetensors").unlink()
    (root / "runs" / "half" / ".lock").touch()
    (root / "runs" / "bad").mkdir()
    (root / "runs" / "bad" / "recipe.yaml").write_text("model: [", encoding="utf-8")
    study = root / "study"
    (study / "cells" / "abc").mkdir(parents=True)
    (study / "study.yaml").write_text("name: study\n", encoding="utf-8")
    (study / "cells" / "abc" / "result.json").write_text("{}", encoding="utf-8")
    mean = {"mean": 0.5, "low": 0.4, "high": 0.6}
    results = {
        "name": "study", "title": {"en": "Which is better?", "ko": "무엇이 나은가?"}, "date": "2026-11-16",
        "claims": [{"verdict": verdict} for verdict in ("holds", "holds", "fails")], "columns": [{"score": "accuracy"}],
        "rows": [
            {"label": "low", "mean": {**mean, "mean": 0.3}}, {"label": "high", "mean": mean},
            {"label": "none", "mean": None},
        ],
    }  # fmt: skip
    (study / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (study / "report.html").write_text("<!doctype html><title>A report</title><script>document.title = 'ran'</script>")
    return root


def test_states_and_scores(folder: Path) -> None:
    board = Board(folder)
    data = board.data()
    assert {run.path: run.state for run in data.runs} == {
        "runs/done": "finished", "runs/half": "stopped", "runs/bad": "damaged"
    }  # fmt: skip
    done = next(run for run in data.runs if run.path == "runs/done")
    assert (done.step, done.loss, done.valid) == (200, 3.0, {"loss": 3.2}) and len(done.spark) == 20
    [study] = data.studies
    assert study.verdicts == {"holds": 2, "fails": 1} and study.done == 1 and study.report
    assert [(row.name, row.mean) for row in study.rows] == [("high", 0.5), ("low", 0.3)]
    with open(folder / "runs" / "half" / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert board.data().runs[0].path == "runs/half" and board.data().runs[0].state == "running"
    assert {run.state for run in board.data().runs} == {"finished", "stopped", "damaged"}


def test_what_is_wrong_with_a_run_is_told_without_where_it_lies(folder: Path) -> None:
    (folder / "runs" / "unread").mkdir()
    (folder / "runs" / "unread" / "recipe.yaml").write_bytes(b"\xff\xfe")
    problems = {run.path: run.problem for run in Board(folder).data().runs if run.state == "damaged"}
    assert problems["runs/bad"].startswith("runs/bad/recipe.yaml") and "runs/unread" in problems
    assert not any(str(folder.parent) in problem for problem in problems.values())


def test_a_fine_tuned_run_has_its_own_number_of_steps(folder: Path) -> None:
    """Its recipe is that of the pre-training, with other steps."""
    task = folder / "runs" / "done" / "task.yaml"
    task.write_text("kind: tag\ntrain: {steps: 60}\n", encoding="utf-8")
    assert [(run.task, run.steps) for run in Board(folder).data().runs if run.path == "runs/done"] == [("tag", 60)]
    task.write_text("kind: tag\ntrain: {steps: null}\n", encoding="utf-8")
    assert next(run.steps for run in Board(folder).data().runs if run.path == "runs/done") is None


def test_a_fine_tuned_run_shows_how_it_was_fine_tuned(folder: Path) -> None:
    """The training of its recipe is that of the pre-training."""
    before = Board(folder).details("runs/done").settings
    assert "train.steps" in before and "objective.kind" in before and "task.kind" not in before
    plan = "kind: tag\nsettings: {head: crf, score: null}\ntransfer: {frozen: true}\ntrain: {steps: 60}\n"
    (folder / "runs" / "done" / "task.yaml").write_text(plan, encoding="utf-8")
    settings = Board(folder).details("runs/done").settings
    wanted = {"task.kind": "tag", "task.head": "crf", "transfer.frozen": "true", "train.steps": "60"}
    assert wanted.items() <= settings.items() and settings["model.kind"] == before["model.kind"]
    assert not {"objective.kind", "train.lr", "task.score"} & settings.keys()


def test_a_running_cell_has_the_name_of_its_recipe(folder: Path) -> None:
    """The folders of all cells are called `run`."""
    store = CellStore(folder / "study" / "cells")
    shutil.copytree(folder / "runs" / "half", store.work_folder("def") / "run")
    with open(folder / "study" / "cells" / ".def.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        [cell] = [run for run in Board(folder).data().runs if run.study]
    assert (cell.name, cell.study) == ("bert-toy", "study")


def test_a_pick_runs_while_its_folder_is_locked(folder: Path) -> None:
    """Between its trials it holds no cell: while it refitted, the results of the pick before stood as finished."""
    pick = folder / "pick"
    pick.mkdir()
    (pick / "pick.json").write_text("{}", encoding="utf-8")

    def state() -> str:
        return next(study.state for study in Board(folder).data().studies if study.kind == "pick")

    with lock_folder(pick):
        assert state() == "running"
    assert state() == "stopped"


def test_the_best_of_a_pick_is_what_it_returned(folder: Path) -> None:
    """The board calls the first one best: it was the one with the highest score, be it of one fold."""
    pick = folder / "pick"
    pick.mkdir()
    (pick / "pick.json").write_text("{}", encoding="utf-8")
    scores = {"slow": 0.7, "tfidf": 0.5, "lucky": 0.6, "majority": 0.2}
    rows = [{"name": name, "label": name, "score": score} for name, score in scores.items()]
    results = {"label": "tfidf", "winner": "tfidf", "score": "accuracy", "rows": rows, "date": "2026-11-16T00:00:00"}
    (pick / "results.json").write_text(json.dumps(results), encoding="utf-8")
    study = next(study for study in Board(folder).data().studies if study.kind == "pick")
    assert study.title == "tfidf" and [row.name for row in study.rows] == ["tfidf", "slow", "lucky", "majority"]


def test_a_curve_grows_and_is_cut_back(tmp_path: Path) -> None:
    path, curves = tmp_path / "metrics.jsonl", Curves()
    assert curves.read(path).lines == []
    path.write_text(line(1, 5.0) + line(2, 4.0) + '{"step": 3', encoding="utf-8")
    assert [each["step"] for each in curves.read(path).lines] == [1, 2]
    path.write_text(line(1, 5.0) + line(2, 4.0) + "not JSON\n" + line(3, 3.0), encoding="utf-8")
    assert [each["step"] for each in curves.read(path).lines] == [1, 2, 3]
    path.write_text(line(1, 5.0), encoding="utf-8")
    assert [each["step"] for each in curves.read(path).lines] == [1]
    many: list[dict[str, Any]] = [{"step": step} for step in range(1000)]
    assert len(thin(many, 10)) == 10 and thin(many, 10)[-1] == many[-1] and thin(many, 10)[0] == many[0]


def test_a_number_beyond_all_floats_is_left_out(tmp_path: Path) -> None:
    """JSON has whole numbers of any length: one of them ended the board."""
    line = {"step": 1, "tokens": 10, "flops": 1.0, "seconds": 1.0}
    lines = [line, {**line, "step": 10**400}, {**line, "step": 2, "loss": 10**400}]
    (tmp_path / "m").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert [each["step"] for each in Curves().read(tmp_path / "m").lines] == [1, 2]
    assert [as_number(value) for value in (10**400, 10**9, True, "1", float("inf"))] == [None, 1e9, None, None, None]


def test_one_damaged_file_leaves_the_rest_of_the_board(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "runs" / "done" / "metrics.jsonl").write_text(
        '{"step": NaN, "tokens": 1, "flops": 1, "seconds": 1}\n{"step": 1e999, "tokens": 1, "flops": 1, "seconds": 1}\n'
        '{"step": 7, "tokens": 1, "flops": 1, "seconds": 1}\n'
    )
    (tmp_path / "copy" / "odd" / "cells").mkdir(parents=True)
    (tmp_path / "copy" / "odd" / "study.yaml").write_text("title: 2024\n")
    data = Board(tmp_path / "copy").data()
    assert next(run.step for run in data.runs if run.path == "runs/done") == 7
    states = {study.path: study.state for study in data.studies}
    assert states.pop("odd") == "damaged" and "damaged" not in states.values()
    assert len(data.runs) == len(Board(folder).data().runs)


def test_nothing_outside_the_folder_is_shown(folder: Path, runs: ToyRuns) -> None:
    board = Board(folder / "runs")
    (folder / "runs" / "link").symlink_to(runs("bert-toy"))
    for path in ("..", "../study", "/etc", str(runs("bert-toy")), "link", "none", "a\0b", "x" * 5000):
        with pytest.raises(Problem) as problem:
            board.details(path)
        assert problem.value.status == 404
        with pytest.raises(Problem):
            board.report(path)
    with pytest.raises(UserError, match="no such folder"):
        Board(folder / "missing")


def test_the_routes_and_tickets(folder: Path) -> None:
    with Server(Service.create([], Limits(), True, folder), port=0, token=TOKEN) as server:
        right = {"Authorization": f"Bearer {TOKEN}"}
        for path in ("/board/data", "/board/run?path=runs/done", "/board/link?path=study", "/board/report?path=study"):
            assert ask(server, "GET", path).status == 401
        assert ask(server, "GET", "/board/run?path=runs/done", headers=right).json["train"]["loss"][-1] == 3.0
        assert ask(server, "GET", "/board/run?path=../x", headers=right).status == 404
        link = ask(server, "GET", "/board/link?path=study", headers=right).json["url"]
        answer = ask(server, "GET", link)
        assert answer.status == 200 and "A report" in answer.text
        assert answer.headers["Content-Security-Policy"].startswith("sandbox allow-scripts; default-src 'none'")
        assert ask(server, "GET", link.replace("path=study", "path=runs")).status == 401
        assert ask(server, "GET", f"{link}0").status == 401


def test_the_board_in_a_browser(browser: Any, folder: Path) -> None:
    with Server(Service.create([], Limits(), False, folder), port=0) as server:
        context = browser.new_context(viewport={"width": 1200, "height": 800}, locale="en-GB")
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request", lambda request: None if request.url.startswith(server.address) else faults.append(request.url)
        )
        page.goto(f"{server.address}/board")
        page.wait_for_selector(".entry")
        assert page.evaluate("[...document.querySelectorAll('main > section')].map(each => each.id)")[1:] == [
            "studies", "picks", "runs"
        ]  # fmt: skip
        assert page.get_attribute("[id='compare runs/done']", "aria-label") == "Compare: done"
        assert page.inner_text("#lead").endswith("1 finished · 1 stopped · 1 damaged")
        assert "Which is better?" in page.inner_text("#studies") and page.inner_text("#picks") == ""
        page.click("button.name:text-is('done')")
        page.wait_for_selector(".plot svg .curve")
        assert page.evaluate("document.activeElement.id") == "details"
        assert page.text_content(".plot svg text >> nth=0") == "loss" and not page.locator("#details th:empty").count()
        page.click("#details summary >> nth=0")
        page.focus("[id='axis tokens']")
        page.keyboard.press("Enter")  # draws again: the keyboard stays, and what was open is open
        assert page.evaluate("document.activeElement.id") == "axis tokens"
        assert page.locator("#details details[open]").count() == 1
        page.keyboard.press("Escape")  # closes, and the keyboard is where it was
        assert page.evaluate("document.activeElement.id") == "run runs/done"
        for box in page.query_selector_all("label.compare input"):
            box.check()
        page.click("#compare")
        page.wait_for_selector("#differences")
        assert "All settings are the same." in page.inner_text("#differences")
        lengths = "[...document.querySelectorAll('#details .curve')].map(each => each.getAttribute('d').length)"
        drawn = page.evaluate(lengths)
        with open(folder / "runs" / "half" / "metrics.jsonl", "a") as log:
            log.write(line(210, 2.9))
        with open(folder / "runs" / "half" / ".lock", "a") as lock:  # it begins to run, and the page sees it
            fcntl.flock(lock, fcntl.LOCK_EX)
            page.wait_for_selector(".entry .state.running", timeout=15_000)
            page.wait_for_selector("#details .state.running")
            steps = Run.open(folder / "runs" / "half").recipe.train.steps
            assert page.inner_text("#details .state.running") == f"half: running · step 210 / {steps:,}"
            assert sum(page.evaluate(lengths)) > sum(drawn)
        with context.expect_page() as opened:
            page.click("a:text-is('Report')")
        opened.value.wait_for_load_state()
        assert opened.value.title() == "ran"
        page.set_viewport_size({"width": 360, "height": 740})
        tops = [page.locator(f"#details .head > {each}").bounding_box()["y"] for each in ("h2", "#close", ".axes")]
        assert abs(tops[0] - tops[1]) < 30 < tops[2] - tops[0]  # the name and "close" in one line
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        context.close()
        assert not faults


def test_a_run_at_its_end_counts_its_steps_once(browser: Any, folder: Path) -> None:
    task = folder / "runs" / "done" / "task.yaml"
    task.write_text("kind: tag\ntrain: {steps: 200}\n", encoding="utf-8")
    with Server(Service.create([], Limits(), False, folder), port=0) as server:
        page = browser.new_page(locale="en-GB")
        page.goto(f"{server.address}/board")
        page.wait_for_selector("#runs .entry")
        counts = page.locator(".line.number > span:first-child").all_inner_texts()
        assert "step 200" in counts and any(count.startswith("step 200 / ") for count in counts)
        page.close()


def test_a_study_without_a_result_says_so(browser: Any, folder: Path) -> None:
    shutil.copytree(folder / "study", folder / "other")
    (folder / "other" / "results.json").unlink()
    task = folder / "runs" / "done" / "task.yaml"
    task.write_text("kind: tag\ntrain: {steps: 60}\n", encoding="utf-8")
    with Server(Service.create([], Limits(), False, folder), port=0) as server:
        page = browser.new_page(locale="ko-KR")
        page.goto(f"{server.address}/board")
        page.wait_for_selector("#studies .entry")
        studies = page.inner_text("#studies")
        assert "아직 결과가 없습니다." in studies and "성립 2" in studies and "태깅" in page.inner_text("#runs .badge")
        page.close()


def test_picks_have_a_heading_of_their_own(browser: Any, folder: Path) -> None:
    for name, label in (("stars", "tfidf"), ("topics", "bert")):
        pick = folder / name
        pick.mkdir()
        (pick / "pick.json").write_text("{}", encoding="utf-8")
        rows = [{"name": label, "label": label, "score": 0.5}]
        results = {"label": label, "winner": label, "score": "accuracy", "rows": rows, "date": "2026-11-16T00:00:00"}
        (pick / "results.json").write_text(json.dumps(results), encoding="utf-8")
    with Server(Service.create([], Limits(), False, folder), port=0) as server:
        for locale, heading in (("en-GB", "Picked models"), ("ko-KR", "고른 모형")):
            page = browser.new_page(locale=locale)
            page.goto(f"{server.address}/board")
            page.wait_for_selector("#picks .entry")
            assert page.text_content("#picks h2") == heading
            picks, studies = page.inner_text("#picks"), page.inner_text("#studies")
            assert "stars" in picks and "topics" in picks and "Which" not in picks
            assert "tfidf" not in studies and page.locator("#studies .entry").count() == 1
            page.fill("#filter", "tfidf")
            assert page.locator("#picks .entry").count() == 1
            page.close()
