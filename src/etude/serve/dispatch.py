"""The short way of a request to an endpoint: from the bytes of its body to a typed request, the engine, and back.

FastAPI describes the endpoints (/openapi.json) and answers everything else. Its own way to a handler, by middleware,
matching of routes and dependencies, takes longer than a request's share of a batched forward pass of a small model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.responses import Response, StreamingResponse

from etude.errors import UserError
from etude.serve.endpoints import Kind
from etude.serve.engine import Engine
from etude.serve.faults import explain_faults
from etude.serve.metrics import Metrics
from etude.serve.problems import Problem, encode_json, hide_folder
from etude.serve.requests import GenerateRequest, Request
from etude.serve.served_model import ServedModel

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ChooseModel = Callable[[str, str | None], ServedModel]  # (endpoint, name of a run)

log = logging.getLogger("etude")


class Dispatch:
    """Answers POST requests to the endpoints; hands all others on."""

    def __init__(
        self, app: ASGIApp, kinds: Mapping[str, Kind], choose_model: ChooseModel, engine: Engine, metrics: Metrics
    ) -> None:
        """`kinds` are the endpoints by path; `choose_model` finds the run that answers, or raises Problem."""
        self.app, self.kinds, self.choose_model = app, kinds, choose_model
        self.engine, self.metrics = engine, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = self.kinds.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if kind is None:
            await self.app(scope, receive, send)
            return
        body = (await receive())["body"]  # whole: the guard has read it
        try:
            request = kind.request.model_validate_json(body)
        except ValidationError as error:
            problem = explain_faults(error.errors(include_url=False), list(kind.request.model_fields))
            self.metrics.count_refusal(problem.status)
            await problem.response()(scope, receive, send)
            return
        response = await self.answer(kind, request, receive)
        await response(scope, receive, send)

    async def answer(self, kind: Kind, request: Request, receive: Receive) -> Response:
        """The response to a request; it is counted, and cancelled when the client leaves."""
        start = time.perf_counter()
        served: ServedModel | None = None
        status = 200
        try:
            served = self.choose_model(kind.name, request.run)
            if isinstance(request, GenerateRequest) and request.stream:
                return StreamingResponse(self._stream(served, request), media_type="text/event-stream")
            return json_response(await self._unless_client_leaves(receive, served, kind, request))
        except Exception as error:
            response = explain(error, served)
            status = response.status_code
            return response
        finally:
            name = "" if served is None else served.name
            self.metrics.count_request(kind.name, name, status, time.perf_counter() - start)

    async def _unless_client_leaves(self, receive: Receive, served: ServedModel, kind: Kind, request: Request) -> bytes:
        """The body of an answer; raises 499 as soon as the client closes the connection."""
        task = asyncio.current_task()
        assert task is not None
        departure = asyncio.ensure_future(_wait_for_disconnect(receive))
        departure.add_done_callback(lambda future: None if future.cancelled() else task.cancel())
        try:
            if isinstance(request, GenerateRequest):
                texts = await self.engine.generate_all(served, request)
                results = [{"text": text.text, "ended": text.ended} for text in texts]
                return encode_json({"run": served.name, "results": results})
            return await self.engine.answer(served, kind.name, served.endpoints[kind.name], request)
        except asyncio.CancelledError:
            if departure.done() and not departure.cancelled():
                task.uncancel()
                raise Problem(499, "The client has gone.") from None
            raise
        finally:
            departure.cancel()

    async def _stream(self, served: ServedModel, request: GenerateRequest) -> AsyncIterator[bytes]:
        """Server-sent events: `piece` (number, text), `end` (number, text, ended) for each text, and `error`."""
        try:
            async for piece in self.engine.generate(served, request):
                if piece.text:
                    yield _event("piece", {"number": piece.number, "text": piece.text})
                if piece.continuation is not None:
                    whole = piece.continuation
                    yield _event("end", {"number": piece.number, "text": whole.text, "ended": whole.ended})
        except Exception as error:
            yield _event("error", as_problem(error, served).json())


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, values: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode_json(values) + b"\n\n"


def json_response(body: bytes, status: int = 200) -> Response:
    """A response of JSON that is encoded already."""
    return Response(body, status, media_type="application/json")


def as_problem(error: Exception, served: ServedModel | None = None) -> Problem:
    """What an exception of a run is to a client; one that is ours is logged."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, UserError):
        folder = None if served is None else served.folder
        return Problem(422, error.message if folder is None else hide_folder(error.message, folder))
    log.error("a request failed", exc_info=error)
    return Problem(500, "The server failed; see its log.")


def explain(error: Exception, served: ServedModel | None = None) -> Response:
    """The response to a request that raised an exception, where known in a run."""
    problem = as_problem(error, served)
    if problem.status == 499:  # nobody reads it; HTTP has no such status
        return Response(status_code=408)
    return problem.response()
