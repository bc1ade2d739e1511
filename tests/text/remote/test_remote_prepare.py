"""`etude prepare` from and to an S3 server: the same bytes as on a disk, through errors, cuts and interruptions."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import lzma
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from tests.text.prepare.small_texts import as_bytes, some_text
from tests.text.remote.s3_server import S3Server

from etude.errors import UserError
from etude.text.checked_files import hash_file
from etude.text.corpus.corpus import Corpus
from etude.text.prepare import readers
from etude.text.prepare.prepare import Progress, prepare
from etude.text.prepare.remote_work import work_place
from etude.text.prepare.sources import find_sources
from etude.text.remote import remote_file, storage
from etude.text.remote.shard_upload import ShardUpload
from etude.text.remote.storage import RemoteError

if TYPE_CHECKING:
    from s3fs import S3FileSystem

SPEC = "bytebpe:300"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "town.txt"
    path.write_text("\n\n".join(some_text(60, longest=8)), encoding="utf-8")
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(remote_file, "BLOCK", 1 << 14)


def remote_bytes(files: S3FileSystem, url: str) -> dict[str, bytes]:
    base = len(url.removeprefix("s3://")) + 1
    return {name[base:]: files.cat_file(name) for name in files.find(url)}


def test_text_of_a_store_is_that_of_a_disk(
    bucket: str, files: S3FileSystem, text: Path, tmp_path: Path, small_pieces: None, s3: S3Server
) -> None:
    content = text.read_bytes()
    folder = tmp_path / "parts"
    folder.mkdir()
    packed = {
        "a.txt": content, "b.txt.gz": gzip.compress(content), "c.txt.xz": lzma.compress(content),
        "d.txt.zst": zstandard.compress(content),
        "e.jsonl": "".join(json.dumps({"text": line}) + "\n" for line in some_text(10, seed=3)).encode(),
        ".hidden.txt": b"no", "notes.pdf": b"no",
    }  # fmt: skip
    for name, data in packed.items():
        (folder / name).write_bytes(data)
        files.pipe_file(f"{bucket}/parts/{name}", data)
    prepare(folder, tmp_path / "local", SPEC, workers=0)
    s3.trouble = lambda method, path, number: {4: "error", 7: "cut"}.get(number % 9)  # type: ignore[assignment, return-value]
    for number, source in enumerate((f"{bucket}/parts", [f"{bucket}/parts/{name}" for name in list(packed)[:5]])):
        prepare(source, tmp_path / f"remote{number}", SPEC, workers=0)
    local, remote, listed = (as_bytes(tmp_path / name) for name in ("local", "remote0", "remote1"))
    manifests = [json.loads(each.pop("manifest.json")) for each in (local, remote, listed)]
    assert local == remote
    sources = [manifest.pop("sources") for manifest in manifests]
    assert manifests[0]["parts"] == manifests[1]["parts"] and sources[0][0]["files"][0]["sha256"]
    assert [file["sha256"] for file in sources[0][0]["files"]] == [file["sha256"] for file in sources[1][0]["files"]]
    assert sources[1][0]["files"][0]["path"] == f"{bucket}/parts/a.txt"
    several = find_sources([f"{bucket}/parts/*.txt*", f"{bucket}/parts/e.jsonl"])
    assert [len(source.files) for source in several] == [4, 1]


def test_tables_are_read_from_both_ends(bucket: str, files: S3FileSystem, tmp_path: Path, small_pieces: None) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": some_text(40)}), path, row_group_size=10)
    files.put_file(str(path), f"{bucket}/a.parquet")
    local, remote = (prepare(name, tmp_path / f"{n}", "char") for n, name in enumerate((path, f"{bucket}/a.parquet")))
    assert local.fingerprint == remote.fingerprint
    assert [corpus.manifest["sources"][0]["files"][0]["sha256"] for corpus in (local, remote)] == 2 * [hash_file(path)]


def test_two_sides_of_a_store_are_pairs(bucket: str, files: S3FileSystem, tmp_path: Path, small_pieces: None) -> None:
    for side in ("en", "ko"):
        (tmp_path / f"a.{side}").write_text("".join(f"{side} {number}\n" for number in range(200)))
        files.put_file(str(tmp_path / f"a.{side}"), f"{bucket}/a.{side}")
    files.put_file(str(tmp_path / "a.en"), f"{bucket}/b.en")
    names = (str(tmp_path / "a.en"), f"{bucket}/a.en", f"{bucket}/a.*")
    corpora = [prepare(name, tmp_path / f"{n}", "char", pairs="en,ko") for n, name in enumerate(names)]
    assert len({corpus.fingerprint for corpus in corpora}) == 1
    with pytest.raises(UserError, match=r"b\.en has no target side: there is no file s3://.*b\.ko"):
        prepare(f"{bucket}/b.en", tmp_path / "c", "char", pairs="en,ko")


def test_a_corpus_in_a_store_has_the_same_bytes(
    bucket: str, files: S3FileSystem, text: Path, tmp_path: Path, small_pieces: None, s3: S3Server
) -> None:
    prepare(text, tmp_path / "local", SPEC, valid=0.1, shard_tokens=4000)
    s3.trouble = lambda method, path, number: {3: "error", 8: "cut"}.get(number % 11)  # type: ignore[assignment, return-value]
    corpus = prepare(text, f"{bucket}/c/", SPEC, valid=0.1, shard_tokens=4000)
    assert remote_bytes(files, f"{bucket}/c") == as_bytes(tmp_path / "local")
    assert corpus.location == f"{bucket}/c" and len(corpus.manifest["parts"]["train"]["shards"]) > 2
    assert s3.paths("PUT")[-1].endswith("manifest.json")
    assert not work_place(f"{bucket}/c").parent.joinpath("x").exists() and not list(tmp_path.rglob("*.partial"))
    with pytest.raises(UserError, match="exists already"):
        prepare(text, f"{bucket}/c", SPEC)
    prepare(text, f"{bucket}/c", "char", valid=0, force=True)  # fewer files: none of the old ones stays
    prepare(text, tmp_path / "char", "char", valid=0)
    assert remote_bytes(files, f"{bucket}/c") == as_bytes(tmp_path / "char")
    files.pipe_file(f"{bucket}/other/thesis.tex", b"x")
    with pytest.raises(UserError, match=r"something else than a corpus: thesis\.tex"):
        prepare(text, f"{bucket}/other", SPEC, force=True)


def test_an_interrupted_corpus_goes_on(
    bucket: str, files: S3FileSystem, text: Path, tmp_path: Path, small_pieces: None, s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    prepare(text, tmp_path / "local", SPEC, shard_tokens=4000)
    full_shards: list[Sequence[Path]] = []
    add = ShardUpload.add

    def note_add(self: ShardUpload, paths: Sequence[Path]) -> None:
        add(self, paths)
        full_shards.append(paths)

    def stop_late(progress: Progress) -> None:
        while len(full_shards) >= 2:  # until the second is on its way: the first has arrived
            if any("/00001.documents" in path for path in s3.paths("PUT")):
                raise KeyboardInterrupt
            time.sleep(0.02)

    monkeypatch.setattr(ShardUpload, "add", note_add)
    with pytest.raises(KeyboardInterrupt):
        prepare(text, f"{bucket}/c", SPEC, shard_tokens=4000, progress=stop_late, commit_seconds=0)
    assert not files.exists(f"{bucket}/c/manifest.json")  # complete or absent
    with pytest.raises(UserError, match=r"is not a corpus: it has no manifest\.json"):
        Corpus.open(f"{bucket}/c")
    before = [path for path in s3.paths("PUT") if path.endswith(".tokens.u16")]
    left = sorted(path.name for path in work_place(f"{bucket}/c").parent.rglob("*.tokens.u16"))
    assert len(before) >= 2 and "00000.tokens.u16" not in left  # what has arrived is not on this disk any more
    s3.requests.clear()
    prepare(text, f"{bucket}/c", SPEC, shard_tokens=4000)
    assert remote_bytes(files, f"{bucket}/c") == as_bytes(tmp_path / "local")
    assert before[0] not in s3.paths("PUT")  # and is not sent again


def test_a_store_that_is_down_costs_nothing_that_is_done(
    bucket: str, files: S3FileSystem, text: Path, tmp_path: Path, small_pieces: None, s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(storage, "ATTEMPTS", 2)
    prepare(text, tmp_path / "local", SPEC, shard_tokens=4000)
    s3.trouble = lambda method, path, number: "error" if "00002" in path else None
    with pytest.raises(RemoteError, match=r"00002\..*cannot be written: .*2 attempts in .*the same command goes on"):
        prepare(text, f"{bucket}/c", SPEC, shard_tokens=4000, commit_seconds=0)
    assert not files.exists(f"{bucket}/c/manifest.json")
    s3.trouble = lambda method, path, number: None
    prepare(text, f"{bucket}/c", SPEC, shard_tokens=4000)
    assert remote_bytes(files, f"{bucket}/c") == as_bytes(tmp_path / "local")


def test_what_is_wrong_is_one_message(
    bucket: str, files: S3FileSystem, s3: S3Server, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "ATTEMPTS", 2)
    files.pipe_file(f"{bucket}/a.txt", text.read_bytes())
    out = tmp_path / "c"
    for url, message in (
        (f"{bucket}/b.txt", "there is no such file, folder or bucket"), ("s3://no-such/b.txt", "no such file"),
        (f"{bucket}/*.csv", "no file matches the pattern"), ("s4://lab/a.txt", r"no scheme 's4'. Did you mean 's3'"),
        ("gs://lab/a.txt", r"needs gcsfs: pip install 'etude\[gcs\]'"), ("file://elsewhere/a.txt", "names the machine"),
        ("s3:/lab/a.txt", "no such file or folder"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            prepare(url, out, SPEC)
    with pytest.raises(UserError, match="Nothing can be written to https://"):
        prepare(text, "https://example.org/c", SPEC)
    s3.trouble = lambda method, path, number: "forbidden"
    with pytest.raises(UserError, match=r"may not be read: .*AWS_ACCESS_KEY_ID"):
        prepare(f"{bucket}/a.txt", out, SPEC)
    s3.trouble = lambda method, path, number: "error"
    with pytest.raises(UserError, match=r"cannot be read: .*\(2 attempts"):
        prepare(f"{bucket}/a.txt", out, SPEC)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"Reading .*a\.txt needs s3fs: pip install 'etude\[remote\]'"):
        prepare(f"{bucket}/a.txt", out, SPEC)
    assert not out.exists() and not list(tmp_path.rglob("*.partial"))
    local = prepare(f"file://{text}", out.as_uri(), "char", valid=0)
    assert local.folder == out


def test_a_server_of_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that knows no parts of files serves small ones; one that is away is no missing file."""
    monkeypatch.setattr(storage, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(remote_file, "BLOCK", 1 << 10)
    (tmp_path / "small.txt").write_text("작은 글")
    (tmp_path / "large.txt").write_text("큰 글 " * 1000)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            corpus = prepare(f"{url}/small.txt", tmp_path / "c", "char", valid=0)
            assert corpus.tokenizer.decode(corpus.tokens(0, corpus.total)) == "작은 글"
            with pytest.raises(RemoteError, match=r"large\.txt cannot be read in parts: .*Download it first"):
                prepare(f"{url}/large.txt", tmp_path / "d", "char")
            with pytest.raises(UserError, match="there is no such file"):
                prepare(f"{url}/none.txt", tmp_path / "e", "char")
        finally:
            server.shutdown()
    with pytest.raises(UserError, match=r"small\.txt cannot be read: .*attempts in .*Check the network"):
        prepare(f"{url}/small.txt", tmp_path / "f", "char")


def test_plain_paths_load_nothing_of_it(text: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from etude.text.prepare.prepare import prepare; "
        f"prepare({str(text)!r}, {str(tmp_path / 'c')!r}, 'char', workers=0); "
        "assert not {'fsspec', 's3fs', 'aiohttp'} & sys.modules.keys(), sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_killed_again_and_again(
    bucket: str, files: S3FileSystem, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "town.txt"
    path.write_text("\n\n".join(some_text(6000)), encoding="utf-8")
    prepare(path, tmp_path / "local", SPEC, shard_tokens=30_000)
    code = (
        "import os, sys, threading; from etude.text.prepare.prepare import prepare; "
        "from etude.text.prepare import readers; "
        "readers.BLOCK_BYTES = 1 << 14; "
        "threading.Timer(float(sys.argv[3]), lambda: os.kill(os.getpid(), 9)).start(); "
        f"prepare(sys.argv[1], sys.argv[2], {SPEC!r}, shard_tokens=30_000, workers=2, commit_seconds=0.05); os._exit(0)"
    )
    codes = []
    for seconds in itertools.count(1.5, 0.4):
        command = [sys.executable, "-c", code, str(path), f"{bucket}/c", str(seconds)]
        codes.append(subprocess.run(command, capture_output=True).returncode)
        if codes[-1] != -9:
            break
    assert codes[-1] == 0 and len(codes) > 2
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 14)
    prepare(path, tmp_path / "again", SPEC, shard_tokens=30_000)
    assert remote_bytes(files, f"{bucket}/c") == as_bytes(tmp_path / "again")
