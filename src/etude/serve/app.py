"""The routes: typed requests in, JSON or server-sent events out; pages and their files.

GET  /              the page: try the runs
GET  /board         the board of a folder of runs and studies
GET  /api, /docs    the documentation of the API, from /openapi.json
GET  /about         the runs, and what each can do
GET  /health        200 while it answers, 503 while it shuts down
GET  /metrics       for Prometheus
POST /fill ...      the endpoints of the runs (endpoints.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import create_model
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp

from etude.errors import UserError
from etude.serve.board import Board
from etude.serve.board_routes import add_board
from etude.serve.dispatch import Dispatch, explain, json_response
from etude.serve.endpoints import KINDS, Kind
from etude.serve.engine import Engine
from etude.serve.faults import explain_faults
from etude.serve.guard import Guard
from etude.serve.limits import Limits
from etude.serve.metrics import Metrics
from etude.serve.problems import MEDIA_TYPE, Problem, ProblemBody, encode_json
from etude.serve.requests import About, Request
from etude.serve.served_model import ServedModel

STATIC = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Service:
    """Loaded runs with the engine that answers for them."""

    models: dict[str, ServedModel]
    engine: Engine
    metrics: Metrics
    limits: Limits
    needs_token: bool = False
    board: Board | None = None

    @classmethod
    def create(
        cls,
        models: Sequence[ServedModel],
        limits: Limits,
        needs_token: bool = False,
        board: str | Path | None = None,
    ) -> Service:
        """Check the names of the runs and create their engine."""
        named = {served.name: served for served in models}
        if len(named) < len(models):
            raise UserError("Two of the runs have the same name: rename one folder, requests tell runs apart by name.")
        metrics = Metrics()
        engine = Engine(models, limits, metrics.count_batch)
        metrics.watch(
            lambda: engine.pending, lambda: sum(generator.new_tokens for generator in engine.generators.values())
        )
        folders = {served.folder: served.name for served in models if served.folder is not None}
        overview = None if board is None else Board(board, folders)
        return cls(named, engine, metrics, limits, needs_token, overview)

    @property
    def kinds(self) -> list[Kind]:
        """The endpoints that one of the runs has."""
        return [kind for kind in KINDS.values() if self.find_models(kind.name)]

    def find_models(self, kind: str) -> list[str]:
        """The runs that have an endpoint."""
        return [name for name, served in self.models.items() if kind in served.abilities]

    def choose_model(self, kind: str, name: str | None) -> ServedModel:
        """The run that answers a request; raises Problem where that is none, or not clear."""
        able = self.find_models(kind)
        if name is None:
            if len(able) == 1:
                return self.models[able[0]]
            raise Problem(422, f"Several runs have /{kind}: name one in the field 'run': {', '.join(able)}.")
        if name not in self.models:
            raise Problem(404, f"There is no run '{name}'. There are: {', '.join(self.models)}.")
        if name not in able:
            raise Problem(404, f"The run '{name}' has no /{kind}. Those that have: {', '.join(able)}.")
        return self.models[name]

    def describe(self) -> About:
        """What GET /about answers."""
        runs = [served.describe() for served in self.models.values()]
        return About(runs=runs, board=self.board is not None, token=self.needs_token)


def create_app(service: Service, hosts: frozenset[str] | None, token: str | None) -> ASGIApp:
    """The whole application, behind its guard."""

    @asynccontextmanager
    async def run_engine(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.engine.stop)

    app = FastAPI(
        title="Etude",
        description="Runs of Etude behind HTTP. Inputs are called `input` everywhere: a string, or a list.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=run_engine,
    )
    _add_error_handlers(app, service)
    _add_pages(app, service.board is not None)
    if service.board is not None:
        add_board(app, service.board, service.needs_token)
    _add_state(app, service)
    kinds = {f"/{kind.name}": kind for kind in service.kinds}
    dispatch = Dispatch(app, kinds, service.choose_model, service.engine, service.metrics)
    for kind in service.kinds:
        _describe_endpoint(app, dispatch, service, kind)
    return Guard(dispatch, service.engine, service.metrics, service.limits, hosts, token)


# --- endpoints --------------------------------------------------------------------------------------


def _describe_endpoint(app: FastAPI, dispatch: Dispatch, service: Service, kind: Kind) -> None:
    """Put an endpoint into the description of the API; requests come by `Dispatch`, which does the same, sooner."""

    async def handle(body: Request, http: HttpRequest) -> Response:
        return await dispatch.answer(kind, body, http.receive)

    # FastAPI reads the types of a request from here
    handle.__annotations__ = {"body": kind.request, "http": HttpRequest, "return": Response}
    answer = create_model(f"{kind.name.capitalize()}Answer", run=(str, ...), results=(list[kind.result], ...))  # type: ignore[name-defined]
    responses: dict[int | str, dict[str, Any]] = {
        200: {"model": answer, "description": "One result an input, in order"},
        **{
            status: {"content": {MEDIA_TYPE: {"schema": ProblemBody.model_json_schema()}}, "description": description}
            for status, description in (
                (400, "The body is not JSON"),
                (413, "More bytes or tokens than are taken"),
                (415, "The body is not sent as application/json"),
                (422, "A field is missing, unknown or wrong, or the model cannot answer this input"),
                (429, "Too many requests are waiting"),
                (503, "No answer in time, or the server is shutting down"),
            )
        },
    }
    if kind.name == "generate":
        responses[200]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    app.add_api_route(
        f"/{kind.name}",
        handle,
        methods=["POST"],
        summary=kind.summary,
        description=f"Answered by: {', '.join(service.find_models(kind.name))}.",
        operation_id=kind.name,
        responses=responses,
        response_model=None,
    )


# --- what the server says of itself -----------------------------------------------------------------


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/about", summary="The runs, and what each can do")
    async def about() -> About:
        return service.describe()

    @app.get("/health", summary="Whether requests are answered")
    async def health() -> Response:
        draining = service.engine.draining
        return json_response(
            encode_json({"status": "stopping" if draining else "ok", "pending": service.engine.pending}),
            503 if draining else 200,
        )

    @app.get("/metrics", summary="Numbers for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_pages(app: FastAPI, has_board: bool) -> None:
    folder = files("etude.serve").joinpath("page")
    contents = {
        entry.name: (entry.read_bytes(), STATIC[entry.name[entry.name.rindex(".") :]])
        for entry in folder.iterdir()
        if entry.is_file() and entry.name[entry.name.rfind(".") :] in STATIC
    }

    def add(path: str, name: str) -> None:
        async def send() -> Response:
            content, kind = contents[name]
            return Response(content, media_type=f"{kind}; charset=utf-8")

        app.add_api_route(path, send, include_in_schema=False)

    pages = {
        "/": "index.html",
        "/api": "api.html",
        "/docs": "api.html",
        **({"/board": "board.html"} if has_board else {}),
    }
    for path, name in pages.items():
        add(path, name)
    for name in contents:
        add(f"/static/{name}", name)


# --- errors -----------------------------------------------------------------------------------------


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    fields = {f"/{kind.name}": list(kind.request.model_fields) for kind in KINDS.values()}

    async def refuse_body(http: HttpRequest, error: Exception) -> Response:
        faults = cast(RequestValidationError, error).errors()
        problem = explain_faults(faults, fields.get(http.url.path, []))
        service.metrics.count_refusal(problem.status)
        return problem.response()

    async def refuse(http: HttpRequest, error: Exception) -> Response:
        fault = cast(HTTPException, error)
        headers = dict(fault.headers or {})
        if fault.status_code == 404:
            known = ", ".join(["GET /about", *(f"POST /{kind.name}" for kind in service.kinds)])
            problem = Problem(404, f"There is no {http.url.path}. There are: {known}.", headers)
        elif fault.status_code == 405:
            problem = Problem(405, f"{http.url.path} is asked by {headers.get('Allow', 'another method')}.", headers)
        elif fault.status_code == 400:
            problem = Problem(400, "The body is not JSON.", headers)
        else:
            problem = Problem(fault.status_code, str(fault.detail), headers)
        service.metrics.count_refusal(problem.status)
        return problem.response()

    async def refuse_user_error(http: HttpRequest, error: Exception) -> Response:
        return explain(error)

    app.add_exception_handler(UserError, refuse_user_error)
    app.add_exception_handler(RequestValidationError, refuse_body)
    app.add_exception_handler(HTTPException, refuse)
