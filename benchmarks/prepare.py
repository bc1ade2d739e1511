"""How fast text becomes a corpus, and in how much memory, beside `datasets.map` with the same tokenizer.

    python benchmarks/prepare.py                              # 100 MB of the built-in world
    python benchmarks/prepare.py --text a.txt.xz b.txt --mb 100 --tokenizer wordpiece:16000

Both contenders run in fresh processes, on as many workers as there are cores, with one tokenizer trained beforehand.
Ours reads, checks, hashes, splits sentences, marks words, encodes and writes; theirs is timed for `map` alone (loading
the data set is shown apart). The ids must be identical. Memory is the peak of the sum over all processes, sampled:
`rss` counts shared pages once a process, `pss` shares them out. Text given by path is shuffled by document and
repeated, with one word of each later copy altered, until the size is reached.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--text", nargs="*", help="text files (blank lines between documents; .xz too); default: the world"
    )
    parser.add_argument("--mb", type=float, default=100.0)
    parser.add_argument("--small-mb", type=float, default=10.0, help="the size that memory is compared with")
    parser.add_argument("--tokenizer", default="wordpiece:16000")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--without-datasets", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _run(Path(folder), arguments)


def _run(folder: Path, arguments: argparse.Namespace) -> None:
    from etude.text.tokenizer.tokenizer import Tokenizer

    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"tokenizers {version('tokenizers')}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for name, megabytes in (("small", arguments.small_mb), ("large", arguments.mb)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for document in _documents(arguments.text, megabytes):
                file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    with (folder / "small.jsonl").open(encoding="utf-8") as file:
        sample = [json.loads(line)["text"] for line, _ in zip(file, range(2000), strict=False)]
    Tokenizer.train(arguments.tokenizer, sample).save(folder)
    workers = str(arguments.workers)
    results = {}
    for name in ("small", "large"):
        results[name] = _measure(
            [__file__, "ours", str(folder / f"{name}.jsonl"), str(folder / name), str(folder), workers]
        )
    if not arguments.without_datasets:
        results["datasets.map"] = _measure(
            [__file__, "theirs", str(folder / "large.jsonl"), str(folder / "set"), str(folder), workers]
        )
    for name, result in results.items():
        label = {"small": f"etude, {arguments.small_mb:g} MB", "large": f"etude, {arguments.mb:g} MB"}.get(name, name)
        size = (folder / ("small.jsonl" if name == "small" else "large.jsonl")).stat().st_size / 1e6
        apart = f" (and {result['loading']:.1f} s loading)" if result["loading"] else ""
        speed = f"{result['seconds']:8.1f} s {size / result['seconds']:8.2f} MB/s {result['cpu']:8.1f} s of CPU"
        memory = f"peak memory {result['rss']:5.0f} MB rss {result['pss']:5.0f} MB pss"
        print(f"{label:16} {speed}   {memory}{apart}")
    grown = results["large"]["pss"] - results["small"]["pss"]
    allowed = 600 + 50 * arguments.workers
    print(f"memory from {arguments.small_mb:g} to {arguments.mb:g} MB: {grown:+.0f} MB; allowed in all: {allowed} MB")
    assert results["large"]["rss"] < allowed, "memory is above what is promised"
    if not arguments.without_datasets:
        tokens = _compare(folder)
        print(f"identical ids: {tokens:,} tokens")
        print(f"etude is {results['datasets.map']['seconds'] / results['large']['seconds']:.2f} x datasets.map")


def _documents(paths: list[str] | None, megabytes: float) -> Iterator[str]:
    """Documents until the size is reached."""
    if not paths:
        from etude.world import World

        yield from World(seed=0, language="en").text(megabytes=megabytes)
        return
    documents = []
    for path in paths:
        data = Path(path).read_bytes()
        if path.endswith(".xz"):
            data = lzma.decompress(data)
        documents += [text.strip() for text in data.decode().split("\n\n") if text.strip()]
    draw = random.Random(0)
    draw.shuffle(documents)
    size, copy = 0, 0
    while True:
        for document in documents:
            if copy:
                words = document.split(" ")
                words[draw.randrange(len(words))] = f"copy{copy}"
                document = " ".join(words)
            yield document
            size += len(document.encode()) + 2
            if size >= megabytes * 1e6:
                return
        copy += 1


def _measure(command: list[str]) -> dict[str, float]:
    """Runs a contender, which prints its own seconds, and samples the memory of it and all its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    peak = {"rss": 0.0, "pss": 0.0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            now = _memory(process.pid)
            for kind in peak:
                peak[kind] = max(peak[kind], now[kind])

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    done.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    loading, seconds = map(float, output.split()[-2:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"loading": loading, "seconds": seconds, "cpu": cpu, **peak}


def _memory(root: int) -> dict[str, float]:
    """MB of a process and its descendants, from /proc."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    total = {"rss": 0.0, "pss": 0.0}
    for member in family:
        try:
            text = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            if name.lower() in total:
                total[name.lower()] += int(rest.split()[0]) / 1e3
    return total


def ours(text: str, out: str, tokenizer: str, workers: str) -> None:
    from etude.text.prepare.prepare import prepare

    started = time.perf_counter()
    prepare(text, out, tokenizer, valid=0, workers=int(workers))
    print(0.0, time.perf_counter() - started)


def theirs(text: str, out: str, tokenizer: str, workers: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    os.environ["HF_DATASETS_CACHE"] = out + "-cache"
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    import datasets
    from tokenizers import Tokenizer as Fast

    datasets.disable_progress_bars()
    fast = Fast.from_file(str(Path(tokenizer) / "tokenizer.json"))

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"ids": [encoding.ids for encoding in fast.encode_batch(batch["text"], add_special_tokens=False)]}

    started = time.perf_counter()
    rows = datasets.load_dataset("json", data_files=text, split="train")
    loaded = time.perf_counter()
    mapped = rows.map(encode, batched=True, num_proc=int(workers), remove_columns=["text"])
    print(loaded - started, time.perf_counter() - loaded)
    mapped.save_to_disk(out)


def _compare(folder: Path) -> int:
    """Every id of every document, in order."""
    import datasets

    from etude.text.corpus.corpus import Corpus

    corpus = Corpus.open(folder / "large", verify=True)
    rows = datasets.load_from_disk(str(folder / "set")).with_format("numpy")
    assert len(rows) == len(corpus.documents), "documents differ"
    place = 0
    for start in range(0, len(rows), 1000):
        ids = np.concatenate(list(rows[start : start + 1000]["ids"]))
        assert np.array_equal(ids, corpus.tokens(place, place + len(ids))), f"ids differ after token {place}"
        place += len(ids)
    assert place == corpus.total
    shutil.rmtree(folder / "set")
    return place


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("ours", "theirs"):
        {"ours": ours, "theirs": theirs}[sys.argv[1]](*sys.argv[2:])
    else:
        main()
