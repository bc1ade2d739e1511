"""The studies of knowledge (claims 21 and 22) on one GPU, from the raw files and one queue.

    python benchmarks/knowledge_studies.py DATA OUT [--start BERT] [--world 8] [-- words for `etude study`]

DATA holds corpora/enwiki_train.txt.xz (or --text), tasks/{semeval2010_8,commonsenseqa} and
knowledge/conceptnet_cn100k_train.tsv.xz. What the studies read is made first, in WORK, and found there by the next
call: CN-100K as a graph, TransE on it, the text linked to it, a BERT to start from (--start: a published one's folder,
imported; its sizes are the contenders'), and the schema graphs of all questions. Then `etude study` runs the `gpu`
sections of linked/entities-help and paths-help from one queue, and with --world N the halves of the built-in world on N
cores of the CPU beside it. OUT gets cells.zip and world.zip (written again after each cell), reports.zip and logs; the
next call takes --import cells.zip, from the same code.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from studies_gpu import ROOT, pack_reports, start_mps, summarize

from etude.recipes.document import parse
from etude.runs.run import Run
from etude.study.label_splits import split_files
from etude.study.settings import Study
from etude.tasks import graph_choice
from etude.tasks.knowledge_source import KnowledgeSettings, KnowledgeSource

STUDIES = {"entities-help": "linked/entities-help", "paths-help": "paths-help"}
START = time.perf_counter()


def say(text: str) -> None:
    print(f"{time.perf_counter() - START:.0f} s: {text}", flush=True)


def etude(log: Path, *words: str) -> None:
    """Run one verb; what it prints goes into the log, and its end is shown where it fails."""
    with open(log, "ab") as output:
        code = subprocess.run(
            [sys.executable, "-m", "etude", *words], stdout=output, stderr=subprocess.STDOUT
        ).returncode
    if code:
        print(log.read_text(encoding="utf-8", errors="replace")[-3000:])
        raise SystemExit(f"etude {words[0]} ended with {code}")


def is_finished(run: Path) -> bool:
    return (run / "model.safetensors").is_file()


# --- what the studies read --------------------------------------------------------------------------


def prepare_real(options: argparse.Namespace, log: Path) -> None:
    """Graph, vectors, linked text and the BERT to start from, in the current folder; what is there stays."""
    device = [f"train.device={options.device}", "train.save_every=0", "train.eval_every=0", "--quiet"]
    concepts = options.data / "knowledge/conceptnet_cn100k_train.tsv.xz"
    if not Path("data/cn").is_dir():
        etude(log, "prepare", str(concepts), "--graph", "-o", "data/cn", "--triple-columns", "relation,head,tail")
        say("CN-100K is a graph")
    transe = Path("runs/transe")
    if not is_finished(transe):
        going_on = ["pretrain", "--resume", str(transe)]
        sizes = ["model.width=100", "model.init_range=0.11", "train.lr=1e-3", f"train.steps={options.transe_steps}"]
        begin = ["pretrain", "transe-fb15k237", "data/cn", "-o", str(transe), *sizes, *device]
        etude(log, *(going_on if transe.is_dir() else begin))
        say("TransE on CN-100K")
    tokenizer = f"wordpiece:{options.vocab},lower"
    if options.start is not None:
        tokenizer = "runs/bert"
        if not is_finished(Path("runs/bert")):
            etude(log, "import", str(options.start), "-o", "runs/bert")
    if not Path("data/linked").is_dir():
        text = options.text or options.data / "corpora/enwiki_train.txt.xz"
        linker = ["--link", "data/cn", "--linker", "trie,plurals"]
        etude(log, "prepare", str(text), *linker, "-t", tokenizer, "--valid", "0.01", "-o", "data/linked")
        say("the text is linked to CN-100K")
    if not is_finished(Path("runs/bert")):
        study = Study.load(ROOT / "studies" / "paths-help.yaml", gpu=True)
        shared = {**study.set, "train.batch_tokens": 16384, "train.lr": 1e-3, "train.compile": options.device == "cuda"}
        shared["train.steps"] = options.bert_steps
        settings = [f"{name}={json.dumps(value)}" for name, value in shared.items()]
        etude(log, "pretrain", "bert-mini", "data/linked", "-o", "runs/bert", *settings, *device)
        say("the BERT to start from")


def find_paths(options: argparse.Namespace) -> None:
    """Fill the cache of schema graphs by all cores at once: the cells find them there."""
    study = Study.load(ROOT / "studies" / "paths-help.yaml", gpu=True)
    settings = {**study.transfer, **study.contenders["kagnet"].transfer}
    fields = {name.removeprefix("task."): value for name, value in settings.items()}
    known = {name: value for name, value in fields.items() if name in KnowledgeSettings.model_fields}
    source = KnowledgeSource(KnowledgeSettings(**known))
    for part, records in split_files(study.tasks["csqa"], options.data / "tasks").items():
        questions = [graph_choice.parse(record, {}, part) for record in records]
        graphs = source.find_schema_graphs([(item.text, choice) for item in questions for choice in item.choices])
        joined = sum(len(graph.path_pairs) > 0 for graph in graphs)
        say(f"CommonsenseQA {part}: {len(questions)} questions, {joined} of {len(graphs)} answers have a path")


def prepare_world(log: Path) -> None:
    facts = "data/world/knowledge"
    small = ["train.save_every=0", "train.eval_every=0", "train.device=cpu", "--quiet"]
    if not Path("data/world").is_dir():
        etude(log, "world", "-o", "data/world", "--megabytes", "0.5", "--anchored", "1.5")
    if not Path("data/graph").is_dir():
        etude(
            log, "prepare", f"{facts}/train.tsv", "--graph", "-o", "data/graph", "--entities", f"{facts}/labels.jsonl"
        )
    if not Path("data/linked").is_dir():
        anchors = ["--link", "data/graph", "--anchors", "wiki", "-t", "wordpiece:1000,lower"]
        etude(log, "prepare", "data/world/anchored.txt", *anchors, "-o", "data/linked")
    if not is_finished(Path("runs/transe")):
        etude(log, "pretrain", "transe-toy", "data/graph", "-o", "runs/transe", *small)
    if not is_finished(Path("runs/bert")):
        etude(log, "pretrain", "bert-toy", "data/linked", "-o", "runs/bert", "train.steps=600", *small)


# --- the studies ------------------------------------------------------------------------------------


def with_sizes_of(run: Path, name: str) -> Path:
    """A copy of the study's file whose contenders have the sizes of the run that they start from."""
    source = ROOT / "studies" / f"{STUDIES[name]}.yaml"
    document = parse(source.read_text(encoding="utf-8"), source.name).values
    model = Run(run).recipe.model.model_dump()
    gpu = document["gpu"]
    gpu["set"] |= {f"model.{key}": model[key] for key in ("layers", "width", "heads", "context", "activation")}
    if "ernie" in gpu["contenders"]:  # the released proportions: half of the layers read no entities
        half = model["layers"] // 2
        kinds = ["sim"] * (half - 1) + ["mix"] + ["norm"] * (model["layers"] - half)
        gpu["contenders"]["ernie"]["set"]["model.layer_kinds"] = kinds
    file = Path(f"{name}.yaml")
    file.write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")  # which is YAML, too
    return file


