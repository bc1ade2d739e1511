"""The work folder of a corpus that is written to a store: it lies in the cache of this machine.

Full shards are sent while the next ones are encoded; the manifest comes last, so the corpus is complete or absent. The
same command on the same machine goes on after an interruption; on another machine it starts again, with the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from etude.errors import UserError
from etude.text.checked_files import MANIFEST, format_manifest
from etude.text.corpus.manifest import SPLITS, Manifest
from etude.text.prepare.work_folder import CORPUS, WorkFolder
from etude.text.remote.cache_folder import cache_folder
from etude.text.remote.shard_upload import ShardUpload
from etude.text.remote.storage import RemoteError, Storage, refuse_read_only
from etude.text.remote.urls import join_url
from etude.text.tokenizer.pair_tokenizer import TARGET_FILE
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE

OWN = (*(f"{split}/" for split in SPLITS), TOKENIZER_FILE, TARGET_FILE, MANIFEST)


class RemoteWorkFolder(WorkFolder):
    """The folder of one preparation to a URL."""

    def __init__(self, url: str, settings: dict[str, object]) -> None:
        self.url = url
        super().__init__(work_place(url), settings)
        self.upload: ShardUpload = ShardUpload(url, self.folder / CORPUS)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        self.upload.close()
        super().__exit__(kind, value, trace)

    def publish(self, manifest: Mapping[str, object]) -> None:
        """Send what is left, check that everything has arrived, and write the manifest."""
        corpus, upload = self.folder / CORPUS, self.upload
        upload.wait()
        for path in sorted(corpus.glob("*.json")):
            upload.send(path)
        expected = _list_files(manifest, corpus)
        arrived = {info.url[len(self.url) + 1 :]: info.size for info in upload.storage.list_files(self.url)}
        wrong = [name for name, size in expected.items() if arrived.get(name) != size]
        if wrong:
            raise RemoteError(
                f"{join_url(self.url, wrong[0])} is not as it was sent. Is another process preparing the same corpus? "
                "The same command goes on."
            )
        upload.storage.write(join_url(self.url, MANIFEST), format_manifest(manifest).encode())
        upload.storage.remove(join_url(self.url, name) for name in arrived if name not in expected and name != MANIFEST)
        self.remove()


def work_place(url: str) -> Path:
    """Where the work on a remote corpus lies; its folder ends in .partial."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", url).strip("-")[-60:]
    return cache_folder() / "prepare" / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


def refuse_existing_url(url: str, force: bool) -> None:
    """Raise UserError if something is at a URL that only --force may replace, or that is no corpus at all."""
    refuse_read_only(url)
    names = [info.url[len(url) + 1 :] for info in Storage(url).list_files(url)]
    strange = [name for name in names if not name.startswith(OWN)]
    if strange:
        raise UserError(f"{url} holds something else than a corpus: {strange[0]}. Choose another name.")
    if MANIFEST in names and not force:
        raise UserError(f"{url} exists already. Choose another name, or replace it with --force.")


def _list_files(manifest: Mapping[str, object], corpus: Path) -> dict[str, int]:
    """The files that the store must hold before the manifest, with their sizes."""
    typed: Manifest = manifest  # type: ignore[assignment]
    files = {path.name: path.stat().st_size for path in corpus.glob("*.json")}
    for split, entry in typed["parts"].items():
        files[f"{split}/counts.npy"] = entry["counts"]["bytes"]
        for shard in entry["shards"]:
            files |= {f"{split}/{name}": file["bytes"] for name, file in shard["files"].items()}
    return files
