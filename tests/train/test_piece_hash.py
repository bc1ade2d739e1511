"""Hashes by pieces: the definition, every byte and every length counts, and a fork has threads of its own."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from etude.train import piece_hash
from etude.train.piece_hash import PieceHash, hash_pieces


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece_hash, "PIECE_BYTES", 64)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 1000])
def test_it_is_the_hash_of_the_hashes_of_all_pieces(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "x").write_bytes(content)
    pieces = [content[start : start + 64] for start in range(0, max(1, size), 64)]
    expected = hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()
    assert hash_pieces(tmp_path / "x") == expected and PieceHash(tmp_path / "x").size == size


def test_every_byte_and_the_order_of_pieces_count(tmp_path: Path) -> None:
    content = bytes(range(200))
    contents = [content, content[:-1], content + b"\0", content[64:128] + content[:64] + content[128:]]
    contents += [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in (0, 63, 64, 199)]
    hashes = set()
    for number, item in enumerate(contents):
        (tmp_path / str(number)).write_bytes(item)
        hashes.add(hash_pieces(tmp_path / str(number)))
    assert len(hashes) == len(contents)


def test_a_fork_hashes_too(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(1000))
    expected = hash_pieces(tmp_path / "x")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, hash_pieces(tmp_path / "x").encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == expected
