"""Remote files through fsspec: what passes is tried again, what does not is one message.

An object store answers late, or not at all, now and then: such an answer is asked for again, with longer and longer
pauses. What is still wrong then, or was wrong from the start (no such file, no permission), is told in one message that
names the URL. Nothing here is imported for local files.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from etude.errors import UserError, WriteError
from etude.extras import require
from etude.text.remote.urls import PACKAGES, READ_ONLY, check_scheme

ATTEMPTS = 6
FIRST_PAUSE = 0.5  # seconds; each later pause is twice as long, so that all of them take about 15 s
SMALL = 1 << 30  # bytes: larger files are read in pieces
MISSING = (404, 410)  # status of an answer: there is no such file
TIMEOUT = 60.0  # seconds without a byte, after which an answer counts as lost

T = TypeVar("T")
Problem = type[UserError] | type[WriteError]


class RemoteError(WriteError):
    """A store that does not answer, or refuses, in the middle of the work; what is complete stays, and it can go on.

    As with a failing disk, it is nobody's mistake in the input (errors.WriteError).
    """


@dataclass(frozen=True)
class RemoteInfo:
    """A remote file."""

    url: str
    size: int
    version: str  # changes with the content, as far as the store can tell


class Storage:
    """The store of a URL. Paths are URLs of the same store."""

    def __init__(self, url: str) -> None:
        self.scheme = check_scheme(url)
        require("fsspec", f"Reading {url}")
        require(PACKAGES[self.scheme], f"Reading {url}")
        self._process = -1
        self._files: Any = None

    @property
    def files(self) -> Any:
        """The file system of fsspec, made anew in a forked process: its thread does not survive a fork."""
        if self._process != os.getpid():
            import fsspec

            options: dict[str, Any] = {"use_listings_cache": False}  # a listing from before a write would be wrong
            if self.scheme == "s3":
                patience = {"connect_timeout": TIMEOUT, "read_timeout": TIMEOUT, "retries": {"max_attempts": 1}}
                options["config_kwargs"] = patience
            elif self.scheme in READ_ONLY:
                import aiohttp

                options["client_kwargs"] = {"timeout": aiohttp.ClientTimeout(sock_connect=TIMEOUT, sock_read=TIMEOUT)}
            self._files = fsspec.filesystem(self.scheme, **options)
            if self.scheme == "s3":
                self._files.retries = 1  # `attempt` counts, for all stores alike
            self._process = os.getpid()
        return self._files

    # --- reading ------------------------------------------------------------------------------------

    def read(self, url: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Return the bytes start..stop of a file; RemoteError where they do not come."""

        def fetch() -> bytes:
            data: bytes = self.files.cat_file(url, start=start, end=stop)
            if start is not None and stop is not None and len(data) != stop - start:
                if len(data) > stop - start:
                    raise RemoteError(f"{url} cannot be read in parts: its server sends it whole. Download it first.")
                raise TimeoutError(f"{len(data)} of {stop - start} bytes came")
            return data

        return attempt(fetch, url, RemoteError)

    def read_all(self, urls: Iterable[str], problem: Problem = UserError) -> dict[str, bytes]:
        """Return small files, asked for at once: it takes one round trip. Those that do not exist are left out."""
        wanted = list(urls)

        def fetch() -> dict[str, bytes]:
            # with an end, since a store is asked for the length of a file otherwise; `cat` would list folders, too
            answers = self.files.cat_ranges(wanted, [0] * len(wanted), [SMALL] * len(wanted), on_error="return")
            results: dict[str, bytes] = {}
            for url, answer in zip(wanted, answers, strict=True):
                if isinstance(answer, bytes):
                    results[url] = answer
                elif not isinstance(answer, FileNotFoundError):
                    raise answer
            return results

        return attempt(fetch, wanted[0], problem)

    def describe(self, url: str) -> RemoteInfo | None:
        """Return the size of a file; None where there is none, or a folder."""

        def fetch() -> RemoteInfo | None:
            try:
                info = self.files.info(url)
            except FileNotFoundError as error:
                cause = error.__cause__  # of a server of pages, whatever went wrong
                if self.scheme in READ_ONLY and isinstance(cause, Exception) and _http_status(cause) not in MISSING:
                    raise cause from None
                return None
            return _describe(url, info) if info.get("type") != "directory" else None

        return attempt(fetch, url, UserError)

    def list_files(self, url: str) -> list[RemoteInfo]:
        """List all files under a folder, at any depth, by name; none where there is no such folder."""

        def fetch() -> list[RemoteInfo]:
            try:
                infos = self.files.find(url, detail=True)
            except FileNotFoundError:
                return []
            return self._describe_all(infos)

        return attempt(fetch, url, UserError)

    def match(self, pattern: str) -> list[RemoteInfo]:
        """List the files that match a pattern, by name."""
        return attempt(lambda: self._describe_all(self.files.glob(pattern, detail=True)), pattern, UserError)

    def _describe_all(self, infos: Mapping[str, Mapping[str, Any]]) -> list[RemoteInfo]:
        descriptions = []
        for name, info in sorted(infos.items()):
            if info.get("type") != "directory":
                # a page of links says nothing of sizes
                whole = info if isinstance(info.get("size"), int) else self.files.info(name)
                descriptions.append(_describe(self.files.unstrip_protocol(name), whole))
        return descriptions

    # --- writing ------------------------------------------------------------------------------------

    def upload(self, path: Path, url: str) -> None:
        """Copy a local file to a URL; it is there in full or not at all."""
        attempt(lambda: self.files.put_file(str(path), url), url, RemoteError, "written")

    def write(self, url: str, content: bytes) -> None:
        attempt(lambda: self.files.pipe_file(url, content), url, RemoteError, "written")

    def remove(self, urls: Iterable[str]) -> None:
        """Remove files; those that do not exist are fine."""

        def send(url: str) -> None:
            try:
                self.files.rm_file(url)
            except FileNotFoundError:
                return

        for url in urls:
            attempt(lambda url=url: send(url), url, RemoteError, "removed")  # type: ignore[misc]


