"""Claims of earlier reports, judged again: what is written down is what the script says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import judge_again
from etude.study import planner
from etude.study.references import load_reference
from etude.study.settings import Study


def test_earlier_reports_are_judged_as_written_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = {}
    monkeypatch.setattr(judge_again, "write_results", lambda page, claims: written.update({page.name: claims}))
    judge_again.main()
    assert capsys.readouterr().out == (judge_again.PAGES / "judged-again.md").read_text(encoding="utf-8")
    for name, claims in written.items():
        kept = json.loads((judge_again.PAGES / "results" / f"{name}.json").read_text(encoding="utf-8"))
        assert [claim["verdict"] for claim in claims] == [claim["verdict"] for claim in kept["claims"]]
        assert [claim["holm"] for claim in claims] == pytest.approx([claim["holm"] for claim in kept["claims"]])


def test_claims_of_models_that_had_hardly_learnt_are_not_tested() -> None:
    """The page called them settled or not, and said above the table that they were not tested."""
    untested = {}
    for name in (
        "albert-sharing",
        "mask-rate",
        "mlm-vs-electra",
        "sentence-objectives",
        "sentence-objectives.first.gpu",
    ):
        claims = json.loads((judge_again.PAGES / "results" / f"{name}.json").read_text(encoding="utf-8"))["claims"]
        untested[name] = [claim.get("untested") for claim in claims]
        assert all((claim["verdict"] == "not tested") == ("untested" in claim) for claim in claims)
    assert untested == {
        "albert-sharing": ["young"] * 3,
        "mask-rate": [None, "young", None],  # 5 %
        "mlm-vs-electra": ["young"],
        "sentence-objectives": ["young", "majority", "majority"],
        "sentence-objectives.first.gpu": ["majority", None, "majority"],
    }


def test_the_majority_is_the_larger_class_of_the_same_test_parts() -> None:
    """Evenly drawn labels had 31 % for the majority of MRPC, which everybody leaves."""
    later = json.loads((judge_again.PAGES / "results" / "mlm-vs-electra.gpu.json").read_text(encoding="utf-8"))
    [majority] = [row["scores"] for row in later["rows"] if row["name"] == "majority"]
    examples = {column["name"]: column["examples"] for column in later["columns"]}
    for (name, column), share in judge_again.LARGER_CLASSES.items():
        source = "sst2@4000" if column.startswith("sst2") else "mrpc@3600"
        assert share == pytest.approx(majority[source]["mean"])
        page = judge_again.read_page(judge_again.PAGES / f"{name}.html")
        assert page.sizes[column] == examples[source]
        assert float(judge_again.seed_means(page, "majority", column)[0]) == pytest.approx(1 - share, abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["albert-sharing", "pretraining-pays"])
def test_references_are_those_of_the_text(name: str, tmp_path: Path) -> None:
    plan = planner.make_plan(Study.load(judge_again.ROOT / "studies" / name), tmp_path, device="cpu")
    counted = {}
    for row in plan.rows:
        if row.draft is not None and row.draft.recipe.tokenizer in judge_again.REFERENCES:
            counted[row.draft.recipe.tokenizer] = load_reference(row.draft.corpus_folder, tmp_path)
    assert len(counted) == (1 if name == "albert-sharing" else 2)
    for tokenizer, reference in counted.items():
        assert reference is not None
        assert vars(reference) == pytest.approx(vars(judge_again.REFERENCES[tokenizer]), rel=2e-4)
