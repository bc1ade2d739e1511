"""Studies on one GPU with a real text, from one queue, in the minutes there are.

    python benchmarks/studies_gpu.py TEXT TASKS OUT --vocab vocab.txt --minutes 8 [--studies a b] [--import cells.zip]

TEXT is a text file (or a prepared corpus), TASKS a folder with <task>/train.jsonl.xz and valid.jsonl.xz, VOCAB BERT's
uncased vocab.txt. The corpus is prepared once, in WORK/corpus; the first unused entry of the vocabulary becomes [EOT],
which causal models need. All studies share one queue (`etude study A B C --minutes M`), several cells at once, under
NVIDIA's MPS where it is installed. OUT gets cells.zip (written again after each cell: a killed call loses the cells in
flight), reports.zip (results.json, report.html and table.md of every study) and log.txt. The next visit starts with
--import cells.zip. Words behind `--` go to `etude study`, as in `-- --any-version seeds.pretrain=5`: a cell is known by
the code that made it, unless any version counts. A study may have settings of its own, as in `--studies cloze-vs-mlm
mlm-vs-electra:seeds.pretrain=5`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import yaml

from etude.plain_yaml import Writer
from etude.recipes.document import parse, parse_value

ROOT = Path(__file__).resolve().parents[1]
# one masked model of 4 x 256 with three seeds serves the first eight; those that share least come last
CLAIMS = {
    "mask-tokens": 6, "head-rate": 11, "tag-heads": 20, "mask-rate": 5, "bidirectional": 8, "batch-size": 9,
    "pretraining-pays": 1, "model-size": 10, "sentence-objectives": 7, "electra-ablations": 17, "residual-init": 14,
    "norm-and-warmup": 13, "layer-mix": 4, "bilm-states": 3, "contextual-vs-static": 2, "distillation": 18,
    "few-shot": 19,
}  # fmt: skip
LARGE = {"mlm-vs-electra": 16, "cloze-vs-mlm": 12, "albert-sharing": 15, "embedding-width": 15, "pooling": None}
NAMED_BY_PATH = ("set", "transfer", "tune", "vary")  # sections of a study with entries such as train.lr
REPORT_FILES = ("results.json", "report.html", "table.md", "study.yaml", "registered.json")


def prepare(text: Path, vocab: Path | None) -> Path:
    """Return the corpus, prepared in the current folder unless it is one or lies there."""
    if (text / "manifest.json").is_file():
        return text
    corpus = Path("corpus")
    if not (corpus / "manifest.json").is_file():
        tokenizer = "wordpiece:30522,lower"
        if vocab is not None:
            tokenizer = "vocab.txt"
            words = vocab.read_text(encoding="utf-8")
            Path(tokenizer).write_text(words.replace("[unused0]\n", "[EOT]\n", 1), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "etude",
            "prepare",
            str(text),
            "-o",
            str(corpus),
            "--tokenizer",
            tokenizer,
            "--valid",
            "0.02",
        ]  # sentence pairs and pseudo-words are asked about in held-out documents

        subprocess.run(command, check=True)
    return corpus


def start_mps() -> bool:
    """Start NVIDIA's daemon by which kernels of several processes run at once, where it is installed."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        return False
    subprocess.run(["nvidia-cuda-mps-control", "-d"], capture_output=True)  # fails where one runs already
    answer = subprocess.run(["nvidia-cuda-mps-control"], input=b"get_server_list\n", capture_output=True)
    return answer.returncode == 0


