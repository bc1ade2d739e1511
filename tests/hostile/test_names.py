"""Names are text: they stay inside their folder, are printed as they are, and are nobody else's business."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
from pathlib import Path

import pytest

import etude
from etude.cli.printing import escape_controls, make_console
from etude.errors import UserError
from etude.study.settings import Study
from etude.text.corpus.corpus import Corpus
from tests.hostile.commands import run_command
from tests.hostile.samples import Samples
from tests.manifests import read_values, write_manifest

ESCAPES = "\x1b[2J\x1b]0;owned\x07[bold]x[/bold]\r\u202e"


@pytest.mark.parametrize("name", ["../x", "/x", "..", ".hidden", "a/b", "a\\b", "", "x\x1b[2J", "x\n", "x" * 200])
def test_a_study_does_not_leave_its_folder(samples: Samples, tmp_path: Path, name: str) -> None:
    text = (samples.folder / "tiny.yaml").read_text(encoding="utf-8")
    (tmp_path / "s.yaml").write_text(text.replace("name: tiny", f"name: {json.dumps(name)}"), encoding="utf-8")
    with pytest.raises(UserError, match="name"):
        Study.load(tmp_path / "s.yaml")


@pytest.mark.parametrize("name", ["../../x.tokens.u16", "/etc/passwd", "0.tokens.u16/../x", "0.tokens.u16\0", "x"])
def test_paths_of_a_manifest_stay_inside(samples: Samples, tmp_path: Path, name: str) -> None:
    shutil.copytree(samples.folder / "corpus", tmp_path / "corpus")
    manifest = read_values(tmp_path / "corpus")
    files = manifest["parts"]["train"]["shards"][0]["files"]
    files[name] = files.pop("00000.tokens.u16")
    write_manifest(tmp_path / "corpus", manifest)
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        Corpus.open(tmp_path / "corpus")


def test_a_mistyped_folder_is_not_told_to_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: calls.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: calls.append(arguments))
    for word in ("my-secret-project/run", "runs-of-mine", str(tmp_path / "absent"), "./absent", "~/absent"):
        for verb in (("import", word, "-o", tmp_path / "out"), ("fill", word, "a [MASK]"), ("generate", word, "a")):
            outcome = run_command(*verb)
            assert outcome.code == 2 and word in outcome.message.replace("\n", ""), outcome
    assert not calls
    with pytest.raises(UserError, match="no id on the hub"):
        etude.load("hf:../../x")


def test_control_characters_and_markup_are_printed_as_text(tmp_path: Path) -> None:
    assert escape_controls("a\tb\n집 é") == "a\tb\n집 é"
    escaped = escape_controls(ESCAPES)
    assert "\x1b" not in escaped and "\x07" not in escaped and "\u202e" not in escaped and "[bold]x[/bold]" in escaped
    outcome = run_command("prepare", tmp_path / f"no{ESCAPES}file.txt", "-o", tmp_path / "out")
    assert outcome.code == 2 and "[bold]x[/bold]" in outcome.message and "\\x1b[2J" in outcome.message
    console = make_console()
    console.file = io.StringIO()
    console.print(f"column {ESCAPES}")
    printed = console.file.getvalue()
    assert "\x1b" not in printed and "\x07" not in printed and "[bold]x[/bold]" in printed


def test_a_name_that_is_not_utf8_is_refused_at_the_start(samples: Samples, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    name = os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")
    try:
        Path(name).write_bytes((samples.folder / "town.txt").read_bytes())
    except OSError:
        pytest.skip("this file system takes no such name")
    for source in (folder, Path(name)):
        outcome = run_command("prepare", source, "-o", tmp_path / "out", "-t", "wordpiece:300")
        assert outcome.code == 2 and "not UTF-8" in outcome.message, outcome
    outcome = run_command(*samples.command("export", Path(f"{name}-out")))
    assert outcome.code == 2 and "not UTF-8" in outcome.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]


def test_ids_and_bounds_are_checked_when_a_shard_is_first_read(samples: Samples, tmp_path: Path) -> None:
    import numpy as np

    from tests.hostile.targets import rehash

    for number, (file, dtype) in enumerate((("tokens.u16", "<u2"), ("sentences.u32", "<u4"), ("documents.u32", "<u4"))):
        folder = tmp_path / str(number)
        shutil.copytree(samples.folder / "corpus", folder)
        values = np.fromfile(folder / "train" / f"00000.{file}", dtype)
        values[len(values) // 2] = 60_000
        values.tofile(folder / "train" / f"00000.{file}")
        rehash(folder)
        corpus = Corpus.open(folder)
        with pytest.raises(UserError, match=r"Shard 0 .*Prepare the corpus again"):
            corpus.tokens(0, 10)
