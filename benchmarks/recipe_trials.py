"""Trials that decide a recipe for some minutes: each choice beside the recipe as it is, by what the model is worth.

    python benchmarks/recipe_trials.py TRIALS TEXT TASKS WORK [--parallel 2] [--finetunings 8] [--until MINUTES]
    python benchmarks/recipe_trials.py TRIALS --table                  # what there is so far, from RESULTS alone

TRIALS is a file such as trials/encoder-20min.yaml: a recipe, the minutes of a trial, tasks with their settings, and the
trials, each with settings that differ from the recipe's; `base` has none. TEXT is a text file, TASKS a folder with
<task>/train.jsonl.xz and valid.jsonl.xz.

First each trial is timed alone, in turns with the others and on its share of the cores, and the median of some short
measurements turns the minutes into steps: so `--parallel` trials may then share the machine, or one that is busy, and a
slower shape still gets fewer steps. A trial that says `speed: NAME` has the speed of another one (another rate changes
none). On a CPU that others use, too, seconds are those that the process had of its cores. Each trained model is
fine-tuned on every task with every seed, `--finetunings` at once, while the next trials pre-train. Its score is the
mean over tasks of the mean over seeds, on the `valid` files, so these choose and are no test. Where a file has no
tasks, the loss on held-out text decides: for trials of one objective and one tokenizer. A trial's line goes to
results/trials/RECIPE.jsonl; lines that are there, of the same settings and minutes, are not repeated. `--only NAME ...`
takes some trials, `--until` begins none that would not end by then, its fine-tunings included; a later call uses what
WORK holds of an interrupted one. Each fine-tuning is printed, too: what is known of a trial when a machine goes before
its end. The error beside `base` is of fine-tunings alone: another pre-training seed moves a task by more (CoLA by 11
points).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

RESULTS = Path(__file__).parent / "results" / "trials"
SPEED = """
import json, os, sys, time
from etude.pretraining.setup import load_recipe, resolve_recipe
from etude.pretraining.trial import measure_speed
from etude.runs.source import open_source
from etude.train import schedule
from etude.train.device import resolve_device
name, corpus, seconds, minutes, *settings = sys.argv[1:]
recipe = load_recipe(name, [*settings, f"train.minutes={minutes}"])
source = open_source(corpus, recipe)
recipe = resolve_recipe(recipe, source, ())
device = resolve_device(recipe.train.device)
wall, busy = time.perf_counter(), time.process_time()
speed = measure_speed(recipe, source, device, float(seconds))
wall, busy = time.perf_counter() - wall, time.process_time() - busy
rate = speed.tokens_per_second
if device.type == "cpu":
    rate *= max(1.0, int(os.environ["OMP_NUM_THREADS"]) * wall / busy)
steps = schedule.total_steps(recipe.train, speed.row_tokens, speed.flops_per_token, tokens_per_second=rate,
                             epoch_rows=speed.epoch_rows, mean_tokens=speed.mean_tokens)
