"""A corpus larger than this disk would hold as text: speed and memory of `etude prepare` over a stream.

    python benchmarks/large_corpus.py --gb 1
    python benchmarks/large_corpus.py --gb 100 --out s3://lab/corpora/world      # the text alone would be 100 GB
    python benchmarks/large_corpus.py --gb 10 --every 60 --workers 8

A server of this machine writes the text while it is asked for, as files of 64 MB behind http://: stories of the
built-in world (--base megabytes of them), in a new order in each file, each with a first line of its own, so no two
documents are equal. Nothing of it is ever on a disk. Printed over time: the phase, MB of text a second, and the
resident memory of the preparing process and its workers (not of the server). At the end: the speed of each phase over
its first GB and its last, the peak of the memory in both, and how long it takes to open the corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
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


def serve(megabytes: float, files: int) -> None:
    """Write files on demand: /NUMBER.txt, always the same for a number."""
    from etude.world import World

    stories = [story.encode() for story in World(seed=0, language="en").text(megabytes=megabytes)]

    @lru_cache(maxsize=2)
    def write_file(number: int) -> bytes:
        draw, pieces, size, count = random.Random(number), [], 0, 0
        while True:
            for story in draw.sample(stories, len(stories)):
                count += 1
                piece = b"Chapter %d of volume %d.\n%s\n\n" % (count, number, story)
                if size + len(piece) > FILE_BYTES:
                    return b"".join(pieces).ljust(FILE_BYTES, b"\n")
                pieces.append(piece)
                size += len(piece)

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


def list_children(process: int) -> list[int]:
    children = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        children += [int(word) for word in path.read_text().split()]
    return children


def run(arguments: argparse.Namespace, address: str, out: str) -> None:
    from etude.text.corpus.corpus import Corpus
    from etude.text.prepare.prepare import Progress, prepare

    files = count_files(arguments.gb)
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, {arguments.workers} workers, "
          f"{files * FILE_BYTES / 1e9:.2f} GB in {files} files, load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
    samples: list[tuple[str, float, float, float]] = []  # phase, seconds in it, MB of text, MB of memory
    last = [0.0]

    def show(progress: Progress) -> None:
        now = time.monotonic()
        if progress.phase == "training" or now - last[0] < min(1.0, arguments.every):
            return
        megabytes = progress.text / 1e6
        # the server is a child, too, and no part of the preparation: its memory is not counted
        memory = measure_memory(os.getpid()) - server_memory()
        samples.append((progress.phase, progress.seconds, megabytes, memory))
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
        report_phase(phase, [sample[1:] for sample in samples if sample[0] == phase])
    opened = []
    for _ in range(5):
        start = time.monotonic()
        Corpus.open(out)
        opened.append(time.monotonic() - start)
    print(f"opened in {1000 * sorted(opened)[2]:.1f} ms")
    print(json.dumps({"gb": gigabytes, "seconds": round(seconds, 1), "peak_mb": round(max(s[3] for s in samples))}))


def is_server(process: int) -> bool:
    try:
        return b"--serve" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def report_phase(phase: str, samples: list[tuple[float, float, float]]) -> None:
    """Compare the first gigabyte of a phase with its last."""
    if len(samples) < 3:
        return
    total = samples[-1][1]
    first = [sample for sample in samples if sample[1] <= 1000]
    rest = [sample for sample in samples if sample[1] >= total - 1000]

    def speed(part: list[tuple[float, float, float]]) -> float:
        return (part[-1][1] - part[0][1]) / max(part[-1][0] - part[0][0], 1e-9)

    print(f"{phase}: first GB {speed(first):.1f} MB/s, peak {max(sample[2] for sample in first):.0f} MB; "
          f"last GB {speed(rest):.1f} MB/s, peak {max(sample[2] for sample in rest):.0f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
