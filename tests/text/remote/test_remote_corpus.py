"""A corpus that stays in a store: the batches of a local one, through errors, with a cache of a few shards."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.text.remote.s3_server import S3Server, Trouble

from etude.errors import UserError
from etude.text.corpus.corpus import Corpus
from etude.text.remote import remote_shards, storage
from etude.text.remote.storage import RemoteError

if TYPE_CHECKING:
    from s3fs import S3FileSystem


def limit_cache(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setenv("ETUDE_CACHE_GB", repr(size / 1e9))


def shard_bytes(corpus: Corpus) -> list[int]:
    shards = corpus.manifest["parts"]["train"]["shards"]
    return [sum(file["bytes"] for file in shard["files"].values()) for shard in shards]


def cached_bytes(tmp_path: Path) -> int:
    sizes = []
    for path in (tmp_path / "cache" / "corpora").glob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # renamed or removed in this moment
            continue
    return sum(sizes)


@contextmanager
def watched(measure: Callable[[], int]) -> Iterator[list[int]]:
    """The largest value that a measure has while a block runs."""
    largest, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            largest[0] = max(largest[0], measure())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        done.set()
        thread.join()
        largest[0] = max(largest[0], measure())  # whenever the thread came to look


def test_opening_reads_the_manifest_alone(corpora: tuple[Path, str], s3: S3Server) -> None:
    local, remote = Corpus.open(corpora[0]), Corpus.open(corpora[1])
    names = [path.rpartition("/")[2] for _, path in s3.requests]
    assert sorted(names) == ["manifest.json", "target_tokenizer.json", "tokenizer.json"]  # all at once
    assert (remote.total, remote.fingerprint, remote.bytes) == (local.total, local.fingerprint, local.bytes)
    assert len(remote.documents) == len(local.documents)
    assert remote.location == corpora[1] and remote.open_split("valid").split == "valid"
    with pytest.raises(UserError, match="is not on this machine"):
        _ = remote.folder
    assert (remote.token_counts() == local.token_counts()).all()


def read_everything(corpus: Corpus, seed: int) -> list[np.ndarray]:
    """Spans from everywhere, in an order that asks for another shard each time."""
    starts = np.random.default_rng(seed).integers(0, corpus.total - 200, 30)
    values: list[np.ndarray] = []
    for start in starts.tolist():
        values += [corpus.tokens(start, start + 200), corpus.word_starts(start, start + 200)]
        values.append(np.array([corpus.documents.find(start), corpus.sentences.find(start)]))
    values.append(corpus.tokens_at(starts))
    values.append(corpus.documents.find_all(starts))
    return values


def test_what_is_read_is_what_a_disk_holds(
    corpora: tuple[Path, str], s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Corpus.open(corpora[0])
    sizes = shard_bytes(local)
    assert len(sizes) >= 5
    limit = int(2.5 * max(sizes))
    limit_cache(monkeypatch, limit)
    troubles: dict[int, Trouble] = {3: "error", 7: "cut", 12: "garbled"}
    s3.trouble = lambda method, path, number: troubles.get(number % 20) if ".json" not in path else None
    with watched(lambda: cached_bytes(tmp_path)) as largest:
        remote = Corpus.open(corpora[1])
        for ours, theirs in zip(read_everything(remote, 0), read_everything(local, 0), strict=True):
            assert np.array_equal(ours, theirs)
    assert max(sizes) < largest[0] <= limit
    assert sum(path.endswith(".tokens.u16") for path in s3.paths("GET")) > len(sizes)  # they went and came again


@pytest.mark.parametrize("in_order", [True, False])
def test_a_cache_of_one_shard_is_enough(
    corpora: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_order: bool
) -> None:
    """What is read ahead must not take the room of what is being read."""
    local = Corpus.open(corpora[0])
    limit = max(shard_bytes(local))
    limit_cache(monkeypatch, limit)
    remote = Corpus.open(corpora[1])
    starts = range(0, local.total, 100) if in_order else np.random.default_rng(0).integers(0, local.total, 12).tolist()
    with watched(lambda: cached_bytes(tmp_path)) as largest:
        for start in starts:
            stop = min(start + 100, local.total)
            assert np.array_equal(remote.tokens(start, stop), local.tokens(start, stop))
    assert 0 < largest[0] <= limit


def test_with_room_everything_comes_once_and_ahead(corpora: tuple[Path, str], s3: S3Server) -> None:
    remote = Corpus.open(corpora[1])
    remote.tokens(0, 10)
    shards = remote.manifest["parts"]["train"]["shards"]
    read_everything(remote, 1)
    again = Corpus.open(corpora[1])
    read_everything(again, 2)
    names = [path for path in s3.paths("GET") if "/train/" in path]
    assert len(names) == len(set(names)) == 4 * len(shards)  # by the first, for both


def test_the_next_shard_comes_while_one_is_read(
    corpora: tuple[Path, str], s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_shards, "THREADS", 1)
    remote = Corpus.open(corpora[1])
    remote.tokens(0, 1)
    assert isinstance(remote._shards, remote_shards.RemoteShards)
    for future in list(remote._shards.pending.values()):
        future.result()
    s3.requests.clear()
    remote.tokens(remote._tokens[1], remote._tokens[1] + 1)
    assert not [path for path in s3.paths("GET") if "/00001." in path]


def test_a_store_that_stays_away_is_one_message(
    corpora: tuple[Path, str], s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "ATTEMPTS", 2)
    remote = Corpus.open(corpora[1])
    s3.trouble = lambda method, path, number: "error"
    with pytest.raises(RemoteError, match=r"00000\..* cannot be read: .*2 attempts"):
        remote.tokens(0, 10)
    s3.trouble = lambda method, path, number: None
    assert len(remote.tokens(0, 10)) == 10  # it goes on when the store is back
    s3.trouble = lambda method, path, number: "error"
    with pytest.raises(UserError, match=r"manifest\.json cannot be read"):
        Corpus.open(corpora[1])


def test_a_slow_answer_is_asked_for_again(
    corpora: tuple[Path, str], s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "TIMEOUT", 1.0)
    s3.delay = 3.0
    slow: list[str] = []

    def be_slow_once(method: str, path: str, number: int) -> Trouble | None:
        if path.endswith("00000.tokens.u16") and not slow:
            slow.append(path)
            return "slow"
        return None

    s3.trouble = be_slow_once
    remote = Corpus.open(corpora[1])
    assert (remote.tokens(0, 50) == Corpus.open(corpora[0]).tokens(0, 50)).all()
    assert len([path for path in s3.paths("GET") if path.endswith("00000.tokens.u16")]) >= 2


def test_altered_files_and_small_caches_are_refused(
    corpora: tuple[Path, str], bucket: str, files: S3FileSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tokens = corpora[0] / "train" / "00001.tokens.u16"
    tokens.write_bytes(tokens.read_bytes()[:-2] + b"\0\0")
    files.put(str(corpora[0]), f"{bucket}/c", recursive=True)
    remote = Corpus.open(f"{bucket}/c")
    with pytest.raises(UserError, match=r"00001\.tokens\.u16 was altered: its SHA-256"):
        remote.tokens(remote._tokens[1], remote._tokens[1] + 5)
    digest = remote.manifest["parts"]["train"]["shards"][1]["files"]["00001.tokens.u16"]["sha256"]
    assert not list((tmp_path / "cache" / "corpora").glob(f"{digest}*"))
    limit_cache(monkeypatch, 1000)
    with pytest.raises(UserError, match=r"cannot hold one shard .*Raise ETUDE_CACHE_GB"):
        Corpus.open(f"{bucket}/c")
    monkeypatch.setenv("ETUDE_CACHE_GB", "plenty")
    with pytest.raises(UserError, match="ETUDE_CACHE_GB=plenty is no size"):
        Corpus.open(f"{bucket}/c")


def test_other_processes_open_it_again(corpora: tuple[Path, str]) -> None:
    remote = Corpus.open(corpora[1])
    expected = remote.tokens(0, remote.total)
    assert (pickle.loads(pickle.dumps(remote)).tokens(0, remote.total) == expected).all()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # as a loader's process: threads and connections are the parent's
        try:
            os.write(writing, bytes([np.array_equal(remote.tokens(0, remote.total), expected)]))
        finally:
            os._exit(0)
    assert os.read(reading, 1) == b"\1"
    os.waitpid(child, 0)


@pytest.mark.slow
def test_several_processes_share_one_cache(
    corpora: tuple[Path, str], s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Corpus.open(corpora[0])
    limit = int(2.5 * max(shard_bytes(local)))
    limit_cache(monkeypatch, limit)
    code = (
        "import sys, numpy as np; from etude.text.corpus.corpus import Corpus; "
        "from tests.text.remote.test_remote_corpus import read_everything; "
        "ours, theirs = (read_everything(Corpus.open(name), int(sys.argv[3])) for name in sys.argv[1:3]); "
        "assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))"
    )
    with watched(lambda: cached_bytes(tmp_path)) as largest:
        processes = [
            subprocess.Popen([sys.executable, "-c", code, corpora[1], str(corpora[0]), str(number)])
            for number in range(3)
        ]
        assert [process.wait() for process in processes] == [0, 0, 0]
    assert 0 < largest[0] <= limit
