"""What the board shows, as typed data: runs, studies, one run with its curve."""

from __future__ import annotations

from pydantic import BaseModel, Field


class BoardRun(BaseModel):
    """A run on the board."""

    path: str = Field(description="below the folder of the board")
    name: str
    system: str = ""
    task: str = ""
    state: str = Field(description="running, finished, stopped or damaged")
    problem: str = ""
    study: str = Field(default="", description="of a cell: the study")
    served: str = Field(default="", description="the name under which this server answers for it")
    step: int = 0
    steps: int | None = None
    tokens: float = 0
    flops: float = 0
    seconds: float = 0
    loss: float | None = None
    valid: dict[str, float] = {}
    spark: list[float] = Field(default=[], description="the training loss, thinned")
    updated: float = Field(default=0, description="seconds since 1970")


class BoardRow(BaseModel):
    name: str | dict[str, str]
    mean: float | None
    low: float | None = None
    high: float | None = None


class BoardStudy(BaseModel):
    """A study, or a pick, on the board."""

    path: str
    name: str
    kind: str = Field(description="study or pick")
    title: str | dict[str, str]
    state: str
    problem: str = ""
    score: str = ""
    rows: list[BoardRow] = []
    verdicts: dict[str, int] = {}
    done: int = Field(default=0, description="cells with a result")
    report: bool = False
    date: str = ""
    updated: float = 0


class BoardData(BaseModel):
    folder: str
    runs: list[BoardRun]
    studies: list[BoardStudy]
    cut: bool = Field(description="there is more than is shown")


class RunDetails(BaseModel):
    """A run with its curve, its settings and its card."""

    run: BoardRun
    train: dict[str, list[float | None]]
    valid: dict[str, list[float | None]]
    settings: dict[str, str]
    card: str
