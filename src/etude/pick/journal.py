"""Journal of a pick: its inputs, its decisions and the time it has taken, saved at every step.

Decisions that depend on the clock (how long a round is, who goes on) are written before they are acted on, so that a
pick that was killed decides the same again. A changed input begins a new list of decisions; results that do not depend
on it stay, because they are stored under a key of what they depend on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar, cast

from pydantic import Field
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError, WriteError
from etude.pick.clock import Clock
from etude.settings import check_values
from etude.train import checkpoint

FILE = "pick.json"
VERSION = 1
T = TypeVar("T")


class StoredJournal(TypedDict):
    """What `pick.json` holds."""

    version: int
    inputs: dict[str, str]
    spent: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    decisions: dict[str, Any]
    finished: NotRequired[bool]


class Journal:
    """`inputs` maps the name of each input to its fingerprint; `changed` names those that differ from last time."""

    def __init__(self, folder: Path, inputs: Mapping[str, str]) -> None:
        self.path = folder / FILE
        self.values: dict[str, Any] = {"version": VERSION, "inputs": dict(inputs), "spent": 0.0, "decisions": {}}
        self.changed: list[str] = []
        self.is_resumed = False
        self.is_written = False  # by this process
        if self.path.is_file():
            self._continue(self._read())
        self.clock: Clock | None = None

    def _read(self) -> dict[str, Any]:
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as error:
            raise UserError(f"{self.path} cannot be read ({error}). Remove it, or choose another folder.") from None
        if not isinstance(values, dict) or values.get("version") != VERSION:
            raise UserError(f"{self.path} is of another version of etude. Choose another folder with -o.")
        return dict(check_values(values, StoredJournal, str(self.path), "Remove it, or choose another folder."))

    def _continue(self, saved: dict[str, Any]) -> None:
        inputs = self.values["inputs"]
        names = [*saved["inputs"], *(name for name in inputs if name not in saved["inputs"])]
        self.changed = [name for name in names if saved["inputs"].get(name) != inputs.get(name)]
        if not self.changed:
            self.values, self.is_resumed = saved, True

    def start(self, total: float, elapsed: float = 0.0) -> Clock:
        """Start the clock where the journal stopped; `elapsed` seconds have gone into reading the inputs again."""
        self.clock = Clock(total, self.values["spent"] + elapsed)
        self.save()
        return self.clock

    def decide(self, name: str, compute: Callable[[], T]) -> T:
        """Return a decision (JSON-ready), made once and stored."""
        decisions = self.values["decisions"]
        if name not in decisions:
            decisions[name] = compute()
            self.save()
        return cast(T, decisions[name])

    def finish(self) -> None:
        """Mark the pick as done, without the time since the last result.

        Where somebody removes or moves `best`, the refit is done again, and has the time that it had: with none left it
        would be cut short.
        """
        self.values["finished"] = True
        self.clock = None
        self.save()

    def save(self) -> None:
        """Write the journal with the time spent so far."""
        if self.is_written and not self.path.exists():
            raise WriteError(f"{self.path} is not there any more: the folder was removed or moved during the pick.")
        if self.clock is not None:
            self.values["spent"] = max(self.values["spent"], round(self.clock.spent, 3))
        checkpoint.write_text(self.path, json.dumps(self.values, indent=1, ensure_ascii=False))
        self.is_written = True
