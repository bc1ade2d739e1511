"""`etude pretrain`: a recipe and a corpus become a Run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from etude.errors import UserError
from etude.graph.graph import Graph
from etude.graph.graph_split import GraphSplit
from etude.hub.run_weights import save_final
from etude.nn.deferred_weights import DeferredWeights
from etude.objectives.base import PretrainingObjective
from etude.pretraining.budget import fix_budget
from etude.pretraining.continued import (
    build_continued,
    check_tokenizers,
    continued_recipe,
    describe_start,
    holds_model,
    read_start,
    read_start_file,
    rebuild_continued,
    start_file,
)
from etude.pretraining.deferral import build_or_defer
from etude.pretraining.first_weights import FirstWeights, rebuild_started
from etude.pretraining.loop import Learner, build_loop
from etude.pretraining.restart import is_own_run, is_restarted
from etude.pretraining.setup import load_recipe, resolve_recipe
from etude.pretraining.student import build_run_learner, describe_teacher
from etude.recipes.document import Overrides
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.completion import complete_finished
from etude.runs.model_card import format_model_card
from etude.runs.run import Run, corpus_origin
from etude.runs.source import Source, open_source, read_origin
from etude.runs.staging import refuse_existing
from etude.runs.training import discard_untrained, lock_run, train_loop
from etude.text.corpus.corpus import Corpus
from etude.train import schedule
from etude.train.averaging import load_average
from etude.train.device import make_deterministic, resolve_device
from etude.train.loop import Loop
from etude.train.parallel import Ranks, connect
from etude.train.progress import Progress

log = logging.getLogger("etude")


def pretrain(
    recipe: str | Path | Recipe,
    corpus: str | Path | Source | Graph,
    out: str | Path,
    *,
    quiet: bool = False,
    overrides: Overrides = (),
    deadline: float | None = None,
    shorten: bool = False,
    start: str | Path | None = None,
    entities: str | Path | None = None,
) -> Run:
    """Pre-train `recipe` on `corpus` into the folder `out`; `overrides` as {"train.steps": 1000}.

    A recipe whose objective learns from triples takes a graph in the place of the corpus.

    A folder with a model in the place of the recipe goes on from its weights (pretraining/continued.py). `start` and
    `entities` give a recipe its first weights (pretraining/first_weights.py).

    Where torchrun starts its processes again, they go on with the run that the first start made (`--max-restarts`).

    Stopped by SIGTERM, Ctrl-C or `deadline` (of time.monotonic), it leaves a checkpoint and returns an unfinished run;
    `resume` goes on. With `shorten`, it becomes a shorter run that ends before the deadline (train/pace.py).
    """
    if isinstance(recipe, (str, Path)) and holds_model(recipe):
        if start is not None or entities is not None:
            raise UserError("A model that goes on has its own weights: drop --start and --entities, or name a recipe.")
        return _continue(recipe, corpus, out, quiet, overrides, deadline, shorten)
    loaded = load_recipe(recipe, overrides)
    source = open_source(corpus, loaded)
    if not is_restarted():
        refuse_existing(Path(out))
    first = FirstWeights.read(start, entities)
    resolved = resolve_recipe(first.complete(loaded, source), source, ())
    if is_own_run(Path(out), resolved):
        return resume(out, quiet=quiet, deadline=deadline, shorten=shorten)

    def build() -> tuple[Learner, dict[str, str]]:
        return first.build(resolved, source), first.files(source)

    return start_run(resolved, source, out, build, quiet, deadline, shorten, is_deferrable=first.is_empty)


def _continue(
    folder: str | Path,
    corpus: str | Path | Source | Graph,
    out: str | Path,
    quiet: bool,
    overrides: Overrides,
    deadline: float | None,
    shorten: bool,
) -> Run:
    corpus = Corpus.open(corpus) if isinstance(corpus, (str, Path)) else corpus
    if not is_restarted():
        refuse_existing(Path(out))
    if not isinstance(corpus, Corpus):
        raise UserError("Only a model of text can go on from its weights: start a run on the graph with a recipe.")
    start = read_start(folder)
    check_tokenizers(start, corpus)  # before the vocabulary, of which a larger tokenizer would be a mistake, too
    recipe = resolve_recipe(continued_recipe(start, overrides), corpus, ())
    if is_own_run(Path(out), recipe):
        return resume(out, quiet=quiet, deadline=deadline, shorten=shorten)

    def build() -> tuple[Learner, dict[str, str]]:
        return build_continued(recipe, corpus, start), start_file(start, corpus)

    return start_run(recipe, corpus, out, build, quiet, deadline, shorten)


def _find_obstacle(recipe: Recipe, objective: PretrainingObjective, ranks: Ranks) -> str | None:
    """Say why these processes cannot train together; None where they can, or where only the rows know."""
    if ranks.size == 1:
        return None
    if objective.updates_itself:
        return f"{recipe.name} updates its vectors in place, one after another: start it without torchrun."
    if objective.row_tokens is None:
        return None
    return schedule.find_uneven_batch(recipe.train, objective.row_tokens, ranks.size)


def start_run(
    recipe: Recipe,
    corpus: Source,
    out: str | Path,
    build: Callable[[], tuple[Learner, dict[str, str]]],
    quiet: bool,
    deadline: float | None = None,
    shorten: bool = False,
    is_deferrable: bool = False,
) -> Run:
    """Train a resolved recipe into a new folder; `build` gives model, objective and further files of the run.

    With `is_deferrable`, all weights are initial ones: they may be drawn after the model is divided into shards.
    """
    device = resolve_device(recipe.train.device)
    with connect(device.type == "cuda", alone=recipe.train.parallel in ("fsdp", "hybrid")) as ranks:
        (learner, files), deferred = build_or_defer(build, lambda built: built[0], recipe.train, ranks, is_deferrable)
        obstacle = _find_obstacle(recipe, learner[1], ranks)
        if obstacle:  # before there is a folder: torchrun ends the first process before it could remove it
            raise UserError(obstacle)
        recipe = fix_budget(recipe, corpus, learner[1], device, ranks)
        warmup_problem = schedule.check_warmup(recipe.train, recipe.train.steps or 1)
        if warmup_problem and ranks.is_first:
            log.warning("%s.", warmup_problem)
        run = _create(Path(out), recipe, corpus, files, ranks)
        with discard_untrained(run, ranks), lock_run(run, ranks):
            return _train(run, corpus, learner, deferred, device, ranks, quiet, deadline, shorten)


def _create(out: Path, recipe: Recipe, corpus: Source, files: dict[str, str], ranks: Ranks) -> Run:
    run = Run.create(out, recipe, corpus.tokenizer, corpus_origin(corpus) | files) if ranks.is_first else Run(out)
    ranks.barrier()
    return run


def resume(
    run: str | Path | Run,
    *,
    corpus: str | Path | None = None,
    quiet: bool = False,
    deadline: float | None = None,
    shorten: bool = False,
) -> Run:
    """Go on from the last complete checkpoint, or from step 0 where there is none."""
    run = run if isinstance(run, Run) else Run.open(run)
    if run.finished:
        if corpus is not None:
            run.source(corpus)  # another text is refused, also where nothing is left to learn from it
        return complete_finished(run)
    device = resolve_device(run.recipe.train.device)
    alone = run.recipe.train.parallel in ("fsdp", "hybrid")
    with connect(device.type == "cuda", alone=alone) as ranks, lock_run(run, ranks):
        source = run.source(corpus)
        learner, deferred = build_or_defer(
            lambda: _rebuild(run, source), lambda built: built, run.recipe.train, ranks, _has_initial_weights(run)
        )
        return _train(run, source, learner, deferred, device, ranks, quiet, deadline, shorten)


def _has_initial_weights(run: Run) -> bool:
    """Whether a run began with nothing but initial weights: no start, no entity vectors, no teacher."""
    origin = read_origin(run.folder)
    return not (origin.get("start") or origin.get("entities")) and describe_teacher(run) is None


def _rebuild(run: Run, source: Source) -> Learner:
    """Model and objective of a run, before its last checkpoint is loaded."""
    if isinstance(source, GraphSplit):
        return build_learner(run.recipe, None)
    started = rebuild_started(run, source)
    if started is not None:
        return started
    start = read_start_file(run)
    return build_run_learner(run, source) if start is None else rebuild_continued(run, source, *start)


def _train(
    run: Run,
    corpus: Source,
    learner: Learner,
    deferred: DeferredWeights | None,
    device: torch.device,
    ranks: Ranks,
    quiet: bool,
    deadline: float | None,
    shorten: bool,
) -> Run:
    settings = run.recipe.train
    make_deterministic(settings.deterministic)

    def build(progress: Progress) -> Loop:
        return build_loop(run.folder, run.recipe, corpus, learner, device, ranks, progress, deferred)

    loop, outcome = train_loop(run, build, settings, device, ranks, quiet, deadline, shorten)
    if outcome.finished and ranks.is_first:
        # one too many is there where a process was killed between its last save and the removal after it
        loop.saver.prune(outcome.state.best_step)
        whole: nn.Module = loop.learner
        if loop.strategy.is_sharded:  # its weights are in shards: those of the last checkpoint are whole
            learner = _rebuild(run, corpus)
            whole = nn.ModuleDict({"model": learner[0], "objective": learner[1]})
        if settings.average > 1 or loop.strategy.is_sharded:
            load_average(whole, run.checkpoints, settings.average)
        model, objective = learner
        model.finish_training()
        card = format_model_card(run, corpus, outcome, describe_teacher(run), describe_start(run))
        save_final(run, model.cpu(), objective.cpu(), card)
    ranks.barrier()
    return run
