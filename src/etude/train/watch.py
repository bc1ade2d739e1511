"""What a run of several processes does when one of them is lost: it ends, and one message says which.

Every process tells torch's store, a key-value server beside the run (TCPStore), that it is alive and what it does. The
first one reads all of these, the others read the first one's: so a process that was killed or stopped, or a machine or
a network that stalls, is known after SILENCE seconds, whatever the others wait for. The first to know writes a verdict
to the store; all read it and end. `torchrun --max-restarts` starts them again. Machines that reach the store but not
each other are known as soon (train/reach.py).

Nothing here looks at what is trained: a slow step, a long compilation or a large checkpoint is no fault, since the
thread that tells the store goes on meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # what torch.distributed offers, under a name that has a type

from etude.errors import UserError
from etude.train import reach
from etude.train.reach import Reach

INTERVAL = 1.0  # seconds between two words to the store
SILENCE = 20.0  # seconds without a word after which a process is lost; torchrun then takes up to 30 to end the others
SLOW = 30.0  # seconds that a loader may take before it is reported
EXIT_SECONDS = 5.0  # that the process with the message has to print it
ADVICE = (
    "Every checkpoint is whole: start it again with 'etude pretrain --resume', or let 'torchrun --max-restarts' do so."
)


class LostProcessError(UserError):
    """Another process of a run is lost."""


@dataclass(frozen=True)
class Beat:
    """A word of one process: where it runs, what it does, and since when (seconds)."""

    number: int
    host: str
    process: int
    activity: str
    seconds: float

    def describe(self, rank: int) -> str:
        return f"Rank {rank} (process {self.process} on {self.host})"


class Watch:
    """The watch of one process over the others; a thread of its own."""

    def __init__(self, rank: int, local_rank: int, size: int, local_size: int, token: int) -> None:
        """`token` is the same in all processes of one start, and in no other start."""
        self.rank, self.size = rank, size
        self.local = range(rank - local_rank, rank - local_rank + local_size)  # ranks of this machine
        self.prefix = f"etude/{token}"
        self.store = self._open_store()
        self.activity, self.since, self.number = "starts", time.monotonic(), 0
        self.heard: dict[int, tuple[int, float]] = {}  # the number of each process's last word, and when it was new
        self.neighbours: dict[int, Beat] = {}  # the last words of the processes of this machine
        self.answered = time.monotonic()  # when the store did
        self.is_speaking = False  # whether this process is about to say why it ends
        self.reported: set[tuple[int, str]] = set()  # slow loaders
        self.ended = threading.Event()
        # a call to the store of a process that was stopped never returns: another thread looks how long one takes
        self.threads = [
            threading.Thread(target=function, daemon=True, name="etude-watch")
            for function in (self._watch_processes, self._watch_store)
        ]
        # where there are several machines, their first processes try to reach each other
        self.reach = Reach(os.environ["MASTER_ADDR"]) if local_rank == 0 and local_size < size else None
        if self.reach is not None:
            self.threads.append(threading.Thread(target=self._watch_machines, daemon=True, name="etude-watch"))
        self.store.set(self._key(f"address/{rank}"), self.reach.address if self.reach is not None else "")
        self._tell()
        if rank == 0:
            self.store.set(self._key("verdict"), "")

    def start(self) -> None:
        """Begin to watch; all processes have told the store by now."""
        self.neighbours = self._read(self.local)
        if self.reach is not None:
            others = [rank for rank in range(self.size) if rank not in self.local]
            addresses = self.store.multi_get([self._key(f"address/{rank}") for rank in others])
            self.reach.set_peers({rank: place.decode() for rank, place in zip(others, addresses, strict=True)})
        self.answered = time.monotonic()
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """End without a word: this process has done its work."""
        self.ended.set()
        for thread in self.threads:
            if thread.is_alive():
                thread.join(2 * INTERVAL)
        if self.reach is not None:
            self.reach.close()

    def set_activity(self, activity: str) -> None:
        """Note what this process does now."""
        self.activity, self.since = activity, time.monotonic()

    # --- the threads ---------------------------------------------------------------------------------

    def _watch_processes(self) -> None:
        """Tell the store that this process lives, and read what others told; end with a verdict."""
        while not self.ended.wait(INTERVAL):
            try:
                self._tell()
                beats = self._read(range(self.size) if self.rank == 0 else range(1))
                self.neighbours = self._read(self.local)
                verdict = self.store.get(self._key("verdict")).decode()
            except (RuntimeError, OSError):  # torch's DistError is a RuntimeError
                continue
            self.answered = time.monotonic()
            if verdict and not self.is_speaking and not self.ended.is_set():
                code, _, message = verdict.partition("|")
                self._end(int(code), message, speaks=False)  # its author does
            self._judge(beats)

    def _watch_store(self) -> None:
        """End where the store has not answered for too long."""
        while not self.ended.wait(INTERVAL):
            if time.monotonic() - self.answered > SILENCE + INTERVAL:
                self._end(1, self._describe_lost_store(), self._speaks_for_machine())

    def _watch_machines(self) -> None:
        """End the run where another machine does not answer this one for too long, although it tells the store."""
        assert self.reach is not None
        while not self.ended.wait(min(SILENCE / 4, reach.PROBE_INTERVAL)):
            for rank, seconds in self.reach.probe().items():
                if seconds > SILENCE and not self.ended.is_set() and self._is_telling(rank):
                    with suppress(RuntimeError, OSError):
                        beats = self._read(range(self.rank, self.rank + 1)) | self._read(range(rank, rank + 1))
                        first, second = sorted(beats)
                        message = (
                            f"{beats[first].describe(first)} and {beats[second].describe(second)} have not reached "
                            f"each other for {seconds:.0f} s, although both reach the store: the network between their "
                            f"machines is cut. The run ends. {ADVICE}"
                        )
                        self._end(1, message, self._write_verdict(1, message))

    def _is_telling(self, rank: int) -> bool:
        """Whether a process tells the store that it lives; one that does not is judged by its silence."""
        with suppress(RuntimeError, OSError):
            numbers = []
            for _ in range(2):
                numbers.append(self._read(range(rank, rank + 1))[rank].number)
                self.ended.wait(2 * INTERVAL)
            return numbers[0] != numbers[1]
        return False

    def _judge(self, beats: dict[int, Beat]) -> None:
        """Report slow loaders; end the run where a process is silent."""
        now = time.monotonic()
        for rank, beat in beats.items():
            number, since = self.heard.get(rank, (-1, now))
            if beat.number != number:
                self.heard[rank] = (beat.number, now)
            elif now - since > SILENCE and not self.ended.is_set():
                message = (
                    f"{beat.describe(rank)} has been silent for {SILENCE:.0f} s: it was killed or stopped, or its "
                    f"machine or network stalls. Its last activity: {beat.activity}. The run ends. {ADVICE}"
                )
                self._end(1, message, self._write_verdict(1, message))
            loads = beat.activity.startswith("loads") and beat.seconds > SLOW
            if self.rank == 0 and loads and (rank, beat.activity) not in self.reported:
                self.reported.add((rank, beat.activity))
                print(
                    f"{beat.describe(rank)} {beat.activity} for {beat.seconds:.0f} s, and all others wait for it. "
                    "Look at the disk or network that it reads from, or set train.workers higher.",
                    file=sys.stderr, flush=True,
                )  # fmt: skip

    def _end(self, code: int, message: str, speaks: bool) -> None:
        """End this process, wherever its main thread waits."""
        if speaks:
            print(f"Error: {message}", file=sys.stderr, flush=True)
        os._exit(code)

    # --- the store ----------------------------------------------------------------------------------

    def _open_store(self) -> TCPStore:
        """Connect to the store that torchrun describes: a connection of its own, since calls block each other."""
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=SILENCE))

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def _tell(self) -> None:
        self.number += 1
        seconds = time.monotonic() - self.since
        word = [self.number, socket.gethostname(), os.getpid(), self.activity, round(seconds, 1)]
        self.store.set(self._key(str(self.rank)), json.dumps(word))

    def _read(self, ranks: range) -> dict[int, Beat]:
        words = self.store.multi_get([self._key(str(rank)) for rank in ranks])
        return {rank: Beat(*json.loads(word)) for rank, word in zip(ranks, words, strict=True)}

    def _write_verdict(self, code: int, message: str) -> bool:
        """Return whether this process is the first with a verdict; then it is the one to print it."""
        verdict = f"{code}|rank {self.rank}: {message}"
        with suppress(RuntimeError, OSError):
            return bool(self.store.compare_set(self._key("verdict"), "", verdict).decode() == verdict)
        return self._speaks_for_machine()

    def _speaks_for_machine(self) -> bool:
        """Whether this is the first process of its machine but the first of all, which may be the lost one."""
        return self.rank == next((rank for rank in self.local if rank != 0), 0)

    def _describe_lost_store(self) -> str:
        return (
            f"The store of this run ({os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}) has not answered for "
            f"{SILENCE:.0f} s: rank 0 or its machine was killed or stopped, or the network stalls. The run ends. "
            f"{ADVICE}"
        )

    # --- errors of the main thread ------------------------------------------------------------------

    def explain(self, error: BaseException) -> BaseException:
        """Return what this process raises in the place of an error: one process of the run says what it was."""
        if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit)):
            return error
        is_lost = is_connection_error(error)
        # torchrun sends SIGTERM to the others as soon as one has died: not before they know which
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN) if is_main else None
        try:
            message = self._find_dead() if is_lost else f"Rank {self.rank}: {error}"
        finally:
            if is_main:
                signal.signal(signal.SIGTERM, before)
        if is_lost and message is None:
            self.ended.wait(SILENCE + 3 * INTERVAL)  # meanwhile the thread hears a verdict, and ends this process
            message = f"Rank {self.rank} lost its connection to another process: {error}. The run ends. {ADVICE}"
        assert message is not None
        code = 2 if isinstance(error, UserError) else 1
        self.is_speaking = True  # the thread must not end this process by its own verdict
        speaks = self._write_verdict(code, message)
        # Python's own end waits for threads, and these for collectives that never end
        timer = threading.Timer(EXIT_SECONDS if speaks else 0.0, os._exit, [code])
        timer.daemon = True
        timer.start()
        if not speaks:
            timer.join(1.0)
            return SystemExit(code)
        if is_lost:
            return LostProcessError(message)
        if isinstance(error, UserError):
            error.args = (message,)
        else:
            error.add_note(f"This was rank {self.rank}; the run ends. {ADVICE}")
        return error

    def _find_dead(self, seconds: float = 2.0) -> str | None:
        """Look for a dead process on this machine; None where all live, or none is known."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for rank, beat in self.neighbours.items():
                if rank != self.rank and not is_alive(beat.process):
                    return (
                        f"{beat.describe(rank)} ended without a word: it was killed, most often because memory "
                        f"ran out. Its last activity: {beat.activity}. The run ends. {ADVICE}"
                    )
            time.sleep(0.02)
        return None


def is_connection_error(error: BaseException) -> bool:
    """Whether a collective failed because another process is gone."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def is_alive(process: int) -> bool:
    """Whether a process of this machine runs or is stopped; one that ended and was not waited for does not."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
