"""The log of a run, metrics.jsonl: one JSON object a line, with `step tokens flops seconds loss` on every line.

The file is the record; TensorBoard is written beside it and can be rebuilt from it. A checkpoint stores the length of
the file; a resume truncates it to that length, so the log of a killed run equals that of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.errors import UserError, WriteError, explain_write_failure
from etude.extras import require

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Value = float | int | str | None  # of a line
REQUIRED = ("step", "tokens", "flops", "seconds", "loss")


class MetricsLog:
    """Appends lines; each is passed to the operating system at once, so a killed process loses none."""

    def __init__(self, path: Path | str, tensorboard: Path | str | None = None) -> None:
        if tensorboard is not None:
            require("tensorboard", "train.tensorboard=true")
        self.path = Path(path)
        with explain_write_failure(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab")  # noqa: SIM115 (held for the length of the run)
        self._folder = tensorboard
        self._writer: SummaryWriter | None = None

    def write(self, line: Mapping[str, Value]) -> None:
        """Append one line, to TensorBoard as well."""
        missing = [name for name in REQUIRED if name not in line]
        if missing:
            raise ValueError(f"a line of metrics lacks {', '.join(missing)}")
        # JSON has no NaN: what is not finite is written as null
        values = {name: _none_if_nonfinite(value) for name, value in line.items()}
        with explain_write_failure(self.path):
            self._file.write(json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            self._file.flush()
        if self._folder is not None:
            self._write_tensorboard(values)

    def _write_tensorboard(self, values: Mapping[str, Value]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # takes a second to import

            # after a resume, purge_step hides what an earlier process wrote beyond this step
            self._writer = SummaryWriter(str(self._folder), purge_step=values["step"])
        split = values.get("split", "train")
        for name, value in values.items():
            if name != "step" and isinstance(value, (int, float)):
                self._writer.add_scalar(f"{split}/{name}", value, values["step"])

    def position(self) -> int:
        """Flush to disk and return the length in bytes, for a checkpoint; WriteError where the file is gone.

        A run whose folder was removed would else train to its end and lose everything there.
        """
        with explain_write_failure(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
        status = os.fstat(self._file.fileno())
        if not self.path.exists() or not os.path.samestat(self.path.stat(), status):
            raise WriteError(
                f"{self.path} is not there any more: the folder of the run was removed, moved or replaced while it "
                "trained. Put it back and resume it, or start again."
            )
        return status.st_size

    def truncate(self, position: int) -> None:
        """Truncate the file to the length stored in a checkpoint, half-written line and all."""
        size = os.fstat(self._file.fileno()).st_size
        if size < position:
            raise UserError(
                f"{self.path} has {size} bytes, but had {position} when the checkpoint was saved: lines were removed. "
                "Restore the file, or start a new run from the weights of this one."
            )
        with open(self.path, "rb") as file:
            file.seek(max(0, position - 1))
            if position and file.read(1) != b"\n":
                raise UserError(
                    f"{self.path} has no line end at byte {position}, its length in the checkpoint: it was changed. "
                    "Restore it, or start a new run from the weights of this one."
                )
        self._file.truncate(position)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file and TensorBoard's."""
        try:
            with explain_write_failure(self.path):
                self._file.close()
        finally:
            if self._writer is not None:
                self._writer.close()


def _none_if_nonfinite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """Read all lines; a half-written last one, of a run that was killed or is being written, is left out."""
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file. A run writes metrics.jsonl into its folder.") from error
    values = []
    for number, line in enumerate(lines[:-1], start=1):  # behind the last line end is no whole line
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}). Remove the line.") from error
        if not isinstance(entry, dict):
            raise UserError(f"{path}, line {number}: not a JSON object. Remove the line.")
        values.append(entry)
    return values
