"""One queue over several studies: what settles a claim soonest comes first, and nothing starts that cannot end."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.study import plan as plans
from etude.study import planner
from etude.study.cell_archive import export_cells
from etude.study.cells import CellStore
from etude.study.claim_scope import claim_cells
from etude.study.runner import Report, run, run_several
from etude.study.settings import Study
from etude.study.visit import STARTUP, Durations, Visit, is_pretrained, missing_bases, order_cells
from tests.study.test_runner import timeless
from tests.study.tiny_study import tiny


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> plans.Plan:
    return planner.make_plan(tiny(**{"seeds.pretrain": 2}), Path(tmp_path_factory.mktemp("visit")), dry=True)


def test_the_cheapest_claim_comes_first(plan: plans.Plan) -> None:
    """The second claim needs one pre-training, the first two; bases stand before what starts from them."""
    ordered = [cell.key for cell in order_cells([plan], plan.store)]
    assert sorted(ordered) == sorted(plan.cells)
    both, pays = (set(claim_cells(plan, claim)) for claim in plan.study.claims)
    costs = [sum(plan.cells[key].seconds for key in keys) for keys in (both, pays)]
    cheapest = pays if costs[1] < costs[0] else both
    assert set(ordered[: len(cheapest)]) == cheapest
    assert set(ordered[: len(both | pays)]) == both | pays, "what no claim waits for comes last"
    for place, key in enumerate(ordered):
        base = plan.cells[key].depends_on
        assert base is None or ordered.index(base) < place


def test_a_claim_begins_with_its_pretrainings(plan: plans.Plan) -> None:
    """Controls of a first seed do not hold the workers while the longest cells wait; transfers follow their weights."""
    ordered = [cell.key for cell in order_cells([plan], plan.store)]
    both, pays = (claim_cells(plan, claim) for claim in plan.study.claims)
    cheapest = min(both, pays, key=lambda keys: sum(plan.cells[key].seconds for key in keys))
    first = ordered[: len(set(cheapest))]
    pretrained = [is_pretrained(plan.cells, key) for key in first]
    assert pretrained == sorted(pretrained, reverse=True) and {True, False} == set(pretrained)
    learning = [key for key in first if is_pretrained(plan.cells, key)]
    assert learning == [key for key in plan.cells if key in learning], "seed by seed: transfers before the next weights"
    assert [plan.cells[key].kind for key in learning].count("pretrain") >= 2


def test_studies_in_turn_do_not_wait_for_the_cheaper_claims_of_others(plan: plans.Plan) -> None:
    studies = [replace(plan, study=plan.study.model_copy(update={"claims": [claim]})) for claim in plan.study.claims]
    needed = [set(claim_cells(study, study.study.claims[0])) for study in studies]
    cheapest = min(needed, key=lambda keys: sum(plan.cells[key].seconds for key in keys))
    assert needed[0] != needed[1]
    for first, order in enumerate((studies, studies[::-1])):
        ordered = [cell.key for cell in order_cells(order, plan.store, in_turn=True)]
        assert set(ordered[: len(needed[first])]) == needed[first]
        soonest = [cell.key for cell in order_cells(order, plan.store)]
        assert set(soonest[: len(cheapest)]) == cheapest, "whichever study is named first"


def test_claims_that_are_done_come_last(report: Report, study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    shutil.copytree(report.folder, folder)
    plan = planner.make_plan(study, folder, dry=True)
    missing = [plan.trials["gpt", "topic@16", 0, (0, 1)], plan.trials["random frozen", "topic@16", 0, (0, 0)]]
    for key in missing:
        shutil.rmtree(folder / "cells" / key)
    assert next(iter(order_cells([plan], plan.store))).key == missing[0], "a claim waits for it"
    assert not missing_bases(plan.store, plan.cells.values()), "weights are here"
    shutil.rmtree(folder / "cells" / plan.bases["gpt", 0] / "run")
    assert missing_bases(plan.store, plan.cells.values()) == [plan.bases["gpt", 0]]
    assert next(iter(order_cells([plan], plan.store))).key == plan.bases["gpt", 0]


def test_the_majority_ignores_settings_of_heads(plan: plans.Plan) -> None:
    """A study of taggers sets the width of a network that the majority does not have."""
    settings = [cell.arguments["settings"] for cell in plan.cells.values() if cell.kind == "majority"]
    assert settings and not any({"train.epochs", "train.batch_examples"} & set(each) for each in settings)


def test_nothing_starts_that_cannot_end(plan: plans.Plan) -> None:
    base = plan.cells[plan.bases["bert", 0]]
    transfers = [replace(cell, seconds=30.0) for cell in plan.cells.values() if cell.depends_on == base.key]
    base = replace(base, seconds=30.0, flops=0.0)
    visit = Visit(minutes=2.0)
    visit.open(plan.store, [base, *transfers])
    assert len(transfers) == 2 and visit.find_room(base, 2, lambda _: False), (
        "30 s, and two transfers of 30 s side by side"
    )
    assert visit.find_room(base, 1, lambda key: key != base.key) and visit.find_room(transfers[0], 1, lambda _: False)
    assert not Visit(minutes=0.4).remaining() > 30
    short = Visit(minutes=1.0)
    short.open(plan.store, [base, *transfers])
    assert not short.find_room(base, 2, lambda _: False), "its weights would stay here, unused"
    assert short.find_room(base, 2, lambda _: True)
    assert Visit().find_room(base, 1, lambda _: False), "without minutes there is no end"


def test_what_was_measured_is_expected_again(plan: plans.Plan) -> None:
    durations = Durations(plan.store, plan.cells.values())
    first, second = (replace(plan.cells[plan.bases["bert", seed]], flops=1e9, seconds=10.0) for seed in range(2))
    other = replace(plan.cells[plan.bases["gpt", 0]], flops=2e9, seconds=30.0)
    assert durations.estimate(second) == 10.0, "as planned"
    durations.observe(first, STARTUP + 40.0)
    assert durations.estimate(second) == STARTUP + 40.0
    assert durations.estimate(other) == pytest.approx(STARTUP + 4 * 30.0), "four times slower than planned, too"


def test_short_cells_and_trials_do_not_stand_for_long_ones(plan: plans.Plan) -> None:
    """Vectors of words take nine seconds and next to no FLOPs: by FLOPs, a Transformer would take hours."""
    durations = Durations(plan.store, plan.cells.values())
    vectors = replace(plan.cells[plan.bases["bert", 0]], position={"row": "word2vec"}, flops=1e6, seconds=0.5)
    long = replace(plan.cells[plan.bases["gpt", 0]], flops=1e15, seconds=20.0)
    durations.observe(vectors, 9.0)
    assert durations.estimate(long) == 20.0
    durations.observe(replace(long, flops=2e14, seconds=4.0), STARTUP + 8.0)  # a trial of a fifth
    assert durations.estimate(long) == pytest.approx(STARTUP + 40.0)


def test_a_curve_tells_compiling_from_learning(plan: plans.Plan) -> None:
    """As seen on a GPU: three trials at once took 128 s, 57 of them until the first tenth was learnt."""
    durations = Durations(plan.store, plan.cells.values())
    long = replace(plan.cells[plan.bases["gpt", 0]], flops=5e16, seconds=200.0)
    trial = replace(long, flops=5e15, seconds=20.0)
    curve = [{"flops": (1 + number) * 5e14, "seconds": 50.0 + 8.0 * number} for number in range(10)]
    durations.observe(trial, 128.0, curve)
    assert durations.estimate(long) == pytest.approx((128.0 - 80.0) + 800.0)
    untimed = Durations(plan.store, plan.cells.values())
    untimed.observe(trial, 128.0, curve[:1])
    assert untimed.estimate(long) == pytest.approx(STARTUP + 10 * (128.0 - STARTUP)), "one point has no speed"


def test_a_short_cell_without_a_curve_is_expected_again(plan: plans.Plan) -> None:
    """Transfers of six seconds tell no start-up of 15: with 20 s left, none of another row was begun."""
    durations = Durations(plan.store, plan.cells.values())
    transfer = replace(plan.cells[plan.bases["bert", 0]], kind="transfer", flops=1e14, seconds=4.0)
    durations.observe(transfer, 6.0)
    other = replace(transfer, position={"row": "other"})
    assert durations.estimate(other) == pytest.approx(6.0)
    assert durations.estimate(replace(other, seconds=8.0)) == pytest.approx(4.5 + 2 * 1.5)


def test_a_large_model_is_not_slowed_down_as_small_ones_are(plan: plans.Plan) -> None:
    """Small models wait for launches and share a GPU badly; the trial of a large one tells how slow it will be."""
    durations = Durations(plan.store, plan.cells.values())
    small = replace(plan.cells[plan.bases["bert", 0]], flops=1e15, seconds=20.0)
    large = replace(plan.cells[plan.bases["gpt", 0]], flops=1e16, seconds=50.0)
    for _ in range(3):
        durations.observe(small, STARTUP + 200.0)
    durations.observe(replace(large, flops=2e15, seconds=10.0), STARTUP + 40.0)
    assert durations.estimate(large) == pytest.approx(STARTUP + 4 * 50.0)
    assert durations.estimate(replace(small, flops=5e15, seconds=100.0)) == pytest.approx(STARTUP + 10 * 100.0)
    without_flops = replace(large, flops=0.0)
    assert durations.estimate(without_flops) == pytest.approx(STARTUP + 10 * 50.0), "the median of all"


def test_a_visit_that_is_too_short_leaves_cells_for_the_next(report: Report, study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    shutil.copytree(report.folder, folder)
    key = planner.make_plan(study, folder, dry=True).trials["gpt", "topic@16", 0, (0, 1)]
    shutil.rmtree(folder / "cells" / key)
    messages: list[str] = []
    cut = run(study, folder, minutes=1e-6, on_progress=messages.append)
    assert messages[-1] == "The time is up: 1 of 1 cells are left for the next visit." and not cut.failed
    whole = run(study, folder, minutes=10, on_progress=messages.append)
    assert timeless(whole.results["rows"]) == timeless(report.results["rows"])


def test_studies_of_one_queue_share_their_cells(report: Report, study: Study, tmp_path: Path) -> None:
    archive = tmp_path / "cells.zip"
    export_cells(CellStore(report.folder / "cells"), archive, report.folder)
    second = tiny(name="second", claims=[{"claim": "GPT beats BERT", "better": "gpt", "than": "bert"}])
    messages: list[str] = []
    out = tmp_path / "both"
    reports = run_several([study, second], out, import_from=[archive], on_progress=messages.append)
    assert not [message for message in messages if message.startswith("[")], "all cells came along, and serve both"
    assert [own.folder for own in reports] == [out / "tiny", out / "second"]
    assert (
        timeless(reports[0].results["rows"]) == timeless(reports[1].results["rows"]) == timeless(report.results["rows"])
    )
    assert all((own.folder / "cells").resolve() == (out / "cells").resolve() and own.page.is_file() for own in reports)
    commands = [line for cell in reports[1].results["cells"] for line in cell["commands"] if "finetune" in line]
    words = [shlex.split(line) for line in commands]
    files = [each[each.index(option) + 1] for each in words for option in ("--train", "--dev")]
    assert files and all((reports[1].folder / file).is_file() for file in files), "typed in the study's folder"
    with pytest.raises(UserError, match="one name"):
        run_several([study, study], out)
    with pytest.raises(UserError, match="called 'cells' cannot run with others"):
        run_several([study, tiny(name="cells")], tmp_path / "never")
    assert not (tmp_path / "never").exists()
    alone = tmp_path / "alone" / "tiny" / "cells"
    alone.mkdir(parents=True)
    with pytest.raises(UserError, match="ran alone"):
        run_several([study, second], tmp_path / "alone")
