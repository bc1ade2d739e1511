"""Cells that travel: what arrives is what left, and nothing else gets in."""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import etude
from etude.errors import UserError
from etude.study import cell_code, planner
from etude.study.cell_archive import (
    HASH_BYTES,
    MANIFEST,
    _describe,
    export_cells,
    import_cells,
    refuse_loss,
    sign_archive,
)
from etude.study.cells import CellStore
from etude.study.leaderboard import summarize_plan
from etude.study.runner import Report, run
from etude.study.settings import Study
from etude.study.visit import list_outdated
from tests.study.test_runner import timeless


@pytest.fixture(scope="module")
def archive(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("archive")) / "cells.zip"
    assert export_cells(CellStore(report.folder / "cells"), path, report.folder) == len(report.results["cells"])
    return path


def rewrite(source: Path, target: Path, change: Any) -> Path:
    """Copy an archive with `change` applied to its entries; the manifest is the first."""
    with zipfile.ZipFile(source) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(entries.pop(MANIFEST))
    change(manifest, entries)
    with zipfile.ZipFile(target, "w") as new:
        new.writestr(MANIFEST, json.dumps(manifest))
        for name, content in entries.items():
            new.writestr(name, content)
        new.comment = b"0" * HASH_BYTES
    sign_archive(target)
    return target


def test_a_report_from_imported_cells_is_the_same(report: Report, study: Study, archive: Path, tmp_path: Path) -> None:
    assert archive.stat().st_size < 300_000, "no weights travel"
    folder = tmp_path / "home"
    messages: list[str] = []
    home = run(study, folder, work=False, import_from=[archive], on_progress=messages.append)
    assert timeless(home.results["rows"]) == timeless(report.results["rows"])
    assert timeless(home.results["claims"]) == timeless(report.results["claims"])
    assert home.results["registered"]["date"] == report.results["registered"]["date"]
    assert any("12 cells imported, 0 were there already" in message for message in messages)
    again = import_cells(CellStore(folder / "cells"), archive, folder)
    assert (again.added, again.present) == (0, 12)
    assert not list((folder / "cells").rglob("*.safetensors"))


def test_no_cells_are_lost_by_an_export(report: Report, study: Study, archive: Path, tmp_path: Path) -> None:
    """A second visit, from an empty folder, wrote its few cells over those of the first."""
    home = tmp_path / "cells.zip"
    shutil.copy(archive, home)
    content = home.read_bytes()
    with pytest.raises(UserError, match=r"holds 12 finished cells that are not here.*--import-cells"):
        run(study, tmp_path / "visit", work=False, export_to=home)
    assert home.read_bytes() == content
    run(study, tmp_path / "visit", work=False, import_from=[home], export_to=home)
    run(study, tmp_path / "visit", work=False, export_to=home)  # all of them are here now
    assert import_cells(CellStore(tmp_path / "other" / "cells"), home, tmp_path).added == 12
    notes = tmp_path / "notes.zip"
    notes.write_text("mine")
    with pytest.raises(UserError, match="is no archive of cells"):
        run(study, tmp_path / "visit", work=False, export_to=notes)
    assert notes.read_text() == "mine"


def test_a_dry_run_counts_cells_of_an_archive_and_writes_nothing(report: Report, archive: Path, tmp_path: Path) -> None:
    """It said that none was cached."""
    home = tmp_path / "home"
    shutil.copytree(report.folder, home)
    cells = sorted(path for path in (home / "cells").iterdir() if path.is_dir())
    for cell in cells[1:]:  # one that is here, too
        shutil.rmtree(cell)
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    states: list[int] = []
    for archives in ([], [str(archive)]):
        said: list[str] = []
        planned = etude.plan_study(
            home / "study.yaml", out=home, device="cpu", import_cells=archives, on_progress=said.append
        )
        states.append(sum(state == "done" for state in planned.states.values()))
    assert "12 cells, 12 of them cached" in summarize_plan(planned.plan, 1, planned.states)
    assert states == [1, 12] and said == [f"{archive}: 11 cells imported, 1 were there already"]
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before
    with pytest.raises(UserError, match="none"):
        etude.plan_study(home / "study.yaml", out=home, device="cpu", import_cells=["none.zip"])


