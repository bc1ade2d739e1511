"""Knowledge-graph embeddings beside PyKEEN in one process, in turns: triples a second, and filtered MRR.

Both train the same score with the same width, loss, margin, batch, negatives, learning rate (constant), optimiser
(Adam), epochs and seeds, on the same triples, in float32. Both results are ranked by one evaluator, ours, filtered and
with mean ties, on the graph's valid triples; --own-evaluator asks PyKEEN's evaluator, too. Speed is that of the median
epoch behind the first, which compiles, records and warms up on either side; the whole time is printed beside it.

What differs: `--share` triples have the same negatives here (1: each has its own, as in PyKEEN); several numbers are
several sides. Either library replaces one side of a triple in all its negatives; PyKEEN the head in the first half of a
batch, the tail in the second, here by a coin for each triple. PyKEEN's RotatE takes the L2 norm of the complex
differences where the paper's code adds up their moduli, so PyKEEN's evaluator ranks its vectors (mean ties, too).

Each epoch is a line on stderr; the file of --json is written anew after each training, so a run that is cut off leaves
what it has. --limit SECONDS starts no training that would end behind it, as long as the side's last one.

    python benchmarks/kge_pykeen.py --graph fb15k237 --score transe --epochs 20 --seeds 3            # one GPU
    python benchmarks/kge_pykeen.py --epochs 6 --seeds 5 --share 128 1 --limit 300 --json kge.json
    python benchmarks/kge_pykeen.py --epochs 6 --seeds 4 --share 128 1 --eager --limit 420      # where is the gap?
    python benchmarks/kge_pykeen.py --same-batches 50 --share 128 1            # same start and batches: same vectors?
    python benchmarks/kge_pykeen.py --same-batches 1325 --share 1              # five epochs of FB15k-237: same MRR?
    python benchmarks/kge_pykeen.py --epochs 5 --seeds 8 --share 1 8 16 --limit 500    # which share has PyKEEN's MRR?
    python benchmarks/kge_pykeen.py --graph wn18rr --score rotate --epochs 20 --seeds 3
    python benchmarks/kge_pykeen.py --device cpu --width 64 --negatives 16 --epochs 3 --seeds 2 --triples 30000

PyKEEN 1.11 needs, beside torch, numpy, scipy, scikit-learn, pandas, click, tqdm, requests, pyyaml and
typing_extensions, the wheels of WHEELS below; all are pure Python, so they run under any version of it:

    pip install --no-deps --target SITE $(python benchmarks/kge_pykeen.py --wheels)
    PYTHONPATH=SITE python benchmarks/kge_pykeen.py ...
"""

from __future__ import annotations

import argparse
import functools
import json
import lzma
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

WHEELS = (
    "pykeen==1.11.1", "class_resolver", "docdata", "more_click", "more_itertools", "pystow", "tabulate",
    "torch_max_mem", "torch_ppr",
)  # fmt: skip
FILES = {
    "fb15k237": ("fb15k237_train.tsv.xz", "fb15k237_valid.tsv.xz"),
    "wn18rr": ("wn18rr_text_train.tsv.xz", "wn18rr_text_valid.tsv.xz"),
}
# width (complex numbers of RotatE), negatives, batch, margin, alpha: the RotatE code's settings of TransE and RotatE
PUBLISHED = {"fb15k237": (1000, 256, 1024, 9.0, 1.0), "wn18rr": (500, 1024, 512, 6.0, 0.5)}
COLUMNS = ("triples_per_second", "seconds", "mrr", "hits")


@dataclass
class Outcome:
    """One training: how fast, how well."""

    triples_per_second: float
    seconds: float  # from the call of the trainer to its return
    mrr: float
    hits: float
    own_mrr: float | None = None  # by PyKEEN's evaluator


class EpochClock:
    """The time at the end of each epoch of one training, each told on stderr."""

    def __init__(self, side: str, options: argparse.Namespace) -> None:
        self.side, self.options = side, options
        self.started = time.perf_counter()
        self.times: list[float] = []

    def tick(self) -> None:
        if self.options.device != "cpu":
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        count, seconds = len(self.times), self.times[-1] - self.started
        print(f"  {self.side}: epoch {count} of {self.options.epochs}, {seconds:.1f} s", file=sys.stderr, flush=True)


