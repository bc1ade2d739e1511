"""Never silent for two seconds; silent altogether when asked."""

import io
import time

import pytest

from etude.train import progress as module
from etude.train.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_something_is_said_soon_after_the_start():
    assert module.FIRST_SECONDS <= 2, "never silent for two seconds"
    stream = io.StringIO()
    with Progress(100, stream=stream):
        assert wait_for(lambda: "\n" in stream.getvalue())
    assert stream.getvalue().startswith("step 0/100  first step…")


def test_a_terminal_is_redrawn_in_place():
    stream = Terminal()
    with Progress(100, stream=stream, clock=Clock()) as progress:
        assert wait_for(lambda: "first step" in stream.getvalue())
        progress.set_phase("compiling…")
        assert wait_for(lambda: "compiling…" in stream.getvalue())
        assert "\n" not in stream.getvalue() and stream.getvalue().count("\r") == 2
        progress.update(1, 10, 10)
    assert stream.getvalue().endswith("\n") and "step 1/100" in stream.getvalue().splitlines()[-1]


class ScriptedStop:
    """In place of the event that ends the thread: each wait does some work, and the fifth is the last."""

    def __init__(self, clock, work):
        self.clock, self.work, self.waits = clock, work, []

    def wait(self, seconds):
        self.waits.append(seconds)
        self.clock.now += seconds
        self.work(len(self.waits))
        return len(self.waits) > 4


def test_a_pipe_gets_few_plain_lines():
    """One soon, and then one every ten seconds, however many steps are done in between."""
    stream, clock = io.StringIO(), Clock()
    progress = Progress(10**6, quiet=True, stream=stream, clock=clock)  # its thread is this one

    def work(wait):
        for step in range(50 * wait, 50 * wait + 50):
            progress.update(step, step, step)

    progress._stop = stop = ScriptedStop(clock, work)
    progress._draw_repeatedly()
    lines = stream.getvalue().splitlines()
    assert [line.split("/")[0] for line in lines] == ["step 99", "step 149", "step 199", "step 249"]
    assert stop.waits == [module.FIRST_SECONDS] + 4 * [module.PLAIN_SECONDS] and module.PLAIN_SECONDS >= 5
    assert "\r" not in stream.getvalue() and "\x1b" not in stream.getvalue()


def test_a_line_that_says_the_same_is_not_drawn_again():
    stream, clock = Terminal(), Clock()
    progress = Progress(10, quiet=True, stream=stream, clock=clock)
    progress._stop = stop = ScriptedStop(clock, lambda wait: progress.update(1 if wait < 4 else 2, 0, 0))
    progress._marks.append((1e9, 0, 0, 0))  # no speed in the line, which changes with time
    progress._draw_repeatedly()
    assert stream.getvalue().count("step 1/10") == stream.getvalue().count("step 2/10") == 1
    assert stop.waits == [module.FIRST_SECONDS] + 4 * [module.TERMINAL_SECONDS]


def test_quiet_means_no_output_and_no_thread():
    stream = io.StringIO()
    progress = Progress(10, quiet=True, stream=stream)
    progress.update(1, 10, 10, 0.1)
    progress.show_metrics("valid", {"loss": 1.0})
    progress.print("hello")
    progress.close()
    assert stream.getvalue() == "" and progress._thread is None


def test_the_numbers_of_the_line():
    clock = Clock()
    progress = Progress(1000, quiet=True, peak=1e12, memory=lambda: 1_400_000_000, clock=clock)
    clock.now += 60  # a first step that compiles for a minute is no part of the speed
    progress.update(1, 1_000, 10**9)
    for step in range(2, 12):
        clock.now += 0.5
        progress.update(step, 1_000 * step, 10**11 * (step - 1) + 10**9)
    progress.show_metrics("train", {"loss": 6.31234})
    line = progress.format_line()
    # 10 steps of 1,000 tokens and 1e11 FLOPs in 5 seconds; 989 more at 0.5 s
    assert line == "step 11/1000  loss 6.312  2k tokens/s  20 % of peak  left 8m14s  memory 1.4 GB"


def test_a_share_far_above_the_peak_is_left_out():
    """The peak was measured while others used the machine: 960 % of it says nothing."""
    clock = Clock()
    progress = Progress(1000, quiet=True, peak=1e10, clock=clock)
    for step in range(1, 12):
        clock.now += 1
        progress.update(step, 1_000 * step, 96 * 10**9 * step)
    assert progress.format_line() == "step 11/1000  1k tokens/s  left 16m29s"
    progress.peak = 1e11
    assert "96 % of peak" in progress.format_line()


def test_time_left_follows_tokens_where_batches_grow():
    clock = Clock()
    progress = Progress(10, quiet=True, total_tokens=100_000, clock=clock)
    for step in (1, 2, 3):
        clock.now += 1
        progress.update(step, 1_000 * step, 0)
    assert "left 1m37s" in progress.format_line()  # 97,000 tokens at 1,000 a second, although only 7 steps are left


def test_speed_is_that_of_the_last_half_minute():
    clock = Clock()
    progress = Progress(10**6, quiet=True, clock=clock)
    for step in range(1, 200):
        clock.now += 0.1 if step < 100 else 1.0
        progress.update(step, 100 * step, 0)
    assert "  100 tokens/s" in progress.format_line()


def test_an_evaluation_is_no_part_of_the_speed():
    clock = Clock()
    progress = Progress(100, quiet=True, clock=clock)
    for step in range(1, 4):
        clock.now += 1
        progress.update(step, 500 * step, 0)
    progress.set_phase("evaluating…")
    clock.now += 25
    assert progress.format_line().startswith("step 3/100  evaluating… 25s  500 tokens/s")
    progress.set_phase(None)
    clock.now += 1
    progress.update(4, 2_000, 0)
    assert progress.format_line().startswith("step 4/100  500 tokens/s")


def test_a_resumed_run_starts_where_it_was():
    progress = Progress(100, quiet=True)
    progress.set_phase("first step…", step=40)
    assert progress.format_line().startswith("step 40/100  first step…")


def test_a_held_out_loss_stays_on_the_screen():
    stream = Terminal()
    with Progress(100, stream=stream) as progress:
        progress.update(40, 10, 10)
        progress.show_metrics("valid", {"loss": 3.25, "bits_per_byte": 1.5})
        assert "step 40: valid loss 3.25  bits_per_byte 1.5\n" in stream.getvalue()
    progress.close()  # a second time: nothing happens


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59, "59s"), (61, "1m01s"), (3660, "1h01m"), (90_000, "1d01h")]
)
def test_durations(seconds, text):
    assert module._format_duration(seconds) == text
