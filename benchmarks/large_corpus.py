"""A corpus larger than this disk would hold as text: speed and memory of `etude prepare` over a stream.

    python benchmarks/large_corpus.py --gb 1
    python benchmarks/large_corpus.py --gb 100 --out s3://lab/corpora/world      # the text alone would be 100 GB
    python benchmarks/large_corpus.py --gb 10 --every 60 --workers 8

A server of this machine writes the text while it is asked for, as files of 64 MB behind http://: stories of the
built-in world (--base megabytes of them), in a new order in each file, each with a first line of its own, so no two
documents are equal. Nothing of it is ever on a disk. Printed over time: the phase, MB of text a second, and the
resident memory of the preparing process and its workers (not of the server). At the end: the speed of each phase over
its first GB and its last, by the clock and for each CPU second of the preparing process and its workers (cores are
shared with the server, and often with others), the peak of the memory in both, and how long it takes to open the
corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import numpy as np

FILE_BYTES = 64_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--out", help="a folder or a URL; a temporary folder unless given")
    parser.add_argument("--base", type=float, default=16.0, help="megabytes of stories that the world writes")
    parser.add_argument("--tokenizer", default="bytebpe:16000")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between lines")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.base, count_files(arguments.gb))
        return
    command = [sys.executable, __file__, "--serve", "--base", str(arguments.base), "--gb", str(arguments.gb)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    folder = Path(tempfile.mkdtemp(prefix="etude-large-corpus-"))
    try:
        address = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        run(arguments, address, arguments.out or str(folder / "corpus"))
    finally:
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def count_files(gigabytes: float) -> int:
    return max(1, round(gigabytes * 1e9 / FILE_BYTES))


# --- the text ---------------------------------------------------------------------------------------


class FileWriter:
    """Writes the text of files; by arrays and one join, so that one core writes many times what it takes to read."""

    def __init__(self, megabytes: float) -> None:
        from etude.world import World

        stories = [b"%s\n\n" % story.encode() for story in World(seed=0, language="en").text(megabytes=megabytes)]
        self.stories = np.array(stories, object)
        self.story_sizes = np.array(list(map(len, stories)))
        most = FILE_BYTES // int(self.story_sizes.min()) + 1
        self.titles = [b"Chapter %d of volume " % count for count in range(1, most + 1)]
        self.title_sizes = np.array(list(map(len, self.titles)))

    def write(self, number: int) -> bytes:
        """Return the text of a file: all stories in a new order, over and over, as many as fit."""
        draw = np.random.default_rng(number)
        volume = b"%d.\n" % number
        rounds = FILE_BYTES // int(self.story_sizes.sum()) + 1
        order = np.concatenate([draw.permutation(len(self.stories)) for _ in range(rounds)])[: len(self.titles)]
        sizes = self.title_sizes[: len(order)] + len(volume) + self.story_sizes[order]
        count = int(np.searchsorted(np.cumsum(sizes), FILE_BYTES, "right"))
        parts = [volume] * (3 * count)
        parts[::3] = self.titles[:count]
        parts[2::3] = self.stories[order[:count]].tolist()
        return b"".join(parts).ljust(FILE_BYTES, b"\n")


def serve(megabytes: float, files: int) -> None:
    """Write files on demand: /NUMBER.txt, always the same for a number."""
    writer = FileWriter(megabytes)
    write_file = lru_cache(maxsize=2)(writer.write)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self._answer(200, b"", FILE_BYTES)

        def do_GET(self) -> None:
            if self.path == "/":  # the list that a pattern is matched with
                links = "".join(f'<a href="/{number:06}.txt">x</a>' for number in range(files))
                self._answer(200, links.encode(), len(links))
                return
            first, last = (self.headers.get("Range") or f"bytes=0-{FILE_BYTES - 1}").removeprefix("bytes=").split("-")
            data = write_file(int(self.path.strip("/").removesuffix(".txt")))[int(first) : int(last) + 1]
            self._answer(206, data, len(data))

        def _answer(self, status: int, data: bytes, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()  # until the other side is gone


# --- the measurement --------------------------------------------------------------------------------


def measure_memory(process: int) -> float:
    """Return the resident memory of a process and its children, in MB; pages that they share count once (Pss)."""
    total = 0.0
    for number in [process, *list_children(process)]:
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000
    return total


def measure_cpu(processes: list[int]) -> float:
    """Return the CPU seconds, user and system, that processes have taken so far; not those of their children."""
    total = 0
    for number in processes:
        try:
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def list_children(process: int) -> list[int]:
    children = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        children += [int(word) for word in path.read_text().split()]
    return children


class Sample(NamedTuple):
    """How far a preparation was at some moment."""

    phase: str
    seconds: float  # in the phase
    cpu: float  # seconds since the start
    megabytes: float  # of text in the phase
    memory: float  # MB


def run(arguments: argparse.Namespace, address: str, out: str) -> None:
    from etude.text.corpus.corpus import Corpus
    from etude.text.prepare.prepare import Progress, prepare

    files = count_files(arguments.gb)
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, {arguments.workers} workers, "
          f"{files * FILE_BYTES / 1e9:.2f} GB in {files} files, load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
    samples: list[Sample] = []
    last = [0.0]

    def show(progress: Progress) -> None:
        now = time.monotonic()
        if progress.phase == "training" or now - last[0] < min(1.0, arguments.every):
            return
        megabytes = progress.text / 1e6
        # the server is a child, too, and no part of the preparation: neither its memory nor its time is counted
        memory = measure_memory(os.getpid()) - server_memory()
        workers = [child for child in list_children(os.getpid()) if not is_server(child)]
        cpu = measure_cpu([os.getpid(), *workers])
        samples.append(Sample(progress.phase, progress.seconds, cpu, megabytes, memory))
        if not last[0] or len(samples) < 2 or now - shown[0] >= arguments.every:
            shown[0] = now
            print(f"{progress.phase:9} {megabytes:10,.0f} MB  {megabytes / max(progress.seconds, 1e-9):6.1f} MB/s  "
                  f"{memory:6.0f} MB resident", flush=True)  # fmt: skip
        last[0] = now

    shown = [0.0]

    def server_memory() -> float:
        return sum(measure_memory(child) for child in list_children(os.getpid()) if is_server(child))

    start = time.monotonic()
    corpus = prepare(
        f"{address}/*.txt", out, arguments.tokenizer, workers=arguments.workers, progress=show,
        force=bool(arguments.out),
    )  # fmt: skip
    seconds = time.monotonic() - start
    gigabytes = files * FILE_BYTES / 1e9
    print(f"{gigabytes:.2f} GB in {seconds / 60:.1f} min, {1000 * gigabytes / seconds:.1f} MB/s through both passes "
          f"and the tokenizer; {corpus.total:,} tokens, {len(corpus.documents):,} documents")  # fmt: skip
    for phase in ("reading", "encoding"):
        report_phase(phase, [sample for sample in samples if sample.phase == phase])
    opened = []
    for _ in range(5):
        start = time.monotonic()
        Corpus.open(out)
        opened.append(time.monotonic() - start)
    print(f"opened in {1000 * sorted(opened)[2]:.1f} ms")
    print(json.dumps({"gb": gigabytes, "seconds": round(seconds, 1), "peak_mb": round(max(s.memory for s in samples))}))


def is_server(process: int) -> bool:
    try:
        return b"--serve" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def report_phase(phase: str, samples: list[Sample]) -> None:
    """Compare the first gigabyte of a phase with its last."""
    if len(samples) < 3:
        return
    total = samples[-1].megabytes
    first = [sample for sample in samples if sample.megabytes <= 1000]
    last = [sample for sample in samples if sample.megabytes >= total - 1000]
    described = []
    for name, part in (("first GB", first), ("last GB", last)):
        megabytes = part[-1].megabytes - part[0].megabytes
        speed = megabytes / max(part[-1].seconds - part[0].seconds, 1e-9)
        cpu_speed = megabytes / max(part[-1].cpu - part[0].cpu, 1e-9)
        peak = max(sample.memory for sample in part)
        described.append(f"{name} {speed:.1f} MB/s, {cpu_speed:.1f} MB a CPU second, peak {peak:.0f} MB")
    print(f"{phase}: {'; '.join(described)}")


if __name__ == "__main__":
    main()