def test_a_dry_run_knows_what_cells_took_and_whose_weights_are_missing(
    report: Report, study: Study, archive: Path, tmp_path: Path
) -> None:
    """It planned each cell alone on the machine, and a pre-training that has to run again as one that is there."""
    plan = planner.make_plan(study, report.folder, dry=True)
    base, home = plan.bases["gpt", 0], tmp_path / "home"
    shutil.copytree(report.folder, home, ignore=shutil.ignore_patterns("cells"))
    planned = etude.plan_study(
        home / "study.yaml", out=home, device="cpu", import_cells=[str(archive)], settings={"seeds.transfer": 3}
    )
    assert len(planned.forecast.again) == 3, "both contenders and first weights have a third transfer"
    assert planned.forecast.seconds[base] == plan.store.result(base)["seconds"] and base in planned.forecast.again
    words = summarize_plan(planned.plan, 1, planned.states, planned.forecast)
    assert "others need weights that are elsewhere: 3" in words
    assert re.search(r"BERT beats GPT <here>: 4 cells, .* FLOPs, .* minutes", words), "two bases, two transfers"

    def change(manifest: Any, entries: dict[str, bytes]) -> None:
        name = f"cells/{base}/result.json"
        entries[name] = json.dumps(json.loads(entries[name]) | {"versions": "torch 1.0"}).encode()
        manifest["cells"][base]["result.json"] = _describe(entries[name])

    older = etude.plan_study(
        home / "study.yaml", out=home, device="cpu", settings={"seeds.transfer": 3},
        import_cells=[str(rewrite(archive, tmp_path / "older.zip", change))],
    )  # fmt: skip
    outdated = {plan.trials["gpt", "topic@16", 0, (0, number)] for number in range(2)}
    assert older.forecast.seconds.keys() == planned.forecast.seconds.keys() | outdated