def start_queue(files: list[Path], words: list[str], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "etude", "study", *map(str, files), "-o", "studies", *words]
    with open(log, "wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def wait_for(process: subprocess.Popen[bytes], until: float) -> None:
    try:
        process.wait(timeout=max(1.0, until - time.perf_counter()))
    except subprocess.TimeoutExpired:
        process.terminate()  # cells in flight are lost, the others are in the archive
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", type=Path, help="a published BERT's folder, or a run")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "etude_knowledge")
    parser.add_argument("--studies", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    parser.add_argument("--minutes", type=float, default=8.0, help="for all, preparing included")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument(
        "--world", type=int, default=0, help="cores for the halves of the built-in world; 0: without them"
    )
    parser.add_argument("--no-real", action="store_true", help="the halves of the world alone")
    parser.add_argument("--import", dest="imports", nargs="+", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--transe-steps", type=int, default=20_000)
    parser.add_argument("--bert-steps", type=int, default=3_000)
    parser.add_argument("--vocab", type=int, default=30_522)
    words = sys.argv[1:]
    place = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:place], argparse.Namespace(rest=words[place + 1 :]))
    for name in ("data", "out", "start", "text", "work"):
        path = getattr(options, name)
        setattr(options, name, None if path is None else path.resolve())
    options.imports = [str(Path(path).resolve()) for path in options.imports]
    return options


def main() -> None:
    options = parse_options()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    os.environ |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    options.out.mkdir(parents=True, exist_ok=True)
    end = START + 60 * options.minutes
    archives = [word for archive in options.imports for word in ("--import-cells", archive)]
    queues: dict[str, tuple[subprocess.Popen[bytes], Path, Path]] = {}
    if options.world:
        folder = options.work / "world"
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        prepare_world(options.out / "world-prepare.txt")
        say("the world is prepared")
        files = [ROOT / "studies" / f"{STUDIES[name]}.yaml" for name in options.studies]
        words = ["--data", "data/world/tasks", "--device", "cpu", "--workers", str(options.world), *archives]
        words += [
            "--minutes",
            f"{(end - time.perf_counter()) / 60:.2f}",
            "--export-cells",
            str(options.out / "world.zip"),
        ]
        log = options.out / "world.txt"
        queues["world"] = start_queue(files, [*words, *options.rest], log), log, folder / "studies"
    if not options.no_real:
        folder = options.work / "real"
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        prepare_real(options, options.out / "real-prepare.txt")
        if "paths-help" in options.studies:
            find_paths(options)
        if options.device.startswith("cuda"):
            say(f"MPS {'on' if start_mps() else 'off'}")
        files = [with_sizes_of(Path("runs/bert"), name) for name in options.studies]
        words = ["--gpu", "--data", str(options.data / "tasks"), "--device", options.device]
        words += ["--workers", str(options.workers), "--export-cells", str(options.out / "cells.zip"), *archives]
        words += ["--minutes", f"{(end - time.perf_counter()) / 60:.2f}"]
        log = options.out / "real.txt"
        queues["real"] = start_queue(files, [*words, *options.rest], log), log, folder / "studies"
    # a call that is stopped stops its queues: what is done is in the archives
    signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process, _, _ in queues.values()])
    for half, (process, log, folder) in queues.items():
        wait_for(process, end + 30)
        print(f"--- {half}: exit {process.returncode} ---")
        if not folder.is_dir():
            print(log.read_text(encoding="utf-8", errors="replace")[-3000:])
            continue
        verdicts = pack_reports(folder, options.out / f"{half}-reports.zip")
        summarize(log, verdicts, time.perf_counter() - START)
        for table in sorted(folder.glob("*/table.md")):
            print(table.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
