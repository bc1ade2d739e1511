"""An S3 server for a session of tests; each test begins without troubles and with an empty cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.text.prepare.small_texts import some_text
from tests.text.remote.s3_server import CREDENTIALS, S3Server, run_server

if TYPE_CHECKING:
    from s3fs import S3FileSystem


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with run_server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The server, with the environment that leads to it; pauses between attempts are short."""
    from etude.text.remote import storage

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    monkeypatch.setenv("ETUDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "FIRST_PAUSE", 0.01)
    s3_server.requests.clear()
    s3_server.trouble = lambda method, path, number: None
    yield s3_server
    s3_server.trouble = lambda method, path, number: None


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    """The URL of a folder of the bucket that is this test's own."""
    return f"s3://lab/{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def files(s3: S3Server) -> S3FileSystem:
    """The store, to put things there and to look."""
    from s3fs import S3FileSystem

    return S3FileSystem(use_listings_cache=False)


@pytest.fixture
def corpora(
    bucket: str, files: S3FileSystem, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str]:
    """A corpus of some shards, here and in the store."""
    from etude.text.prepare import readers
    from etude.text.prepare.prepare import prepare

    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 11)
    (tmp_path / "town.txt").write_text("\n\n".join(some_text(60, longest=8)), encoding="utf-8")
    prepare(tmp_path / "town.txt", tmp_path / "local", "bytebpe:400", valid=0.1, shard_tokens=700)
    files.put(str(tmp_path / "local"), f"{bucket}/c", recursive=True)
    s3.requests.clear()
    return tmp_path / "local", f"{bucket}/c"
