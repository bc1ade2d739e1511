"""The page over all claims: every claim of the list, every outcome with its verdict, links only to pages that exist."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.study.leaderboard import format_points
from etude.study.report import claims_page
from etude.study.report.claims_page import (
    add_results,
    count_verdicts,
    list_flops,
    load_claims,
    load_results,
    render_index,
    write_index,
)
from etude.study.runner import Report
from etude.study.sections import localize

ROOT = Path(__file__).resolve().parents[3]
CLAIM = "- {number: 1, studies: [tiny], scale: 2.4e9, paper: 82 <against> 80, claim: {en: It runs, ko: 돌아간다}}\n"


def test_a_study_becomes_a_row_with_its_numbers(report: Report, tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(CLAIM + CLAIM.replace("number: 1", "number: 2").replace("tiny", "absent"))
    add_results(tmp_path, report.folder / "results.json", "tiny")
    page = write_index(tmp_path).read_text(encoding="utf-8")
    assert "82 &lt;against&gt; 80" in page and "돌아간다" in page and "not run yet" in page
    assert 'href="tiny.html"' in page and (tmp_path / "tiny.html").is_file() and (tmp_path / "tiny.md").is_file()
    for claim in report.results["claims"]:
        assert format_points(claim["mean"], sign=True) in page
    units = [page.count(f'<span class="key"><span lang="en">{name}') for name in ("Difference", "FLOPs", "Smallest")]
    assert units == [len(report.results["claims"])] * 3, "phones show no head of the table"
    for claim in report.results["claims"]:
        assert (flops := list_flops(report.results, claim))
        assert f"{100 * max(flops) / 2.4e9:.2g}\N{NO-BREAK SPACE}% of the paper" in page
    stored = json.loads((tmp_path / "results" / "tiny.json").read_text(encoding="utf-8"))
    assert stored["claims"] == report.results["claims"] and not any("commands" in cell for cell in stored["cells"])


def test_a_claim_has_the_flops_of_its_own_sides(tmp_path: Path) -> None:
    """All claims of a study had those of its dearest pre-training: word vectors 8.4e15 for 3e12."""
    spent = {"gpt @ 1": 1e15, "gpt @ 2": 8.4e15, "bert": 3e15, "mlm": 3.1e15, "word2vec": 3e12}
    rows = [{"name": name, "pretraining": {"flops": flops}} for name, flops in spent.items()]
    results = {
        "rows": [
            *rows,
            {"name": "no pre-training", "pretraining": {}},
            {"name": "later", "pretraining": {"flops": None}},
        ]
    }

    def flops_of(better: str, than: str) -> list[float]:
        return list_flops(results, {"better": better, "than": than})

    assert flops_of("word2vec", "no pre-training") == flops_of("no pre-training", "word2vec") == [3e12]
    assert flops_of("gpt", "bert") == [8.4e15, 3e15], "the largest budget is judged"
    assert flops_of("gpt @ 1", "bert") == [1e15, 3e15]
    assert flops_of("bert", "mlm") == [3e15] and flops_of("later", "majority") == []
    assert list_flops({"flops": 1e11}, {"better": "a", "than": "b"}) == [1e11]


def test_a_note_stands_beside_its_claim(tmp_path: Path) -> None:
    note = "note: {en: The control has <one> rate., ko: 대조군의 학습률은 하나입니다.}"
    (tmp_path / "claims.yaml").write_text(CLAIM.replace("scale:", f"{note}, scale:"), encoding="utf-8")
    page = render_index(load_claims(tmp_path), {}, tmp_path)
    assert "The control has &lt;one&gt; rate." in page and "대조군의 학습률은 하나입니다." in page


def test_no_folder_of_a_machine_gets_into_the_repository(report: Report, tmp_path: Path) -> None:
    """Results of three studies named the folder that they had been copied to for their report."""
    row, *rows = report.results["rows"]
    changed = {**row, "changes": {"task.graph": str(tmp_path / "data" / "graph"), "train.files": [str(tmp_path)]}}
    results = {**report.results, "text": {"corpus": str(tmp_path / "corpus")}, "rows": [changed, *rows]}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results), encoding="utf-8")
    add_results(tmp_path, path, "tiny")
    text = (tmp_path / "results" / "tiny.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    stored = json.loads(text)
    assert stored["text"] == {"corpus": "corpus"} and stored["rows"][0]["changes"]["task.graph"] == "graph"
    assert stored["claims"] == report.results["claims"]


def test_a_claim_has_the_seeds_of_the_look_that_settled_it(report: Report, tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(CLAIM)
    claims = [{**claim, "pretrainings": 3} for claim in report.results["claims"]]
    results = {**report.results, "seeds": {"pretrain": 5, "transfer": 1}, "claims": claims}
    page = render_index(load_claims(tmp_path), {"tiny": results}, tmp_path)
    assert page.count("3 seeds") == len(claims) and "5 seeds" not in page


def test_a_look_says_what_part_of_the_error_it_had(report: Report, tmp_path: Path) -> None:
    """A difference with p = 0.035 and an interval without 0 was called not settled, and nothing said why."""
    (tmp_path / "claims.yaml").write_text(CLAIM)
    claim = {**report.results["claims"][0], "pretrainings": 3, "holm": 0.035, "verdict": "not settled"}
    claim.pop("untested", None)
    planned = {**report.results, "rule": {**report.results["rule"], "looks": [3, 5]}}
    claims = load_claims(tmp_path)

    def is_explained(results: dict[str, Any], **changes: Any) -> bool:
        page = render_index(claims, {"tiny": {**results, "claims": [{**claim, **changes}]}}, tmp_path)
        return "at this one p must be below 3\N{NO-BREAK SPACE}%" in page

    assert is_explained(planned)
    assert not is_explained(planned, holm=0.06) and not is_explained(planned, holm=0.02, verdict="holds")
    assert not is_explained(report.results, holm=0.06)


def test_a_rate_in_doubt_is_named_beside_the_verdict(report: Report, tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(CLAIM)
    claim = {**report.results["claims"][0], "better": "bert", "than": "gpt"}
    doubts = {"bert": {"lowest_loss": 1e-3}, "gpt": {"lowest_loss": None}, "no pre-training": {"lowest_loss": 1e-3}}

    def page_of(named: str) -> str:
        rows = [
            {**row, "label": {"en": "<BERT>", "ko": "버트"} if row["name"] == named else row["label"]}
            | ({"tuning": doubts[row["name"]]} if row["name"] == named else {})
            for row in report.results["rows"]
        ]
        return render_index(
            load_claims(tmp_path), {"tiny": {**report.results, "claims": [claim], "rows": rows}}, tmp_path
        )

    assert "few dev examples chose that of &lt;BERT&gt;," in page_of("bert") and "버트의 학습률은" in page_of("bert")
    assert "rate in doubt" not in page_of("gpt") and "rate in doubt" not in page_of("no pre-training")


def test_intervals_have_the_level_of_their_study(report: Report, tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(CLAIM + CLAIM.replace("number: 1", "number: 2").replace("tiny", "wide"))
    claims = load_claims(tmp_path)
    wide = {**report.results, "rule": {**report.results["rule"], "interval": 0.9}}
    alone = render_index(claims, {"wide": wide}, tmp_path)
    assert "(90\N{NO-BREAK SPACE}% interval)" in alone and "95" + "\N{NO-BREAK SPACE}%" not in alone
    both = render_index(claims, {"tiny": report.results, "wide": wide}, tmp_path)
    assert "% interval)" not in both, "no one level is that of all"
    for level in ("95", "90"):
        assert both.count(f"<span>({level}\N{NO-BREAK SPACE}%: ") == len(report.results["claims"])


def test_earlier_pages_are_linked_and_not_counted(report: Report, tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(
        CLAIM.replace("studies: [tiny]", "studies: [tiny], earlier: [tiny.first, gone]")
    )
    (tmp_path / "tiny.first.html").write_text("")
    results = {"tiny": report.results, "tiny.first": report.results}
    page = render_index(claims := load_claims(tmp_path), results, tmp_path)
    assert page.count("tiny.first.html") == 1 and "이전 결과" in page and "gone" not in page
    assert sum(count_verdicts(claims, results).values()) == len(report.results["claims"])


def test_no_link_to_a_page_that_is_not_there(report: Report, tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(CLAIM)
    page = render_index(load_claims(tmp_path), {"tiny": report.results}, tmp_path)
    assert "href=" not in page and "tiny" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent"], "There is no absent/claims.yaml"),
        ([".", "tiny"], "'tiny' names no results of a study: write NAME=FOLDER/results.json."),
        ([".", "tiny=absent.json"], "'tiny=absent.json' names no results"),
    ],
)
def test_a_mistake_is_one_message(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "claims.yaml").write_text(CLAIM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["claims_page", *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(claims_page.__file__, run_name="__main__")  # a process of its own would load torch again
    error = capsys.readouterr().err
    assert end.value.code == 2 and message in error and "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["claims.yaml"]


def test_what_a_paper_found_is_said_in_both_languages(tmp_path: Path) -> None:
    """A reader of the Korean page met 'at 6.25 % of its training' and 'no table of heads'."""
    paper = "paper: {en: 41 % without <it>, ko: 없으면 41 %}"
    (tmp_path / "claims.yaml").write_text(CLAIM.replace("paper: 82 <against> 80", paper), encoding="utf-8")
    page = render_index(load_claims(tmp_path), {}, tmp_path)
    space = "\N{NO-BREAK SPACE}"
    assert f'<span lang="en">41{space}% without &lt;it&gt;</span><span lang="ko">없으면 41{space}%</span>' in page
    ordinary = re.compile(r"\b(?:of|at|with|without|against|from|to|only|by|no|none|all|loss|published|small)\b")
    for claim in load_claims(ROOT / "docs" / "studies"):
        korean = localize(claim["paper"], "ko")
        assert not ordinary.search(re.sub(r"\([^)]* et al\. \d{4}", "", korean)), korean
        numbers = [sorted(re.findall(r"\d[\d.e-]*\d|\d", localize(claim["paper"], each))) for each in ("en", "ko")]
        assert numbers[0] == numbers[1], korean


def test_a_number_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(CLAIM + CLAIM)
    with pytest.raises(UserError, match="twice"):
        load_claims(tmp_path)


def test_the_page_of_the_repository_is_what_its_results_say() -> None:
    folder = ROOT / "docs" / "studies"
    claims = load_claims(folder)
    assert [claim["number"] for claim in claims] == list(range(1, 26))
    written = render_index(claims, load_results(folder), folder)
    assert (folder / "index.html").read_text(encoding="utf-8") == written, (
        "run python -m etude.study.report.claims_page"
    )