def refuse_read_only(url: str) -> None:
    """Raise UserError where nothing can be written under a scheme."""
    if check_scheme(url) in READ_ONLY:
        raise UserError(f"Nothing can be written to {url}. Name a folder of this machine, or s3://BUCKET/FOLDER.")


def attempt(action: Callable[[], T], url: str, problem: Problem, verb: str = "read") -> T:
    """Do something with a URL, again and again while the failure looks as if it passes.

    `problem` is UserError before anything has begun, so that the URL itself is the mistake.
    """
    start, pause = time.monotonic(), FIRST_PAUSE
    for number in range(1, ATTEMPTS + 1):
        try:
            return action()
        except (UserError, WriteError):
            raise
        except Exception as error:  # the libraries of the stores raise everything there is
            reason = _explain_permanent(error, url, verb)
            if reason is not None:
                raise problem(reason) from error
            if number == ATTEMPTS:
                raise problem(
                    f"{url} cannot be {verb}: {_first_line(error)} ({ATTEMPTS} attempts in "
                    f"{time.monotonic() - start:.0f} s). Check the network; then the same command goes on."
                ) from error
            time.sleep(pause * (0.75 + random.random() / 2))  # several processes must not ask at the same moments
            pause *= 2
    raise AssertionError("the last attempt returns or raises")


def _explain_permanent(error: Exception, url: str, verb: str) -> str | None:
    """Return the message of a failure that stays, or None of one that may pass."""
    kind, status = type(error).__name__, _http_status(error)
    if isinstance(error, FileNotFoundError) or status in MISSING:
        return f"{url}: there is no such file, folder or bucket."
    if (
        isinstance(error, PermissionError)
        or kind in ("NoCredentialsError", "PartialCredentialsError")
        or status
        in (
            401,
            403,
        )
    ):
        return (
            f"{url} may not be {verb}: {_first_line(error)}. Set the credentials of the store in the environment "
            "(of S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for public files)."
        )
    if isinstance(error, (ValueError, TypeError, NotImplementedError, ImportError)) or status in (400, 405, 416):
        return f"{url} cannot be {verb}: {_first_line(error)}."
    return None


def _http_status(error: Exception) -> int | None:
    """The status of an answer that aiohttp or requests turned into an exception; None of any other."""
    if type(error).__name__ not in ("ClientResponseError", "HTTPError", "HfHubHTTPError", "HttpError"):
        return None
    values = vars(error)
    status = values.get("status", values.get("code", getattr(values.get("response"), "status_code", None)))
    return int(status) if isinstance(status, int) else None


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _describe(url: str, info: Mapping[str, Any]) -> RemoteInfo:
    if not isinstance(info.get("size"), int):
        raise ValueError("the server does not say how long it is; download it first")
    version = next((info[name] for name in ("ETag", "etag", "LastModified", "mtime", "updated") if info.get(name)), "")
    return RemoteInfo(url, info["size"], str(version))
