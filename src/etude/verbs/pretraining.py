"""Pre-training: what a run will cost (`check`, `bench`), the run (`pretrain`, `distill`), and going on (`resume`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from etude.verbs.limits import refuse_given, require_at_least
from etude.verbs.paths import require_corpus, require_path, require_recipe
from etude.verbs.random_state import keeps_random_state

if TYPE_CHECKING:
    from etude.graph.graph import Graph
    from etude.pretraining.bench import Bench
    from etude.pretraining.check import Check
    from etude.pretraining.cluster_check import ClusterCheck
    from etude.recipes.schema import Recipe
    from etude.runs.run import Run
    from etude.text.corpus.corpus import Corpus


@keeps_random_state
def check(
    recipe: str | Path | Recipe,
    corpus: str | Path | Corpus | Graph,
    *,
    entities: str | Path | Run | None = None,
    settings: Mapping[str, object] | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    gpu: str = "h100",
) -> Check | ClusterCheck:
    """Estimate a run before it starts: parameters, memory, FLOPs, time, data problems, the loss to beat.

    Args:
        recipe: A recipe: a name, or a .yaml file.
        corpus: A prepared corpus; of a recipe over triples, a prepared graph.
        entities: A run of a graph embedding, such as transe, whose vectors recipes such as ernie read.
        settings: Settings of the recipe to change: train.lr=3e-4
        nodes: Plan the run for a cluster of this many machines instead: memory, communication, time, the best mesh.
        gpus: Number of GPUs in each of these machines; 8 unless given.
        gpu: Kind of these GPUs: a100, h100, h200 or b200.
    """
    recipe, corpus = require_recipe(recipe), require_corpus(corpus)
    entities = None if entities is None else require_path("entities", entities, "a run on a graph")
    require_at_least("nodes", nodes, 1)
    require_at_least("gpus", gpus, 1)
    if nodes is not None or gpus is not None:
        refuse_given({"entities": (entities, None)}, "is not read by a plan for a cluster: leave it out.")
        from etude.errors import UserError
        from etude.graph.graph import Graph
        from etude.pretraining.cluster_check import check_cluster

        if isinstance(corpus, Graph):
            raise UserError("A plan for a cluster is for models of text: give a corpus.")
        return check_cluster(recipe, corpus, dict(settings or {}), nodes=nodes or 1, gpus=gpus or 8, gpu=gpu)
    refuse_given({"gpu": (gpu, "h100")}, "applies to a plan for a cluster: say how large it is with --nodes or --gpus.")
    from etude.pretraining import check as checking

    return checking.check(recipe, corpus, dict(settings or {}), entities)


@keeps_random_state
def bench(
    recipe: str | Path | Recipe | None = None,
    corpus: str | Path | Corpus | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    seconds: float = 2.0,
    on_stage: Callable[[str], None] | None = None,
    on_result: Callable[[Bench], None] | None = None,
) -> Bench:
    """Measure how fast this machine trains: tokens/s, share of its peak, best micro-batch, where time goes.

    Args:
        recipe: A recipe: a name, or a .yaml file; without one, bert-base on a GPU, bert-mini with small steps on a CPU.
        corpus: A prepared corpus; without one, words are drawn at random.
        settings: Settings of the recipe to change: train.micro_tokens=4096
        seconds: Seconds to measure each micro-batch for, after its warm-up.
        on_stage: Receives the name of what is being measured.
        on_result: Receives the results so far: before the first micro-batch, and after each.
    """
    recipe = None if recipe is None else require_recipe(recipe)
    corpus = None if corpus is None else require_corpus(corpus)
    require_at_least("seconds", seconds, 0.01)
    from etude.pretraining import bench as benchmark

    return benchmark.bench(
        recipe,
        corpus,
        dict(settings or {}),
        seconds,
        on_stage=on_stage or (lambda _: None),
        on_result=on_result or (lambda _: None),
    )


@keeps_random_state
def pretrain(
    recipe: str | Path | Run | Recipe,
    corpus: str | Path | Corpus | Graph,
    *,
    out: str | Path,
    start: str | Path | Run | None = None,
    entities: str | Path | Run | None = None,
    settings: Mapping[str, object] | None = None,
    quiet: bool = False,
) -> Run:
    """Pre-train a model on a corpus, or continue to train one; a kill at any moment loses nothing.

    Stopped by SIGTERM or Ctrl-C, it leaves a checkpoint to resume from, and the run is unfinished. A run, or a folder
    of transformers, in the place of the recipe goes on from its weights (continued pre-training): give a budget.

    Args:
        recipe: A recipe: a name, or a .yaml file; or a run or a folder of transformers to go on from.
        corpus: A prepared corpus, or a graph where the recipe is one over triples; of a model to go on from, a corpus
            prepared with its tokenizer (--tokenizer RUN).
        out: The folder of the new run.
        start: A run of another recipe whose weights are taken over where names and shapes agree: BERT's for ernie.
        entities: A run of a graph embedding, such as transe, whose vectors recipes such as ernie read.
        settings: Settings of the recipe to change: train.lr=3e-4
        quiet: Print no progress.
    """
    from etude.pretraining import pretrain as pretraining

    recipe, corpus = require_recipe(recipe), require_corpus(corpus)
    start = None if start is None else require_path("start", start, "a run to start from")
    entities = None if entities is None else require_path("entities", entities, "a run on a graph")
    return pretraining.pretrain(
        recipe, corpus, out, quiet=quiet, overrides=dict(settings or {}), start=start, entities=entities
    )


@keeps_random_state
def distill(
    recipe: str | Path | Recipe,
    corpus: str | Path | Corpus,
    *,
    teacher: str | Path | Run,
    out: str | Path,
    settings: Mapping[str, object] | None = None,
    quiet: bool = False,
) -> Run:
    """Train a small model, the student, on the predictions of a larger one, its teacher.

    After a stop, 'etude pretrain --resume' continues it.

    Args:
        recipe: The student: a recipe's name, or a .yaml file.
        corpus: A corpus prepared with the teacher's tokenizer.
        teacher: A run of a masked model; 'etude import' makes one of a published model.
        out: The folder of the new run.
        settings: Settings to change: train.steps=20000 distill.temperature=4
        quiet: Print no progress.
    """
    from etude.pretraining.distill import distill as distill_run

    recipe, corpus = require_recipe(recipe), require_corpus(corpus)
    teacher = require_path("teacher", teacher, "a run of a masked model")
    return distill_run(recipe, corpus, out, teacher=teacher, quiet=quiet, overrides=dict(settings or {}))


@keeps_random_state
def resume(run: str | Path | Run, *, corpus: str | Path | None = None, quiet: bool = False) -> Run:
    """Continue a run that was stopped, from its last complete checkpoint: a pre-training or a fine-tuning.

    Args:
        run: The folder of the run.
        corpus: Of a pre-training: where its corpus is now, if it was moved.
        quiet: Print no progress.
    """
    from etude.pretraining import pretrain as pretraining
    from etude.verbs.transfer import is_finetuning, resume_finetune

    run = require_path("run", run, "a run that was stopped")
    if is_finetuning(run):
        refuse_given(
            {"corpus": (corpus, None)}, f"applies to a pre-training, and {run} is a fine-tuning: leave it out."
        )
        return resume_finetune(run, quiet=quiet)
    return pretraining.resume(run, corpus=corpus, quiet=quiet)
