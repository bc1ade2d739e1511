"""The same bytes whatever the workers; they are light, and memory does not grow with the text."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.text.prepare.small_texts import WORDS, as_bytes, some_text

from etude.text.prepare.prepare import Progress, prepare
from etude.text.prepare.worker_pool import WorkerError, WorkerPool
from etude.text.tokenizer.tokenizer import Tokenizer


@pytest.mark.parametrize("spec", ["wordpiece:200", "word:40"])
def test_workers_do_not_show(text: Path, tmp_path: Path, spec: str) -> None:
    for workers in (0, 1, 2):
        prepare(text, tmp_path / f"c{workers}", spec, valid=0.1, workers=workers)
    first = as_bytes(tmp_path / "c0")
    assert first == as_bytes(tmp_path / "c1") == as_bytes(tmp_path / "c2")


def test_a_worker_that_is_killed_is_one_message_and_what_is_done_stays(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(some_text(400)))
    pools: list[WorkerPool] = []
    enter = WorkerPool.__enter__
    monkeypatch.setattr(WorkerPool, "__enter__", lambda pool: pools.append(pool) or enter(pool))
    steps = 0

    def kill(progress: Progress) -> None:
        nonlocal steps
        steps += progress.phase == "encoding"
        if steps == 5:
            pools[0].processes[0].kill()  # as the system does where memory runs out

    with pytest.raises(WorkerError, match=r"worker process was killed.*run the same command again.*--workers"):
        prepare(tmp_path / "a.txt", tmp_path / "c", "word:40", workers=1, commit_seconds=0, progress=kill)
    phases: list[str] = []
    prepare(tmp_path / "a.txt", tmp_path / "c", "word:40", workers=0, progress=lambda p: phases.append(p.phase))
    assert "reading" not in phases
    prepare(tmp_path / "a.txt", tmp_path / "whole", "word:40", workers=0)
    assert as_bytes(tmp_path / "c") == as_bytes(tmp_path / "whole")


def test_what_a_killed_worker_was_not_sent_is_dropped() -> None:
    """Closing its pipe ended in another error, which hid the message."""
    with pytest.raises(WorkerError, match="killed"), WorkerPool(1) as pool:
        process = pool.processes[0]
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.write(b"it stays in the buffer")
        raise WorkerError("killed")


MEASURED = """
import re, resource, sys
from pathlib import Path
from etude.text.prepare.prepare import prepare
if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2], sys.argv[3], workers=1)
    # ru_maxrss of this process would begin at the peak of the process that started it, which exec keeps
    own = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
    print(int(own) // 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("bpe:500", some_text(100))
    tokenizer.save(tmp_path)
    peaks = []
    for megabytes in (5, 20):
        path = tmp_path / f"{megabytes}.txt"
        block = some_text(2000, longest=40)
        draw = random.Random(megabytes)
        with path.open("w") as file:
            while file.tell() < megabytes * 1e6:
                words = [f"{draw.choice(WORDS)}{draw.randrange(10**6)}" for _ in range(200)]  # few words come again
                file.write(draw.choice(block) + " " + " ".join(words) + "\n\n")
        command = [sys.executable, "-c", MEASURED, str(path), str(tmp_path / f"c{megabytes}"), str(tmp_path)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append([int(number) for number in answer.stdout.split()])
    (parent_small, worker_small), (parent_large, worker_large) = peaks
    assert parent_large <= parent_small + 15 and worker_large <= worker_small + 60, peaks
    assert parent_large + worker_large < 650, peaks


def test_workers_import_no_torch() -> None:
    modules = "etude.text.prepare.worker, etude.text.prepare.prepare, etude.cli.corpus"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