def test_cells_of_another_torch_are_reported_here_and_not_taken_for_own_ones(
    report: Report, study: Study, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells of a GPU machine came home to another torch: 19 imported, and all of them "not done"."""

    def change(manifest: Any, entries: dict[str, bytes]) -> None:
        for name in [name for name in entries if name.endswith("result.json")]:
            result = json.loads(entries[name]) | {"hardware": "1 x GPU"}
            entries[name] = json.dumps(result).encode()
            manifest["cells"][name.split("/")[1]]["result.json"] = _describe(entries[name])

    path = rewrite(archive, tmp_path / "cells.zip", change)
    monkeypatch.setattr(torch, "__version__", "1.0")
    home = run(study, tmp_path / "home", work=False, import_from=[path])
    assert timeless(home.results["rows"]) == timeless(report.results["rows"])
    assert home.results["hardware"] == "1 x GPU" and home.results["versions"] == report.results["versions"]
    messages: list[str] = []
    other = tmp_path / "other"
    other.mkdir()
    (other / "machine.json").write_text(
        json.dumps({"device": "cpu", "precision": "float32", "torch": "1.0", "speeds": {}})
    )
    run(study, other, work=False, import_from=[path], on_progress=messages.append)
    (told,) = [message for message in messages if "not among those planned here" in message]
    assert "here: torch 1.0" in told and "of 12 imported cells" in told


def test_pre_trainings_of_another_text_are_told(
    report: Report, study: Study, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that ended one document earlier had none of its cells, and nothing said that it was the text."""
    fingerprint = planner.Draft.fingerprint
    monkeypatch.setattr(planner.Draft, "fingerprint", property(lambda self: fingerprint.fget(self) + " and more"))
    messages: list[str] = []
    run(study, tmp_path / "other", work=False, import_from=[archive], on_progress=messages.append)
    (told,) = [message for message in messages if "not among those planned here" in message]
    trained = sum(cell["title"].startswith("pre-training") for cell in report.results["cells"])
    assert trained and f" {trained} pre-trainings among them read another text" in told, told
    monkeypatch.undo()
    messages.clear()
    run(study, tmp_path / "same", work=False, import_from=[archive], on_progress=messages.append)
    assert not any("another text" in message for message in messages)


def test_cells_of_another_version_of_the_code_count_where_that_is_asked_for(
    report: Report, study: Study, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study of many visits was done anew after every edit of the code."""
    monkeypatch.setattr(cell_code, "transfer", lambda *kinds: "another version")
    messages: list[str] = []
    strict = run(study, tmp_path / "strict", work=False, import_from=[archive], on_progress=messages.append)
    done = {cell["title"] for cell in strict.results["cells"] if "value" in cell}
    assert not any(title.startswith("bert on") for title in done), "strict by default"
    assert any("--any-version" in message for message in messages)
    taken = run(study, tmp_path / "any", work=False, import_from=[archive], any_version=True)
    assert timeless(taken.results["rows"]) == timeless(report.results["rows"])
    assert taken.results["code_versions"] == 1, "one version did all of them, if not this one"

    key = next(key for key, cell in planner.make_plan(study, tmp_path / "any", dry=True, any_version=True).cells.items()
               if cell.title == "bert on topic@16, seed 0.1")  # fmt: skip
    shutil.rmtree(tmp_path / "any" / "cells" / key)
    mixed = run(study, tmp_path / "any", any_version=True)
    assert mixed.results["code_versions"] == 2
    assert "2 versions of the code" in mixed.page.read_text(encoding="utf-8")
    assert timeless(mixed.results["rows"]) == timeless(report.results["rows"]), "nothing else had changed"


def test_work_goes_on_where_cells_came_without_weights(
    report: Report, study: Study, archive: Path, tmp_path: Path
) -> None:
    """A transfer that is missing needs its pre-training here: that runs again, and nothing else."""
    folder, out = tmp_path / "home", tmp_path / "out.zip"
    folder.mkdir()
    import_cells(CellStore(folder / "cells"), archive, folder)
    key = planner.make_plan(study, report.folder, dry=True).trials["bert", "topic@16", 0, (0, 1)]
    shutil.rmtree(folder / "cells" / key)
    messages: list[str] = []
    home = run(study, folder, export_to=out, on_progress=messages.append)
    done = [message for message in messages if message.startswith("[")]
    assert len(done) == 2 and "pre-training bert" in done[0] and "bert on topic@16, seed 0.1" in done[1]
    assert timeless(home.results["rows"]) == timeless(report.results["rows"]), "the same to the bit"
    with zipfile.ZipFile(out) as written:
        assert len(json.loads(written.read(MANIFEST))["cells"]) == 12


def test_all_tasks_of_a_seed_are_scored_on_the_same_weights(
    report: Report, study: Study, archive: Path, tmp_path: Path
) -> None:
    """A pre-training of another version ran again, and its finished transfers stayed: a seed had two models."""
    plan = planner.make_plan(study, report.folder, dry=True)
    base, missing = plan.bases["bert", 0], plan.trials["bert", "topic@16", 0, (0, 1)]
    others = {plan.trials["bert", "topic@16", 0, (0, 0)]}

    def change(manifest: Any, entries: dict[str, bytes]) -> None:
        name = f"cells/{base}/result.json"
        entries[name] = json.dumps(json.loads(entries[name]) | {"versions": "etude 0.0.1, torch 1.0"}).encode()
        manifest["cells"][base]["result.json"] = _describe(entries[name])

    folder = tmp_path / "home"
    folder.mkdir()
    path = rewrite(archive, tmp_path / "cells.zip", change)
    assert import_cells(CellStore(folder / "cells"), path, folder).added == 12
    assert list_outdated(CellStore(folder / "cells"), plan.cells.values()) == {}, "nothing is missing yet"
    shutil.rmtree(folder / "cells" / missing)
    assert list_outdated(CellStore(folder / "cells"), plan.cells.values()) == {base: [*others]}
    messages: list[str] = []
    home = run(study, folder, on_progress=messages.append)
    done = [message for message in messages if message.startswith("[")]
    assert len(done) == 3 and "pre-training bert" in done[0] and done[2].startswith("[3/3] bert on topic@16")
    assert timeless(home.results["rows"]) == timeless(report.results["rows"])
    assert list_outdated(CellStore(folder / "cells"), plan.cells.values()) == {}


def test_models_of_two_versions_are_not_mixed_by_an_import(
    report: Report, study: Study, archive: Path, tmp_path: Path
) -> None:
    """A visit trained a model again, and was broken off: scores of the earlier weights came back beside its own."""
    plan = planner.make_plan(study, report.folder, dry=True)
    base = plan.bases["bert", 0]
    first, second = (plan.trials["bert", "topic@16", 0, (0, number)] for number in range(2))

    def train_again(manifest: Any, entries: dict[str, bytes]) -> None:
        for key, changes in ((base, {"code": "later"}), (first, {"value": 0.25})):
            name = f"cells/{key}/result.json"
            result = json.loads(entries[name]) | changes | {"date": "2099-01-01T00:00:00+00:00"}
            entries[name] = json.dumps(result).encode()
            manifest["cells"][key]["result.json"] = _describe(entries[name])
        for name in manifest["cells"].pop(second):
            del entries[f"cells/{second}/{name}"]

    visit = rewrite(archive, tmp_path / "visit.zip", train_again)
    for number, paths in enumerate([(archive, visit), (visit, archive)]):
        folder = tmp_path / str(number)
        store = CellStore(folder / "cells")
        reports = [import_cells(store, path, folder) for path in paths]
        assert store.result(base)["code"] == "later" and store.result(first)["value"] == 0.25
        assert store.state(second) == "absent", "it is of the earlier weights"
        assert reports[1].outdated == 3 and "3 of weights that were trained again" in str(reports[1])
        assert len(store.list_keys()) == 11
        refuse_loss(store, archive)  # what the archive has besides is outdated
        again = [import_cells(store, path, folder).added for path in paths]
        assert again == [0, 0] and len(store.list_keys()) == 11
    (store.result_folder(base) / "run").mkdir()
    import_cells(store, visit, folder)
    assert store.result(base)["code"] == "later"
    home = tmp_path / "home"
    shutil.copytree(report.folder, home)
    import_cells(CellStore(home / "cells"), visit, home)
    assert CellStore(home / "cells").result(base)["code"] != "later", "weights that lie here are kept"
    assert CellStore(home / "cells").result(first)["value"] != 0.25 and len(CellStore(home / "cells").list_keys()) == 12


def test_every_byte_of_an_archive_has_a_hash(archive: Path, tmp_path: Path) -> None:
    """Its tables were covered by nothing: times, attributes, offsets."""
    whole, path = archive.read_bytes(), tmp_path / "cells.zip"
    for place in [*range(0, len(whole), len(whole) // 200), *range(len(whole) - 100, len(whole))]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError, match=r"cells\.zip is not an archive of cells, or was changed or cut off"):
            import_cells(CellStore(tmp_path / "cells"), path, tmp_path)
    assert not (tmp_path / "cells").exists()


def test_what_is_not_as_its_manifest_says_is_refused(archive: Path, tmp_path: Path) -> None:
    def first(manifest: dict[str, Any], name: str) -> str:
        return next(key for key, files in manifest["cells"].items() if name in files)

    def flip(manifest: dict[str, Any], entries: dict[str, bytes]) -> None:
        name = f"cells/{first(manifest, 'outcome.npy')}/outcome.npy"
        entries[name] = entries[name][:-1] + bytes([entries[name][-1] ^ 1])

    def smuggle(manifest: dict[str, Any], entries: dict[str, bytes]) -> None:
        entries["cells/../../evil"] = b"x"

    def climb(manifest: dict[str, Any], entries: dict[str, bytes]) -> None:
        key = first(manifest, "outcome.npy")
        manifest["cells"]["../../../evil"] = manifest["cells"].pop(key)

    def pickle_inside(manifest: dict[str, Any], entries: dict[str, bytes]) -> None:
        key = first(manifest, "outcome.npy")
        buffer = io.BytesIO()
        np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        entries[f"cells/{key}/outcome.npy"] = buffer.getvalue()
        manifest["cells"][key]["outcome.npy"] = _describe(buffer.getvalue())

    def shorten(manifest: dict[str, Any], entries: dict[str, bytes]) -> None:
        key = first(manifest, "outcome.npy")
        buffer = io.BytesIO()
        np.save(buffer, np.ones((3, 2)))
        entries[f"cells/{key}/outcome.npy"] = buffer.getvalue()
        manifest["cells"][key]["outcome.npy"] = _describe(buffer.getvalue())

    def empty(manifest: dict[str, Any], entries: dict[str, bytes]) -> None:
        key = first(manifest, "outcome.npy")
        entries[f"cells/{key}/result.json"] = b"{}"
        manifest["cells"][key]["result.json"] = _describe(b"{}")

    def weights(manifest: dict[str, Any], entries: dict[str, bytes]) -> None:
        key = first(manifest, "outcome.npy")
        entries[f"cells/{key}/model.bin"] = b"x"
        manifest["cells"][key]["model.bin"] = _describe(b"x")

    def old(manifest: dict[str, Any], entries: dict[str, bytes]) -> None:
        manifest["version"] = 99

    cases = [
        (flip, "was changed or cut off"), (smuggle, "does not hold the files"), (climb, "is no cell"),
        (pickle_inside, "no array of numbers"), (shorten, "not a table of 40 examples"), (empty, "no result of a cell"),
        (weights, "is no cell"), (old, "not an archive of cells of this version"),
    ]  # fmt: skip
    for number, (change, message) in enumerate(cases):
        bad, store = rewrite(archive, tmp_path / f"{number}.zip", change), CellStore(tmp_path / f"{number}" / "cells")
        with pytest.raises(UserError, match=message):
            import_cells(store, bad, tmp_path)
        assert not store.folder.exists(), "nothing is written before everything was checked"
    cut = tmp_path / "cut.zip"
    cut.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(UserError, match="cut off"):
        import_cells(CellStore(tmp_path / "cut"), cut, tmp_path)
    with pytest.raises(UserError, match="There is no file"):
        import_cells(CellStore(tmp_path / "cut"), tmp_path / "absent.zip", tmp_path)


SCORED = {
    "kind": "majority", "title": "a", "place": {"row": "a"}, "step": 0, "tokens": 0, "flops": 0.0, "seconds": 1.5,
    "score": "accuracy", "how": "mean", "value": 0.5, "dev": 0.5, "examples": 2, "by_shots": {"1": 0.5}, "notes": ["a"],
    "date": "2026-01-01", "settings_key": "a", "code": "a",
}  # fmt: skip
TRAINED = {
    "kind": "pretrain", "title": "a", "place": {}, "step": 9, "tokens": 9, "flops": 1.0, "seconds": 1.5, "pace": 1.0,
    "valid": {"loss": 1.0}, "curve": [{"step": 1}], "settings_key": "b", "code": "a", "text": "a",
}  # fmt: skip
FAILED = {"message": "Training diverged: the loss rose.", "repeats": True}
ODD: list[Any] = [None, True, -1, 1.5, 10**400, float("nan"), "", "a", [], {}, [None], {"a": None}]


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_cell_is_refused_or_can_be_read(tmp_path: Path, data: st.DataObject) -> None:
    """Some were imported, and every report from then on failed at them."""
    contents: dict[str, dict[str, bytes]] = {}
    for key, name, values in (("a", "result", SCORED), ("b", "result", TRAINED), ("c", "error", FAILED)):
        changes = data.draw(st.dictionaries(st.sampled_from(sorted(values)), st.sampled_from(ODD), max_size=1))
        contents[key * 32] = {f"{name}.json": json.dumps(values | changes).encode()}
    outcome = io.BytesIO()
    np.save(outcome, np.ones((2, 2)))
    contents["a" * 32]["outcome.npy"] = outcome.getvalue()
    cells = {key: {name: _describe(content) for name, content in files.items()} for key, files in contents.items()}
    path, folder = tmp_path / "cells.zip", tmp_path / "home"
    with zipfile.ZipFile(path, "w") as new:
        new.writestr(MANIFEST, json.dumps({"format": "etude cells", "version": 1, "cells": cells, "context": {}}))
        for key, files in contents.items():
            for name, content in files.items():
                new.writestr(f"cells/{key}/{name}", content)
        new.comment = b"0" * HASH_BYTES
    sign_archive(path)
    shutil.rmtree(folder, ignore_errors=True)
    store = CellStore(folder)
    try:
        report = import_cells(store, path, tmp_path)
    except UserError:
        assert not folder.exists()
        return
    assert report.added == 3 - report.ignored
    assert all("seconds" in store.result(key * 32) for key in "ab") and len(store.list_done()) <= 2
    assert export_cells(store, tmp_path / "again.zip", tmp_path) == report.added


def test_failures_of_a_machine_do_not_travel(tmp_path: Path) -> None:
    """Earlier versions stored and exported them: what had no memory once was not tried again, here or elsewhere."""
    messages = {
        "1" * 32: "Memory ran out on the GPU (1 row of 32768 tokens at once). Set one of these: ...",
        "2" * 32: "This run wants a CUDA device and there is none here. Set train.device=cpu.",
        "3" * 32: "Training diverged: the loss began at 9.2 and ended at 12 after 40 steps at train.lr=1. Lower it.",
        "4" * 32: "Training stopped at step 3: the output of layers.0 (forward pass) is not finite. The weights ...",
    }
    store = CellStore(tmp_path / "cells")
    for key, message in messages.items():
        store.failure_folder(key).mkdir(parents=True)
        (store.failure_folder(key) / "error.json").write_text(json.dumps({"message": message}))
    assert [store.state(key) for key in messages] == ["absent", "absent", "failed", "failed"]
    exported = tmp_path / "exported.zip"
    assert export_cells(store, exported, tmp_path) == 2

    def add_failure(manifest: dict[str, Any], entries: dict[str, bytes]) -> None:
        content = json.dumps({"message": messages["1" * 32]}).encode()
        entries[f"cells/{'1' * 32}/error.json"] = content
        manifest["cells"]["1" * 32] = {"error.json": _describe(content)}

    old = rewrite(exported, tmp_path / "old.zip", add_failure)
    elsewhere = CellStore(tmp_path / "elsewhere")
    report = import_cells(elsewhere, old, tmp_path)
    assert (report.added, report.failures, report.ignored) == (2, 2, 1)
    assert ", 1 failure that may not repeat itself was left out" in str(report)
    assert [elsewhere.state(key) for key in messages] == ["absent", "absent", "failed", "failed"]
    assert not elsewhere.failure_folder("1" * 32).exists()


def test_failures_travel_and_a_result_replaces_them(archive: Path, report: Report, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells")
    key = next(cell["key"] for cell in report.results["cells"] if cell["kind"] == "majority")
    store.folder.mkdir()
    store.fail(key, "Training diverged.")
    failed = tmp_path / "failed.zip"
    assert export_cells(store, failed, tmp_path) == 1
    elsewhere = CellStore(tmp_path / "elsewhere")
    assert import_cells(elsewhere, failed, tmp_path).failures == 1 and elsewhere.error(key) == "Training diverged."
    import_cells(elsewhere, archive, tmp_path)
    assert elsewhere.state(key) == "done" and not elsewhere.failure_folder(key).exists()