def find_study(word: str) -> Path:
    """Return the file of a study, or of NAME:SETTING=VALUE:... a changed copy in the current folder."""
    study, *settings = word.split(":")
    source = ROOT / "studies" / f"{study}.yaml"
    if not settings:
        return source
    values = parse(source.read_text(encoding="utf-8"), source.name).values
    for setting in settings:
        path, _, value = setting.partition("=")
        section, _, inside = path.partition(".")
        *groups, name = [section, inside] if section in NAMED_BY_PATH else path.split(".")
        place = values["gpu"] if section in values.get("gpu", {}) else values
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = parse_value(value, setting)
    changed = Path("changed") / source.name
    changed.parent.mkdir(exist_ok=True)
    changed.write_text(yaml.dump(values, Dumper=Writer, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return changed


def run_queue(arguments: argparse.Namespace, corpus: Path, log: Path) -> int:
    files = [str(find_study(word)) for word in arguments.studies]
    command = [sys.executable, "-m", "etude", "study", *files, "--text", str(corpus), "--data", str(arguments.tasks),
               "-o", "studies", "--workers", str(arguments.workers),
               "--minutes", str(arguments.minutes), "--export-cells", str(arguments.out / "cells.zip")]  # fmt: skip
    command += ["--gpu"] if arguments.device.startswith("cuda") or arguments.gpu_sections else []
    command += ["--device", arguments.device]
    for archive in arguments.imports:
        command += ["--import-cells", archive]
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TORCHINDUCTOR_COMPILE_THREADS": os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "2"),
    }
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*command, *arguments.rest], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait(timeout=60 * arguments.minutes + arguments.grace)
        except subprocess.TimeoutExpired:
            process.terminate()  # cells in flight are lost, the others are in cells.zip
            try:
                return process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()


def pack_reports(folder: Path, target: Path) -> list[dict[str, object]]:
    """Put the reports of all studies into one file; returns what each claim came to."""
    verdicts: list[dict[str, object]] = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for study, results in find_results(folder).values():
            for name in REPORT_FILES:
                if (study / name).is_file():
                    archive.write(study / name, f"{results['name']}/{name}")
            for claim in results["claims"]:
                verdicts.append({"study": results["name"], **claim})
    return verdicts


def find_results(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Find the reports below a folder, by study: several have a folder each inside, a study that ran alone is there."""
    found = {}
    for path in [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]:
        if (path / "results.json").is_file():
            results = json.loads((path / "results.json").read_text(encoding="utf-8"))
            found[results["name"]] = (path, results)  # inside is what ran later: a queue takes over the cells
    return found


def summarize(log: Path, verdicts: list[dict[str, object]], seconds: float) -> None:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    finished = [line for line in lines if re.match(r"\[\d+/\d+\] ", line)]
    failures = [line for line in finished if "FAILED" in line]
    pretrained = sum("] pre-training" in line for line in finished)
    print(f"{len(finished)} cells in {seconds:.0f} s: {pretrained} pre-trainings; {len(failures)} failed")
    for line in [*failures[:12], *finished[-5:]]:
        print(f"  {line[:200]}")
    for claim in verdicts:
        text = claim["claim"]
        english = text["en"] if isinstance(text, dict) else text
        print(f"{claim['study']}: {english}: {claim['verdict']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocab", type=Path)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "etude_studies")
    parser.add_argument("--minutes", type=float, default=8.0, help="for the queue, planning included")
    parser.add_argument("--grace", type=float, default=45.0, help="seconds after that for cells in flight and reports")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--studies", nargs="+", default=list(CLAIMS), metavar="NAME[:SETTING=VALUE...]")
    parser.add_argument("--import", dest="imports", nargs="+", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpu-sections", action="store_true", help="take the sections 'gpu' on a CPU too")
    words = sys.argv[1:]
    place = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:place], argparse.Namespace(rest=words[place + 1 :]))
    for name in ("text", "tasks", "out", "vocab", "work"):
        path = getattr(arguments, name)
        setattr(arguments, name, None if path is None else path.resolve())
    arguments.imports = [str(Path(archive).resolve()) for archive in arguments.imports]
    names = [word.partition(":")[0] for word in arguments.studies]
    missing = [name for name in names if not (ROOT / "studies" / f"{name}.yaml").is_file()]
    if missing:
        parser.error(f"no such study: {', '.join(missing)}")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    arguments.work.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    os.chdir(arguments.work)  # results name text and tokenizer as they are given here: without this machine's folders
    corpus = prepare(arguments.text, arguments.vocab)
    print(f"corpus after {time.perf_counter() - start:.0f} s", flush=True)
    mps = start_mps() if arguments.device.startswith("cuda") else False
    log = arguments.out / "log.txt"
    code = run_queue(arguments, corpus, log)
    if not Path("studies").is_dir():
        sys.exit(log.read_text(encoding="utf-8", errors="replace")[-3000:])
    verdicts = pack_reports(Path("studies"), arguments.out / "reports.zip")
    print(f"exit {code}, MPS {'on' if mps else 'off'}")
    summarize(log, verdicts, time.perf_counter() - start)


if __name__ == "__main__":
    main()