print(json.dumps({"tokens_per_second": rate, "flops_per_token": speed.flops_per_token, "steps": steps}))
"""


@dataclass(frozen=True)
class TaskRun:
    """How a task is fine-tuned: the words behind `etude finetune RUN`, and the score that counts."""

    kind: str
    score: str
    options: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    examples: int | None = None  # of the train file, the first so many


@dataclass(frozen=True)
class Trial:
    name: str
    set: Mapping[str, object] = field(default_factory=dict)
    tokenizer: str | None = None  # None: the recipe's
    speed: str | None = None  # the trial whose speed this one has; None: it is measured

    @property
    def words(self) -> list[str]:
        """The settings as a command takes them."""
        return [f"{key}={json.dumps(value)}" for key, value in self.set.items()]


@dataclass(frozen=True)
class Plan:
    recipe: str
    minutes: float
    seeds: int
    tasks: Mapping[str, TaskRun]
    trials: tuple[Trial, ...]
    speed_seconds: float = 4.0  # of one measurement
    speed_rounds: int = 3


def read_plan(path: Path) -> Plan:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    tasks = {
        name: TaskRun(task["kind"], task["score"], tuple(task.get("options", ())), tuple(task.get("set", ())),
                      task.get("examples"))
        for name, task in document.pop("tasks").items()
    }  # fmt: skip
    trials = tuple(
        Trial(name, (given or {}).get("set", {}), (given or {}).get("tokenizer"), (given or {}).get("speed"))
        for name, given in document.pop("trials").items()
    )
    measured = {trial.name for trial in trials if trial.speed is None}
    for trial in trials:
        if trial.speed is not None and trial.speed not in measured:
            raise SystemExit(f"{path}: {trial.name} has the speed of {trial.speed}, which is not measured.")
    return Plan(**document, tasks=tasks, trials=trials)


def find_done(plan: Plan, path: Path) -> set[str]:
    """Find the trials of a plan that have a result, by what they are: a name may stand for other settings by now."""
    lines = read_results(path)
    return {
        trial.name
        for trial in plan.trials
        for line in lines
        if (line["trial"], line["minutes"], line["tokenizer"]) == (trial.name, plan.minutes, trial.tokenizer)
        and line["set"] == dict(trial.set)
    }


def name_run(plan: Plan, trial: Trial) -> str:
    """Name the run of a trial by all that decides it, so that nobody goes on with that of other settings or minutes."""
    from etude.recipes.schema import Recipe

    recipe = Recipe.load(plan.recipe, trial.words).dump()
    text = json.dumps([recipe, trial.tokenizer, plan.minutes], sort_keys=True, default=str)
    return f"{trial.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class Workshop:
    """A folder with corpora, runs and logs, and the processes that fill it."""

    def __init__(self, plan: Plan, arguments: argparse.Namespace) -> None:
        self.plan, self.text, self.tasks, self.work = plan, arguments.text, arguments.tasks, arguments.work
        self.threads = max(1, len(os.sched_getaffinity(0)) // arguments.parallel)
        self.device = ["train.device=cpu"] if arguments.cpu else []
        self.tuning_threads = self.threads if arguments.cpu else 1  # many at once, and a GPU does their work
        self.tokenizer = arguments.tokenizer
        self.lock = threading.Lock()

    def etude(self, *words: object, log: str, threads: int = 1) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        path = self.work / "logs" / f"{log}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            command = [sys.executable, "-m", "etude", *map(str, words)]
            code = subprocess.run(command, stdout=file, stderr=file, env=environment).returncode
        if code:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            raise RuntimeError(f"{log}: exit {code}: {' '.join(lines[-3:])}")

    def corpus(self, trial: Trial) -> Path:
        from etude.recipes.schema import Recipe

        tokenizer = trial.tokenizer or self.tokenizer or Recipe.load(self.plan.recipe).tokenizer
        folder: Path = self.work / ("corpus-" + "".join(c if c.isalnum() else "-" for c in tokenizer))
        with self.lock:
            if not (folder / "manifest.json").is_file():
                self.etude("prepare", self.text, "-o", folder, "--tokenizer", tokenizer, log=folder.name, threads=2)
        return folder

    def measure_speeds(self, trials: Iterable[Trial]) -> dict[str, dict[str, float]]:
        """The median of some measurements of each trial, in turns; kept, so that a trial has the same steps again.

        A trial that cannot be measured has no speed.
        """
        path = self.work / "speeds.json"
        speeds: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.is_file() else {}
        named = {trial.speed or trial.name for trial in trials}
        measured = {trial.name: name_run(self.plan, trial) for trial in self.plan.trials if trial.name in named}
        missing = [trial for trial in self.plan.trials if trial.name in named and measured[trial.name] not in speeds]
        if not self.device and missing:
            # kernels are compiled side by side, and found by what is timed alone; what fails here may do there
            with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as pool:
                list(pool.map(lambda trial: self.measure_speed(trial, 0.1), missing))
        found: dict[str, list[dict[str, float]]] = {trial.name: [] for trial in missing}
        for _ in range(self.plan.speed_rounds):
            for trial in missing:
                speed = self.measure_speed(trial, self.plan.speed_seconds)
                found[trial.name] += [speed] if speed is not None else []
        for name, all_found in found.items():
            if not all_found:
                continue
            median = sorted(all_found, key=lambda one: one["tokens_per_second"])[len(all_found) // 2]
            rates = " ".join(f"{one['tokens_per_second']:,.0f}" for one in all_found)
            print(f"{name}: {rates} tokens/s, {median['steps']} steps", flush=True)
            speeds[measured[name]] = median
        path.write_text(json.dumps(speeds, indent=1))
        return {name: speeds[run] for name, run in measured.items() if run in speeds}

    def measure_speed(self, trial: Trial, seconds: float) -> dict[str, float] | None:
        values = [self.plan.recipe, self.corpus(trial), seconds, self.plan.minutes]
        command = [sys.executable, "-c", SPEED, *map(str, values), *trial.words, *self.device]
        environment = os.environ | {"OMP_NUM_THREADS": str(self.threads)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:  # of this trial alone
            print(f"{trial.name}: not measured: {' '.join(done.stderr.splitlines()[-3:])}", flush=True)
            return None
        measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return measured

    def pretrain(self, trial: Trial, steps: float) -> Path:
        run: Path = self.work / "runs" / name_run(self.plan, trial)
        if (run / "model.safetensors").is_file():
            return run
        if (run / "recipe.yaml").is_file():
            self.etude("pretrain", "--resume", run, "-q", log=trial.name, threads=self.threads)
        else:
            budget = [f"train.steps={int(steps)}", "train.minutes=null"]
            self.etude(
                "pretrain", self.plan.recipe, self.corpus(trial), "-o", run, *trial.words, *budget, *self.device, "-q",
                log=trial.name, threads=self.threads,
            )  # fmt: skip
        return run

    def finetune(self, run: Path, name: str, seed: int) -> float:
        task, folder = self.plan.tasks[name], self.work / "tuned" / f"{run.name}-{name}-{seed}"
        if (folder / "recipe.yaml").is_file() and not (folder / "model.safetensors").is_file():
            self.etude("finetune", "--resume", folder, "-q", log=folder.name, threads=self.tuning_threads)
        elif not folder.exists():
            train = self._train_file(name, task.examples)
            words = ["--train", train, "--dev", self.tasks / name / "valid.jsonl.xz", "-o", folder, *task.set]
            words += [f"train.seed={seed}", *self.device, "-q"]
            self.etude("finetune", run, task.kind, *task.options, *words, log=folder.name, threads=self.tuning_threads)
        plan = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
        score = 100 * float(plan["scores"][task.score]["value"])
        print(f"{run.name}: {name} with seed {seed}: {score:.2f}", flush=True)
        return score

    def _train_file(self, name: str, examples: int | None) -> Path:
        whole: Path = self.tasks / name / "train.jsonl.xz"
        if examples is None:
            return whole
        part: Path = self.work / f"{name}-{examples}.jsonl"
        with self.lock:
            if not part.is_file():
                with lzma.open(whole, "rt", encoding="utf-8") as lines:
                    part.write_text("".join(line for _, line in zip(range(examples), lines, strict=False)), "utf-8")
        return part

    def describe_trial(self, trial: Trial, speed: Mapping[str, float], run: Path) -> dict[str, Any]:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        valid = [json.loads(line) for line in lines if '"valid"' in line]
        return {
            "trial": trial.name, "set": dict(trial.set), "tokenizer": trial.tokenizer, "minutes": self.plan.minutes,
            **speed, "valid": valid[-1] if valid else None,
        }  # fmt: skip


def describe_machine(commit: str | None) -> dict[str, object]:
    from etude.runs.model_card import describe_hardware, describe_versions

    if commit is None:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    date = datetime.now(UTC).isoformat(timespec="minutes")
    return {"commit": commit, "hardware": describe_hardware(), "versions": describe_versions(), "date": date}


def read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def mean_score(scores: Mapping[str, list[float]]) -> float:
    return statistics.fmean(statistics.fmean(values) for values in scores.values())


def format_losses(results: list[dict[str, Any]]) -> str:
    """One line a trial without tasks, by the loss on the held-out text, the best first."""
    lines = ["trial | held-out loss | tokens | steps | settings"]
    for result in sorted(results, key=lambda result: result["valid"]["loss"]):
        settings = " ".join(f"{key}={value}" for key, value in result["set"].items())
        row = [
            result["trial"],
            f"{result['valid']['loss']:.3f}",
            f"{result['valid']['tokens']:,}",
            f"{result['steps']:g}",
            settings,
        ]
        lines.append(" | ".join(row))
    return "\n".join(lines)


def format_table(results: list[dict[str, Any]]) -> str:
    """One line a trial, the best first, with the difference from `base` and its standard error over tasks and seeds."""
    if not results[0]["scores"]:
        return format_losses(results)
    base = next((result["scores"] for result in results if result["trial"] == "base"), None)
    tasks = list(dict.fromkeys(task for result in results for task in result["scores"]))
    common = [task for task in tasks if all(task in result["scores"] for result in results)]
    lines = [" | ".join(["trial", *tasks, "mean", "beside base", "steps", "settings"])]

    def mean_of_common(result: dict[str, Any]) -> float:
        """Tasks may have changed between visits: only those that all trials have compare them."""
        return mean_score({task: result["scores"][task] for task in common}) if common else float("nan")

    for result in sorted(results, key=lambda result: -mean_of_common(result)):
        scores = result["scores"]
        cells = [f"{statistics.fmean(scores[task]):.1f}" if task in scores else "–" for task in tasks]
        beside = ""
        if base is not None and result["trial"] != "base":
            # the first seeds of both, where one has more
            gaps = [a - b for task in common for a, b in zip(scores[task], base[task], strict=False)]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
            beside = f"{statistics.fmean(gaps):+.1f} ± {error:.1f}" if gaps else ""
        settings = " ".join(f"{key}={value}" for key, value in result["set"].items())
        settings += f" {result['tokenizer']}" if result["tokenizer"] else ""
        row = [
            result["trial"],
            *cells,
            f"{mean_of_common(result):.2f}",
            beside,
            f"{result['steps']:g}",
            settings.strip(),
        ]
        lines.append(" | ".join(row))
    return "\n".join(lines)


@dataclass
class Clock:
    """The seconds that a trial takes, by those that have ended; before, as many as it may take."""

    plan: Plan
    parallel: int
    pretraining: float = 0.0
    finetuning: float = 0.0

    def expect(self) -> float:
        share = 60 * self.plan.minutes * self.parallel  # of a machine that is shared
        tuning = self.finetuning or (0.5 * share if self.plan.tasks else 0.0)
        return (self.pretraining or 1.3 * share) + tuning


def run_trials(plan: Plan, arguments: argparse.Namespace, path: Path) -> None:
    start = time.monotonic()
    done = find_done(plan, path)
    trials = [trial for trial in plan.trials if trial.name not in done]
    trials = [trial for trial in trials if not arguments.only or trial.name in arguments.only]
    workshop, machine = Workshop(plan, arguments), describe_machine(arguments.commit)
    clock, lock = Clock(plan, arguments.parallel), threading.Lock()
    speeds = workshop.measure_speeds(trials)

    def pretrain(trial: Trial) -> Path | None:
        if (trial.speed or trial.name) not in speeds:
            print(f"{trial.name}: not begun, its speed is not known", flush=True)
            return None
        if arguments.until and time.monotonic() - start + clock.expect() > 60 * arguments.until:
            print(f"{trial.name}: not begun, it would not end in time", flush=True)
            return None
        begun = time.monotonic()
        try:
            run = workshop.pretrain(trial, speeds[trial.speed or trial.name]["steps"])
        except Exception as error:  # of this trial alone
            print(f"{trial.name}: failed: {error}", flush=True)
            return None
        seconds = time.monotonic() - begun
        clock.pretraining = max(clock.pretraining, seconds)
        print(f"{trial.name}: pre-trained in {seconds:.0f} s", flush=True)
        return run

    def finetune(run: Path, pool: ThreadPoolExecutor) -> dict[str, list[Future[float]]]:
        scores: dict[str, list[Future[float]]] = {name: [] for name in plan.tasks}
        for seed in range(plan.seeds):  # a seed of all tasks first: so much can be compared if no more is done
            for name in plan.tasks:
                scores[name].append(pool.submit(workshop.finetune, run, name, seed))
        return scores

    def finish(trial: Trial, run: Path, scores: Mapping[str, list[Future[float]]]) -> None:
        begun = time.monotonic()
        try:
            values = {name: [future.result() for future in futures] for name, futures in scores.items()}
        except Exception as error:
            print(f"{trial.name}: failed: {error}", flush=True)
            return
        clock.finetuning = max(clock.finetuning, time.monotonic() - begun)
        result = workshop.describe_trial(trial, speeds[trial.speed or trial.name], run) | {"scores": values}
        with lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result | machine) + "\n")
        score = mean_score(values) if plan.tasks else result["valid"]["loss"]
        print(f"{trial.name}: {score:.3f} after {time.monotonic() - start:.0f} s", flush=True)

    with (
        ThreadPoolExecutor(arguments.finetunings) as tunings,
        ThreadPoolExecutor(max(1, len(trials))) as collectors,
        ThreadPoolExecutor(arguments.parallel) as slots,
    ):
        endings: list[Future[None]] = []

        def run_one(trial: Trial) -> None:
            run = pretrain(trial)
            if run is not None:
                endings.append(collectors.submit(finish, trial, run, finetune(run, tunings)))

        list(slots.map(run_one, trials))
        for ending in endings:
            ending.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=Path)
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("tasks", type=Path, nargs="?")
    parser.add_argument("work", type=Path, nargs="?")
    parser.add_argument("--parallel", type=int, default=1, help="trials at once")
    parser.add_argument("--finetunings", type=int, default=2, help="fine-tunings at once")
    parser.add_argument("--tokenizer", help="in place of the recipe's, such as BERT's vocab.txt")
    parser.add_argument("--commit", help="of this code, where there is no repository")
    parser.add_argument("--until", type=float, help="minutes from now: begin no trial that would end later")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, whatever is there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    plan = read_plan(arguments.trials)
    path = arguments.results / f"{arguments.trials.stem}.jsonl"
    if not arguments.table:
        if arguments.work is None:
            parser.error("name TEXT, TASKS and WORK")
        arguments.work.mkdir(parents=True, exist_ok=True)
        run_trials(plan, arguments, path)
    results = [one for one in read_results(path) if one["minutes"] == plan.minutes]
    print(format_table(results) if results else "There are no results yet.")


if __name__ == "__main__":
    main()
