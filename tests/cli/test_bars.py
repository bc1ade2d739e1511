"""Bars of progress and the activity's line share a terminal without a trace of escape sequences."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import TextColumn

import etude
from etude.cli.bars import bars_shown


def test_bars_are_drawn_from_their_first_update_on() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True)
    with bars_shown(TextColumn("{task.description}"), console=console) as bars:
        line = bars.add_task("text")
        assert stream.getvalue() == "", "the terminal is the activity's"
        bars.start()
        bars.update(line, description="reading")
    assert "reading" in stream.getvalue()


def test_bars_without_an_update_leave_nothing() -> None:
    stream = io.StringIO()
    with bars_shown(TextColumn("text"), console=Console(file=stream)):
        pass
    assert stream.getvalue() == ""


def test_a_terminal_shows_no_escape_sequence_as_text(tmp_path: Path) -> None:
    """The line that says what goes on was drawn through the bars, as text: prepare x… 1 s\\x1b[K."""
    (tmp_path / "text.txt").write_text("A small text. It has two sentences.\n\n" * 50)
    code = (
        "import sys, etude.cli.activity as activity; activity.FIRST_SECONDS = activity.TERMINAL_SECONDS = 0.005;"
        "from etude.cli.main import main; main()"
    )
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", code, "prepare", "text.txt", "-o", "corpus", "--tokenizer", "wordpiece:100"]
    source = str(Path(etude.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    output = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # Linux's word for the end of a terminal
            break
        if not chunk:
            break
        output += chunk
    assert process.wait() == 0, output
    assert "prepare text.txt…".encode() in output, "the line was drawn"
    assert b"\\x1b" not in output
