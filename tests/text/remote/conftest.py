"""An S3 server for a session of tests; each test begins without troubles and with an empty cache."""

from __future__ import annotations

import shutil
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


@pytest.fixture(scope="session")
def stored_corpus(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A corpus of some shards, here and in the store; tests only read it."""
    from s3fs import S3FileSystem

    from etude.text.prepare import readers
    from etude.text.prepare.prepare import prepare

    folder = tmp_path_factory.mktemp("stored")
    (folder / "town.txt").write_text("\n\n".join(some_text(60, longest=8)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", 1 << 11)
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_server.url}.items():
            patch.setenv(name, value)
        prepare(folder / "town.txt", folder / "local", "bytebpe:400", valid=0.1, shard_tokens=700)
        S3FileSystem(use_listings_cache=False).put(str(folder / "local"), "s3://lab/stored/c", recursive=True)
    return folder / "local", "s3://lab/stored/c"


@pytest.fixture
def corpora(stored_corpus: tuple[Path, str], tmp_path: Path, s3: S3Server) -> tuple[Path, str]:
    """A corpus of some shards, in a folder of this test's own and in the store, where it stays as it is."""
    shutil.copytree(stored_corpus[0], tmp_path / "local")
    s3.requests.clear()
    return tmp_path / "local", stored_corpus[1]
