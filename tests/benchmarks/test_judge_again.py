"""Claims of earlier reports, judged again: what is written down is what the script says."""

from __future__ import annotations

import json

import pytest

from benchmarks import judge_again


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
