"""An error report shows names of the data as they are, and never as a part of the page."""

from __future__ import annotations

from pathlib import Path

from etude.tasks.bootstrap import Score
from etude.tasks.data.examples import Examples
from etude.transfer.error_report import write_report


def test_types_of_entities_are_no_html(tmp_path: Path) -> None:
    scores = {"entity_f1.<b>": Score(0.5, 0.4, 0.6, 10)}
    write_report(tmp_path / "report.html", "tags", scores, Examples(["x"], "a.conll", ["a.conll:1"]), [])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "entity f1.&lt;b&gt;" in page and "<b>" not in page
