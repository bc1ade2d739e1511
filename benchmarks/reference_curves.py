"""Makes the reference curves of the toy recipes: loss against tokens on the built-in world, stored with the recipes.

    python benchmarks/reference_curves.py bert-toy gpt2-toy       # writes src/etude/recipes/curves/<name>.json
    python benchmarks/reference_curves.py --all
    python benchmarks/reference_curves.py --spread bert-toy       # how far apart equal runs are; writes nothing

A file holds a short run, which the tests repeat, and the whole recipe on four megabytes, with the losses of a unigram
and a Kneser-Ney bigram on the same held-out text; of translation recipes the short run alone, on pairs. Every run is
an ordinary run of `etude pretrain` in float32.

Where the tolerances come from: `--spread` repeats the short run with another number of threads, in micro-batches, with
other seeds and with other rates. For gpt2-toy and electra-toy (2026-11-15, aarch64 CPU, torch 2.13.0) what differs by
rounding alone was within 1e-6 of the stored loss over the 20 steps, another seed 0.04 to 0.17 away, a rate off by a
fifth 0.086 or more, one off by a factor of three 0.18 or more. The tolerance of a short run, 0.02, leaves room for
other machines and versions and lies well below the rest; so does 0.005 for the discriminator, whose loss moves by 0.012
or more. Of those that came later (2026-11-19, x86-64 CPU) rounding was within 1e-5, another seed 0.06 or more away, of
word vectors 0.005 to 0.03; a rate off by a fifth 0.07 or more, of Collobert's 0.01, of GloVe's 1e-6, whose biases have
a rate of their own: a short run of vectors tells a change of what is counted and drawn. Over a whole run rounding may
grow to the size of a change of seed. Between this machine and another (x86_64,
torch 2.11) the end of a causal toy differed by 2e-5 at most, that of a masked one, which leaves a plateau sooner or
later, by 0.05 and 0.17: hence 0.25 for those.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from etude.pretraining import pretrain as pretraining
from etude.pretraining.loop import held_out
from etude.recipes import curves
from etude.recipes.schema import Recipe
from etude.runs.model_card import describe_hardware, describe_versions
from etude.runs.run import Run
from etude.text.corpus.bigram_baseline import Ends, bigram_nats, unigram_nats
from etude.text.corpus.cloze_baseline import cloze_nats
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare

SHORT = curves.Text(megabytes=0.06)
SHORT_PAIRS = curves.Text(megabytes=0, pairs=400)
WHOLE = curves.Text(megabytes=4.0)
EXACT = {"train.precision": "float32", "train.device": "cpu", "train.save_every": 0}
SHORT_RUN = {**EXACT, "train.steps": 20, "train.batch_tokens": 512, "train.log_every": 4, "train.eval_every": 0}
WHOLE_RUN = {**EXACT, "train.eval_tokens": 24_000}
OF_KIND: dict[str, dict[str, Any]] = {
    "translate": {"train.steps": 12, "train.batch_tokens": 512, "train.warmup": 2, "objective.row_tokens": 512},
    "bilm": {"train.steps": 10, "train.batch_tokens": 160, "train.log_every": 2},  # an LSTM goes word by word
    "cooccurrence": {"train.batch_tokens": 2000},  # a row has 1,000
}
# what is compared of a run, and how closely: of the short one, of the whole one
VALUES: dict[str, tuple[curves.Values, curves.Values]] = {
    "masked": ({"loss": 0.02}, {"mlm": 0.25}),
    "causal": ({"loss": 0.02}, {"loss": 0.15}),
    "bilm": ({"loss": 0.02}, {"loss": 0.15}),
    "translate": ({"loss": 0.02}, {}),
    "replaced": ({"generator": 0.02, "discriminator": 0.005}, {"generator": 0.15, "discriminator": 0.03}),
    "cloze": ({"loss": 0.02}, {"loss": 0.25}),
    # losses of vectors say little of what they are worth: no whole run; those with loops of their own are compiled for
    # longer than the tests should take
    "cooccurrence": ({"loss": 0.002}, {}),
    "ranking": ({"loss": 0.02}, {}),
}
ENDS: dict[str, Ends | None] = {"causal": "documents", "bilm": "sentences"}  # what is predicted beside the text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--all", action="store_true", help="every recipe that has a curve")
    parser.add_argument("--only", choices=["short", "whole"], help="keep the other one of the file that is there")
    parser.add_argument("--spread", action="store_true", help="repeat the short runs, and print how far apart they are")
    parser.add_argument("--work", type=Path, help="keep texts, corpora and runs in this folder")
    asked = parser.parse_args()
    names = curves.recorded_recipes() if asked.all else asked.recipes
    with tempfile.TemporaryDirectory() as folder:
        work = asked.work or Path(folder)
        for name in names:
            if asked.spread:
                print_spread(name, work)
            else:
                record(name, work, asked.only)


def record(name: str, work: Path, only: str | None) -> None:
    known = curves.load(name) if only and name in curves.recorded_recipes() else None
    kind = Recipe.load(name).objective_kind
    short, whole = (known.short, known.whole) if known else (None, None)
    if only != "whole":
        settings = {**SHORT_RUN, **OF_KIND.get(kind, {})}
        text = SHORT_PAIRS if kind == "translate" else SHORT
        run = train(name, text, settings, work / f"short-{kind}")
        short = curve(run, text, "train", settings, VALUES[kind][0], {})
    if only != "short" and VALUES[kind][1]:
        run = train(name, WHOLE, WHOLE_RUN, work / "whole")
        baselines = held_out_baselines(run.corpus(), kind)
        whole = curve(run, WHOLE, "valid", WHOLE_RUN, VALUES[kind][1], baselines)
        last = run.metrics("valid")[-1]
        print(name, json.dumps(last), json.dumps(baselines), flush=True)
    assert short is not None, "a whole run alone: record the short one first"
    made = {
        "command": f"python benchmarks/reference_curves.py {name}",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "versions": describe_versions(),
        "hardware": describe_hardware(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    curves.PLACE.mkdir(exist_ok=True)
    (curves.PLACE / f"{name}.json").write_text(curves.Reference(name, made, short, whole).dump(), encoding="utf-8")


def curve(
    run: Run,
    text: curves.Text,
    split: str,
    settings: dict[str, Any],
    tolerance: curves.Values,
    baselines: curves.Values,
) -> curves.Curve:
    points = [
        {"step": line["step"], "tokens": line["tokens"], **{name: round(line[name], 6) for name in tolerance}}
        for line in run.metrics(split)
    ]
    return curves.Curve(text, split, settings, tolerance, points, baselines)


def train(name: str, text: curves.Text, settings: dict[str, Any], work: Path) -> Run:
    recipe = Recipe.load(name)
    place = work / f"corpus-{recipe.tokenizer.replace(':', '-').replace(',', '-')}"
    if not place.is_dir():
        work.mkdir(parents=True, exist_ok=True)
        file, pairs = text.write(work)
        prepare(str(file), place, recipe.tokenizer, valid=text.valid, workers=0, pairs=pairs)
    return pretraining.pretrain(
        recipe, place, work / f"{name}-{len(list(work.iterdir()))}", overrides=settings, quiet=True
    )


def held_out_baselines(corpus: Corpus, kind: str) -> curves.Values:
    """What knowing the frequencies, the token before, or (for blanks) both neighbours would give on the same text."""
    valid = held_out(corpus)
    assert valid is not None
    found = {
        "unigram": unigram_nats(corpus, valid, ENDS.get(kind)),
        "bigram": bigram_nats(corpus, valid, ENDS.get(kind)),
    }
    if kind in ("masked", "replaced", "cloze"):
        found["both neighbours"] = cloze_nats(corpus, valid)
    return {name: round(value, 4) for name, value in found.items()}


def print_spread(name: str, work: Path) -> None:
    recipe = Recipe.load(name)
    tolerance = VALUES[recipe.objective_kind][0]
    settings = {**SHORT_RUN, **OF_KIND.get(recipe.objective_kind, {})}
    text = SHORT_PAIRS if recipe.objective_kind == "translate" else SHORT
    plain = curve(train(name, text, settings, work), text, "train", settings, tolerance, {})
    others: dict[str, dict[str, Any]] = {"threads": {}, "micro-batches": {"train.micro_tokens": 256}}
    others |= {f"seed {seed}": {"train.seed": seed} for seed in (1, 2, 3)}
    others |= {f"rate times {by:g}": {"train.lr": by * recipe.train.lr} for by in (0.33, 0.8, 1.25, 3.0)}
    if recipe.objective_kind == "ranking":  # a step has one row, which is never split
        del others["micro-batches"]
    threads = torch.get_num_threads()
    for what, changes in others.items():
        torch.set_num_threads(max(1, 3 - threads) if what == "threads" else threads)
        run = train(name, text, {**settings, **changes}, work)
        lines = {line["step"]: line for line in run.metrics("train")}
        apart = {
            key: max(abs(lines[int(point["step"])][key] - point[key]) for point in plain.points) for key in tolerance
        }
        print(f"{name}, {what}: at most " + ", ".join(f"{key} {value:.6f}" for key, value in apart.items()), flush=True)


if __name__ == "__main__":
    main()