def read_triples(path: Path) -> list[list[str]]:
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
        return [line.rstrip("\n").split("\t")[:3] for line in file if line.strip()]


def read_graph(folder: Path, name: str, limit: int | None) -> Any:
    """The graph of two files; valid triples with entities or relations that no train triple has are left out."""
    from etude.graph.graph import Graph

    train, valid = (read_triples(folder / file) for file in FILES[name])
    train = train[:limit]
    entities = sorted({triple[side] for triple in train for side in (0, 2)})
    relations = sorted({triple[1] for triple in train})
    entity_ids, relation_ids = ({name: i for i, name in enumerate(names)} for names in (entities, relations))
    known = [t for t in valid if t[0] in entity_ids and t[2] in entity_ids and t[1] in relation_ids]
    encode = lambda triples: [[entity_ids[h], relation_ids[r], entity_ids[t]] for h, r, t in triples]  # noqa: E731
    return Graph.from_triples(encode(train), entities, relations, valid=encode(known))


def build_recipe(options: argparse.Namespace, seed: int, share: int = 1, compiled: bool = True) -> Any:
    from etude.recipes.schema import Recipe

    complex_parts = 2 if options.score in ("rotate", "complex") else 1
    init_range = (options.margin + 2) / options.width
    is_distance = options.score in ("transe", "rotate")
    return Recipe.load(
        "transe-fb15k237",
        {
            "model.score": options.score,
            "model.width": options.width * complex_parts,
            "model.init": "range" if is_distance else "normal",
            "model.init_range": init_range if is_distance else 1 / math.sqrt(options.width),
            "objective.margin": options.margin,
            "objective.adversarial": options.alpha,
            "objective.negatives": options.negatives,
            "objective.share": share,
            "objective.row_tokens": max(share, 128),
            "objective.subsampling": False,
            "objective.filter_negatives": False,  # PyKEEN does not look either
            "train.steps": 1,
            "train.batch_tokens": options.batch,
            "train.lr": options.lr,
            "train.lr_schedule": "constant",
            "train.seed": seed,
            "train.compile": None if compiled else False,
            "train.device": options.device,
            "train.save_every": 0,
            "train.eval_every": 0,
        },
    )


def rank(model: Any, graph: Any, count: int) -> tuple[float, float]:
    """MRR and hits@10 over both sides of the first `count` valid triples."""
    from etude.graph.known_answers import KnownAnswers
    from etude.objectives.parts.link_ranks import rank_answers

    heads, relations, tails = graph.triples("valid")[:count].T.astype(np.int64)
    wants_head = np.repeat([True, False], len(heads))
    ranks = rank_answers(
        model.eval(), np.concatenate([tails, heads]), np.tile(relations, 2), wants_head,
        np.concatenate([heads, tails]), KnownAnswers.from_graph(graph),
    )  # fmt: skip
    return float((1 / ranks).mean()), float((ranks <= 10).mean())


def train_ours(options: argparse.Namespace, graph: Any, seed: int, share: int, compiled: bool = True) -> Outcome:
    from etude.recipes.learner import build_learner
    from etude.runs.source import open_source, resolve_for
    from etude.train.loop import Loop

    recipe = build_recipe(options, seed, share, compiled)
    source = open_source(graph, recipe)
    recipe = resolve_for(recipe, source)
    steps = len(source.triples) // options.batch
    model, objective = build_learner(recipe, None)
    device = torch.device(options.device)
    clock = EpochClock(f"ours, share {share}{'' if compiled else ', eager'}, seed {seed}", options)

    class Timed(Loop):
        def advance(self, step: Any) -> None:
            super().advance(step)
            if self.state.step % steps == 0:
                clock.tick()

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        loop = Timed(
            Path(folder), model, objective, objective.rows(source, seed), recipe.train,
            total=steps * options.epochs, device=device,
        )  # fmt: skip
        loop.run()
        seconds = time.perf_counter() - start
        if loop.state.step < loop.total:  # the loop ends well on SIGTERM: half a training is no result
            sys.exit(f"Stopped by a signal at step {loop.state.step} of {loop.total}.")
    mrr, hits = rank(model, graph, options.ranked)
    return Outcome(rate(clock.times, steps * options.batch), seconds, mrr, hits)


