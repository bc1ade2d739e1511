"""Errors in the words of HTTP: a status, its phrase and one sentence, as application/problem+json (RFC 9457)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.responses import Response

from etude.errors import UserError

MEDIA_TYPE = "application/problem+json"
PHRASES = {413: "Content Too Large", 422: "Unprocessable Content"}  # RFC 9110; older Pythons have older phrases


class Problem(UserError):
    """A request that is answered by an error status."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})

    def __reduce__(self) -> tuple[type[Problem], tuple[int, str, dict[str, str]]]:
        return type(self), (self.status, self.detail, self.headers)  # passes raise them in processes of their own

    def json(self) -> dict[str, Any]:
        """The body of the response."""
        return {"type": "about:blank", "title": phrase(self.status), "status": self.status, "detail": self.detail}

    def response(self) -> Response:
        return Response(encode_json(self.json()), self.status, self.headers, MEDIA_TYPE)


def hide_folder(message: str, folder: Path) -> str:
    """A message in which paths begin below a folder: where that lies on this machine is none of a client's business."""
    return message.replace(f"{folder}{os.sep}", "").replace(str(folder), folder.name)


class ProblemBody(BaseModel):
    """An error (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


def phrase(status: int) -> str:
    """The phrase of a status: "Too Many Requests"."""
    return PHRASES.get(status) or HTTPStatus(status).phrase


def encode_json(value: object) -> bytes:
    """JSON as bytes; letters of all languages as they are. Raises ValueError for numbers that JSON has not."""
    body = to_json(value)  # compiled: vectors are long
    if b"NaN" not in body and b"Infinity" not in body:
        return body
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def too_busy() -> Problem:
    return Problem(429, "Too many requests are waiting: ask again in a second.", {"Retry-After": "1"})


def shutting_down() -> Problem:
    return Problem(503, "The server is shutting down.", {"Connection": "close"})


def overdue(seconds: float) -> Problem:
    return Problem(
        503, f"There was no answer within {seconds:g} seconds: ask for less, or later.", {"Retry-After": "5"}
    )
