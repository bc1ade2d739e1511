"""A signal stops a run once; the second does what it did before, and so does everything afterwards."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from etude.train.signals import handle_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_stops_and_the_second_acts_as_usual(number: signal.Signals) -> None:
    stops: list[str] = []
    earlier: list[str] = []
    before = signal.signal(number, lambda *_: earlier.append("earlier"))
    try:
        with handle_signals(lambda: stops.append("stop")):
            os.kill(os.getpid(), number)
            assert (stops, earlier) == (["stop"], [])
            os.kill(os.getpid(), number)
            assert (stops, earlier) == (["stop"], ["earlier"])
        os.kill(os.getpid(), number)
        assert (stops, earlier) == (["stop"], ["earlier"] * 2)
    finally:
        signal.signal(number, before)


def test_another_thread_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    handlers = []

    def work() -> None:
        with handle_signals(lambda: None):
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]