def rate(times: list[float], triples: int) -> float:
    """Triples a second of the median epoch behind the first."""
    return float(triples / statistics.median(np.diff(times))) if len(times) > 1 else float("nan")


def build_pykeen(options: argparse.Namespace, graph: Any, seed: int) -> tuple[Any, Any]:
    """PyKEEN's model with its loss, and its triples."""
    from pykeen.losses import NSSALoss
    from pykeen.models import ComplEx, DistMult, RotatE, TransE
    from pykeen.triples import CoreTriplesFactory

    factory = CoreTriplesFactory(
        torch.from_numpy(graph.triples("train").astype(np.int64)), len(graph.entities), len(graph.relations)
    )
    loss = NSSALoss(margin=options.margin, adversarial_temperature=options.alpha)
    init_range = (options.margin + 2) / options.width
    uniform = functools.partial(torch.nn.init.uniform_, a=-init_range, b=init_range)
    normal = functools.partial(torch.nn.init.normal_, std=1 / math.sqrt(options.width))
    shared: dict[str, Any] = {
        "triples_factory": factory,
        "embedding_dim": options.width,
        "loss": loss,
        "random_seed": seed,
    }
    if options.score == "transe":
        model = TransE(
            **shared, scoring_fct_norm=1, entity_initializer=uniform, relation_initializer=uniform,
            entity_constrainer=None,
        )  # fmt: skip
    elif options.score == "rotate":
        model = RotatE(**shared, entity_initializer=uniform)
    elif options.score == "distmult":
        model = DistMult(
            **shared, entity_initializer=normal, relation_initializer=normal, entity_constrainer=None, regularizer=None
        )
    else:
        model = ComplEx(**shared, entity_initializer=normal, relation_initializer=normal, regularizer=None)
    return model.to(options.device), factory


def train_pykeen(options: argparse.Namespace, graph: Any, seed: int) -> Outcome:
    from pykeen.training import SLCWATrainingLoop
    from pykeen.training.callbacks import TrainingCallback

    model, factory = build_pykeen(options, graph, seed)
    clock = EpochClock(f"pykeen, seed {seed}", options)

    class Clock(TrainingCallback):
        def post_epoch(self, epoch: int, epoch_loss: float, **kwargs: Any) -> None:
            clock.tick()

    trainer = SLCWATrainingLoop(
        model=model, triples_factory=factory, optimizer=torch.optim.Adam(model.parameters(), lr=options.lr),
        negative_sampler="basic", negative_sampler_kwargs={"num_negs_per_pos": options.negatives},
    )  # fmt: skip
    start = time.perf_counter()
    trainer.train(
        factory, num_epochs=options.epochs, batch_size=options.batch, use_tqdm=False, use_tqdm_batch=False,
        callbacks=[Clock()], drop_last=True,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    steps = len(graph.triples("train")) // options.batch
    own = evaluate_pykeen(model, graph, options) if options.own_evaluator or options.score == "rotate" else (None, None)
    mrr, hits = own if options.score == "rotate" else rank(to_ours(model, options, graph), graph, options.ranked)
    return Outcome(rate(clock.times, steps * options.batch), seconds, mrr, hits, own[0])


def compare_updates(options: argparse.Namespace, graph: Any, share: int) -> None:
    """Print how far both libraries' vectors part when they start alike and read the same triples and negatives.

    Over as many steps as a whole training the MRRs tell whether the updates differ: draws, which scatter the MRR from
    seed to seed, are the same.
    """
    from etude.recipes.learner import build_learner
    from etude.runs.source import open_source, resolve_for
    from etude.train.loop import Loop

    theirs, _ = build_pykeen(options, graph, 0)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=options.lr)
    recipe = build_recipe(options, 0, share)
    source = open_source(graph, recipe)
    model, objective = build_learner(resolve_for(recipe, source), None)
    copy_vectors(theirs, model, options)
    begin = model.entities.weight.detach().clone()
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(
            Path(folder), model, objective, objective.rows(source, 0), recipe.train,
            total=options.same_batches, device=device,
        )  # fmt: skip
        for step in loop.loader.steps(0, options.same_batches):
            [batch] = step.batches
            positives, negatives = list_triples(batch, share)
            loop.advance(step)
            optimizer.zero_grad()
            negative = theirs.score_hrt(negatives.flatten(0, 1).to(device)).view(negatives.shape[:2])
            negative = negative.masked_fill((negatives == positives[:, None]).all(-1).to(device), -1e4)  # is none
            loss = theirs.loss.process_slcwa_scores(theirs.score_hrt(positives.to(device)), negative)
            loss.backward()
            optimizer.step()
    expected = to_ours(theirs, options, graph)
    for name, ours, other in (
        ("entities", model.entities.weight, expected.entities.weight),
        ("relations", model.relations.weight, expected.relations.weight),
    ):
        gaps = (ours - other).abs()
        count = options.same_batches
        print(f"share {share}, {count} steps: {name} differ by {gaps.mean():.2g} in the mean, {gaps.max():.2g} at most")
    print(f"entities moved by {(model.entities.weight - begin.to(device)).abs().mean():.2g} in the mean")
    (mrr, hits), (their_mrr, their_hits) = (rank(vectors, graph, options.ranked) for vectors in (model, expected))
    print(f"MRR {mrr:.5f} here, {their_mrr:.5f} PyKEEN; hits@10 {hits:.4f}, {their_hits:.4f}", flush=True)


