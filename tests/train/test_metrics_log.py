"""The log of a killed and resumed run is that of an undisturbed one."""

import json
import math

import pytest

from etude.errors import UserError
from etude.train.metrics_log import MetricsLog, read_metrics


def line(step, **more):
    return {"step": step, "tokens": 100 * step, "flops": 10**18 * step, "seconds": 0.5 * step, "loss": 1 / step, **more}


def test_lines_are_there_as_soon_as_they_are_written(tmp_path):
    log = MetricsLog(tmp_path / "run" / "metrics.jsonl")
    log.write(line(1, split="train", rate=1e-4))
    assert read_metrics(log.path) == [line(1, split="train", rate=1e-4)]  # before any close
    assert log.path.read_bytes().endswith(b"}\n") and log.position() == log.path.stat().st_size
    log.close()


def test_what_every_line_must_have(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="lacks flops, seconds"):
        log.write({"step": 1, "tokens": 1, "loss": 2.0})
    assert read_metrics(log.path) == []


def test_not_finite_is_null_and_the_file_stays_json(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(line(1) | {"loss": math.nan, "norm": math.inf})
    written = json.loads(log.path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert written["loss"] is None and written["norm"] is None


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path):
    straight = MetricsLog(tmp_path / "straight.jsonl")
    for step in range(1, 7):
        straight.write(line(step))

    first = MetricsLog(tmp_path / "killed.jsonl")
    for step in range(1, 4):
        first.write(line(step))
    position = first.position()  # the checkpoint
    for step in range(4, 6):
        first.write(line(step) | {"loss": 7.0})
    first.close()
    with open(first.path, "ab") as file:
        file.write(b'{"step": 6, "tok')  # killed in the middle of a line
    assert len(read_metrics(first.path)) == 5

    second = MetricsLog(first.path)
    second.truncate(position)
    assert second.position() == position
    for step in range(4, 7):
        second.write(line(step))
    assert second.path.read_bytes() == straight.path.read_bytes()


def test_resume_without_a_checkpoint_empties_the_file(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(line(1))
    log.truncate(0)
    assert log.position() == 0
    log.write(line(1))
    assert len(read_metrics(log.path)) == 1


def test_a_file_that_was_changed_is_refused(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(line(1))
    position = log.position()
    with pytest.raises(UserError, match="lines were removed"):
        log.truncate(position + 10)
    with pytest.raises(UserError, match="no line end"):
        log.truncate(position - 3)
    assert log.position() == position  # and left as it was


def test_reading_names_the_line_at_fault(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnot json\n{"step": 3}\n')
    with pytest.raises(UserError, match="line 2: not JSON"):
        read_metrics(path)
    path.write_text('{"step": 1}\n[2]\n')
    with pytest.raises(UserError, match="line 2: not a JSON object"):
        read_metrics(path)
    with pytest.raises(UserError, match="no such file"):
        read_metrics(tmp_path / "absent.jsonl")


def test_tensorboard_shows_the_same_numbers(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "board")
    for step in (1, 2):
        log.write(line(step, split="train"))
    log.write(line(2, split="valid"))
    log.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 1.0), (2, 0.5)]
    assert [(e.step, e.value) for e in events.Scalars("valid/loss")] == [(2, 0.5)]
    assert not (tmp_path / "none").exists()


def test_no_tensorboard_unless_asked(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(line(1))
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
