"""URLs of text and corpora: what has an explicit scheme is remote, everything else is a path of this machine.

No name is ever guessed to be remote: a mistyped path is a missing file, and a mistyped scheme is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from etude.errors import UserError, suggest_name

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "https": "aiohttp", "http": "aiohttp"}
READ_ONLY = ("https", "http")
LOCAL = "file"


def is_url(name: str | Path) -> bool:
    """Whether a name has a scheme in front (s3://); file:// is one, too."""
    return isinstance(name, str) and SCHEME.match(name) is not None


def check_scheme(url: str) -> str:
    """Return the scheme of a URL; UserError where it is none that is known."""
    match = SCHEME.match(url)
    assert match is not None, "is_url comes first"
    scheme = match[1].lower()
    if scheme != LOCAL and scheme not in PACKAGES:
        hint = suggest_name(scheme, PACKAGES)
        raise UserError(f"{url}: there is no scheme '{scheme}'.{hint}")
    if not url[match.end() :].strip("/"):
        raise UserError(f"{url} names no file or folder.")
    return scheme


def make_local(name: str | Path) -> str | Path:
    """Return the path of a file:// URL; any other name as it is."""
    if not isinstance(name, str) or not is_url(name) or check_scheme(name) != LOCAL:
        return name
    parts = urlsplit(name)
    if parts.netloc not in ("", "localhost"):
        raise UserError(f"{name} names the machine '{parts.netloc}'. Write file:///FOLDER, or the path itself.")
    return unquote(parts.path)


def join_url(url: str, *names: str) -> str:
    """Return the URL of something inside a folder."""
    return "/".join([url.rstrip("/"), *names])