def list_triples(batch: Any, share: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The true triples (B, 3) and the corrupted ones (B, n, 3) of one of our batches."""
    known, relations, answers, wants_head = batch.tokens, batch.relations, batch.answers, batch.wants_head
    negatives = batch.negatives.repeat_interleave(share, 0)  # (B, n)

    def order(candidates: torch.Tensor) -> torch.Tensor:
        shape = candidates.shape
        fixed, kinds, heads = (x[:, None].expand(shape) for x in (known, relations, wants_head))
        return torch.stack([torch.where(heads, candidates, fixed), kinds, torch.where(heads, fixed, candidates)], -1)

    return order(answers[:, None])[:, 0], order(negatives)


def copy_vectors(theirs: Any, ours: Any, options: argparse.Namespace) -> None:
    tables = (theirs.entity_representations, theirs.relation_representations)
    entities, relations = (table[0](indices=None).detach().cpu() for table in tables)
    if options.score == "complex":
        entities, relations = (torch.cat([table.real, table.imag], -1) for table in (entities, relations))
    with torch.no_grad():
        ours.entities.weight.copy_(entities)
        ours.relations.weight.copy_(relations)


def to_ours(model: Any, options: argparse.Namespace, graph: Any) -> Any:
    """PyKEEN's vectors in our model, so that one evaluator ranks both."""
    from etude.recipes.learner import build_learner
    from etude.runs.source import open_source, resolve_for

    recipe = build_recipe(options, 0)
    ours, _ = build_learner(resolve_for(recipe, open_source(graph, recipe)), None)
    copy_vectors(model, ours, options)
    return ours.to(options.device)


def evaluate_pykeen(model: Any, graph: Any, options: argparse.Namespace) -> tuple[float, float]:
    """MRR and hits@10 by PyKEEN's evaluator."""
    from pykeen.evaluation import RankBasedEvaluator

    valid = torch.from_numpy(graph.triples("valid")[: options.ranked].astype(np.int64))
    known = [torch.from_numpy(graph.triples(split).astype(np.int64)) for split in graph.splits]
    result = RankBasedEvaluator(filtered=True).evaluate(
        model, valid, additional_filter_triples=known, batch_size=64, use_tqdm=False
    )
    names = ("both.realistic.inverse_harmonic_mean_rank", "both.realistic.hits_at_10")
    mrr, hits = (float(result.get_metric(name)) for name in names)
    return mrr, hits


def error_of(values: list[float]) -> float:
    """The standard error of their mean."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else float("nan")


def spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.4g} ± {error_of(values):.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=sorted(FILES), default="fb15k237")
    parser.add_argument("--data", type=Path, default=Path("shared/data/knowledge"))
    parser.add_argument("--score", choices=("transe", "rotate", "distmult", "complex"), default="transe")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, help="of RotatE and ComplEx complex numbers")
    parser.add_argument("--negatives", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--margin", type=float)
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument(
        "--share", type=int, nargs="+", default=[128], help="triples that share negatives here; 1: as PyKEEN"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="so that several processes share the seeds")
    parser.add_argument("--triples", type=int, help="only so many train triples")
    parser.add_argument("--ranked", type=int, default=5000, help="valid triples that are ranked")
    parser.add_argument("--own-evaluator", action="store_true", help="PyKEEN's MRR of its own vectors, too")
    parser.add_argument("--only", choices=("ours", "pykeen"))
    parser.add_argument("--eager", action="store_true", help="our sides once more, neither compiled nor recorded")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds of all trainings together")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--same-batches", type=int, help="compare so many updates on the same batches, and stop")
    parser.add_argument("--wheels", action="store_true", help="print the wheels that PyKEEN needs, and stop")
    options = parser.parse_args()
    if options.wheels:
        print(" ".join(WHEELS))
        return
    width, negatives, batch, margin, alpha = PUBLISHED[options.graph]
    options.width, options.negatives = options.width or width, options.negatives or negatives
    options.batch = options.batch or batch
    options.margin = margin if options.margin is None else options.margin
    options.alpha = alpha if options.alpha is None else options.alpha
    if options.only != "ours":  # before ours: it registers every optimiser there is by the name of its class
        import pykeen.evaluation
        import pykeen.training  # noqa: F401
    graph = read_graph(options.data, options.graph, options.triples)
    print(f"{options.graph}: {graph!r}; {options.score}, {vars(options)}", file=sys.stderr, flush=True)
    if options.same_batches:
        for share in options.share:
            compare_updates(options, graph, share)
        return
    trainers: dict[str, Callable[[int], Outcome]] = {
        f"ours {share}": functools.partial(train_ours, options, graph, share=share) for share in options.share
    }
    if options.eager:  # the same steps, neither compiled nor recorded
        trainers |= {
            f"ours {share} eager": functools.partial(train_ours, options, graph, share=share, compiled=False)
            for share in options.share
        }
    trainers["pykeen"] = functools.partial(train_pykeen, options, graph)
    results: dict[str, list[Outcome]] = {name: [] for name in trainers if options.only in (None, name.split()[0])}
    started = time.perf_counter()
    whole: dict[str, float] = dict.fromkeys(results, 0.0)  # seconds of a side's last training, ranking included
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        names = list(results) if seed % 2 == 0 else list(reversed(results))  # in turns
        if time.perf_counter() - started + sum(whole.values()) > options.limit:
            print(f"seed {seed} would end behind {options.limit:.0f} s: left out", file=sys.stderr, flush=True)
            break
        for name in names:
            begin = time.perf_counter()
            results[name].append(trainers[name](seed))
            whole[name] = time.perf_counter() - begin
            print(f"  seed {seed} {name:>8}: {results[name][-1]}", flush=True)
            if options.json:
                content = {side: [vars(outcome) for outcome in outcomes] for side, outcomes in results.items()}
                options.json.write_text(json.dumps(content, indent=1) + "\n")
    print_table(options, results)


def print_table(options: argparse.Namespace, results: dict[str, list[Outcome]]) -> None:
    """Mean and standard error of each side, and the differences from PyKEEN.

    Speeds are paired by seed, since the sides take turns; MRRs are not, since equal seeds draw nothing in common.
    """
    print(f"\n{options.graph} {options.score} on {options.device}, {options.epochs} epochs, mean ± standard error")
    print(f"{'':14}{'triples/s':>20}{'seconds':>18}{'MRR':>20}{'hits@10':>20}")
    for name, outcomes in results.items():
        columns = [spread([vars(outcome)[key] for outcome in outcomes]) for key in COLUMNS]
        print(f"{name:14}{columns[0]:>20}{columns[1]:>18}{columns[2]:>20}{columns[3]:>20}")
    if "pykeen" not in results:
        return
    for name, outcomes in results.items():
        if name != "pykeen":
            pairs = zip(outcomes, results["pykeen"], strict=True)
            ratios = [own.triples_per_second / other.triples_per_second for own, other in pairs]
            ours, theirs = ([outcome.mrr for outcome in each] for each in (outcomes, results["pykeen"]))
            gap = statistics.fmean(ours) - statistics.fmean(theirs)
            error = math.hypot(error_of(ours), error_of(theirs))
            print(
                f"{name}: {spread(ratios)} times PyKEEN's triples a second; MRR {gap:+.4f} ± {error:.4f} from its own"
            )


if __name__ == "__main__":
    main()
