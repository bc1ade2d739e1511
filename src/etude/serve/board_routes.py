"""The routes of the board: its data, one run, and reports, which are shown in a sandbox of their own."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import FastAPI, Query
from fastapi.responses import Response
from pydantic import BaseModel

from etude.serve.board import Board
from etude.serve.board_entries import BoardData, RunDetails
from etude.serve.report_tickets import ReportTickets

# A report is a whole page with its own script: it may show itself, and reaches neither this server nor any other.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
Place = Annotated[str, Query(description="below the folder of the board", max_length=1000)]


class ReportLink(BaseModel):
    url: str


def add_board(app: FastAPI, board: Board, needs_token: bool) -> None:
    """Add the routes; they are plain functions, which FastAPI runs in threads: a folder may be slow."""
    tickets = ReportTickets()

    @app.get("/board/data", summary="All runs and studies of the folder")
    def data() -> BoardData:
        return board.data()

    @app.get("/board/run", summary="One run: its curve, settings and card")
    def run(path: Place) -> RunDetails:
        return board.details(path)

    @app.get("/board/link", summary="A link to a report that needs no token, for a minute")
    def link(path: Place) -> ReportLink:
        query = {"path": path, "ticket": tickets.make(path)}
        return ReportLink(url=f"/board/report?{urlencode(query)}")

    @app.get("/board/report", summary="The report of a study or a pick")
    def report(path: Place, ticket: str = "") -> Response:
        if needs_token:
            tickets.check(path, ticket)
        headers = {"Content-Security-Policy": REPORT_POLICY}
        return Response(board.report(path), headers=headers, media_type="text/html; charset=utf-8")
