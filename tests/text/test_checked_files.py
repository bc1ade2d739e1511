"""A manifest has a hash of itself: whatever is changed in it, it is refused; well-signed values meet the schema."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NotRequired

import pytest
from typing_extensions import TypedDict

from etude.errors import UserError
from etude.text.checked_files import load_manifest, parse_manifest, write_manifest


class Shape(TypedDict):
    format: str
    version: int
    count: int
    note: NotRequired[str]


VALUES = {"format": "etude thing", "version": 3, "count": 100, "note": "집 é", "rate": 1e-05, "names": ["a", "b"]}


def load(folder: Path) -> Shape:
    return load_manifest(folder, Shape, "thing", 3, "etude make")


def test_values_come_back_without_the_hash(tmp_path: Path) -> None:
    write_manifest(tmp_path, VALUES)
    assert load(tmp_path) == VALUES
    assert len(json.loads((tmp_path / "manifest.json").read_text())["sha256"]) == 64
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_every_flipped_bit_and_every_truncation_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, VALUES)
    path = tmp_path / "manifest.json"
    whole = path.read_bytes()
    changed = [whole[:length] for length in range(len(whole))]
    for place in range(len(whole)):
        for bit in range(8):
            changed.append(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
    for content in changed:
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"manifest\.json"):
            load(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace('"count": 100', '"count": 101'),
        lambda text: text.replace("100", "100.0"),
        lambda text: text.replace("1e-05", "1E-05"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text + " ",
        lambda text: text.replace('"count"', '"count": 9,\n "count"'),
        lambda text: json.dumps(json.loads(text)),
        lambda text: text.replace("집", "\\ud800"),
    ],
)
def test_the_same_values_written_otherwise_are_refused(tmp_path: Path, changed: object) -> None:
    write_manifest(tmp_path, VALUES)
    path = tmp_path / "manifest.json"
    path.write_text(changed(path.read_text()), newline="")  # type: ignore[operator]
    with pytest.raises(UserError, match=r"manifest\.json was altered: .* Prepare the thing again"):
        load(tmp_path)


def test_a_manifest_without_a_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(VALUES, indent=1, ensure_ascii=False) + "\n")
    with pytest.raises(UserError, match=r"has no sha256 of itself.*Prepare the thing again"):
        load(tmp_path)


def test_well_signed_values_of_another_shape_are_refused(tmp_path: Path) -> None:
    for values in (VALUES | {"count": "100"}, VALUES | {"count": True}, {"format": "etude thing", "version": 3}):
        write_manifest(tmp_path, values)
        with pytest.raises(UserError, match=r"manifest\.json is damaged: count"):
            load(tmp_path)


def test_hostile_text_is_one_message(tmp_path: Path) -> None:
    draw = random.Random(0)
    for content in (b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"3", b"\xff", b"9" * 5000, draw.randbytes(100)):
        with pytest.raises(UserError, match="manifest"):
            parse_manifest(tmp_path / "manifest.json", content, "Prepare it again.")
    deep: dict[str, object] = {}
    for _ in range(900):
        deep = {"a": deep}
    content = json.dumps(deep | {"sha256": "0" * 64}).encode()
    with pytest.raises(UserError, match="was altered"):
        parse_manifest(tmp_path / "manifest.json", content, "Prepare it again.")


def test_the_command_proposed_names_a_folder_that_is_free(tmp_path: Path) -> None:
    """`etude prepare` refuses a folder that holds something else, so that it is not proposed as the place."""
    for folder, place in ((tmp_path / "new", str(tmp_path / "new")), (tmp_path, str(tmp_path))):
        with pytest.raises(UserError, match=rf"Make one with 'etude make -o {place}'"):
            load(folder)
    (tmp_path / "notes.txt").write_text("kept")
    with pytest.raises(UserError, match=r"it has no manifest\.json\. Make one with 'etude make -o FOLDER'"):
        load(tmp_path)
