"""Checks before a run: its size, memory, cost and time, and problems of the data (`etude check`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch

from etude.chance import Chance
from etude.errors import UserError
from etude.graph.graph import Graph
from etude.models.base import Model
from etude.objectives.base import PretrainingObjective, Rows
from etude.pretraining.budget import find_short_budget, trial_limit
from etude.pretraining.first_weights import FirstWeights
from etude.pretraining.loop import build_rows, check_held_out
from etude.pretraining.setup import load_recipe, resolve_recipe
from etude.pretraining.trial import Speed, measure_speed, shorten_steps, step_tokens
from etude.recipes.document import Overrides
from etude.recipes.learner import build_learner
from etude.recipes.model_memory import shapes_only
from etude.recipes.schema import Recipe
from etude.runs.source import Source, held_out, open_source
from etude.text.corpus.bigram_baseline import unigram_entropy
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.manifest import Report
from etude.train import memory, peak, schedule
from etude.train.device import resolve_device


@dataclass(frozen=True)
class Check:
    """The result of `check`."""

    recipe: Recipe
    parameters: int
    needs: memory.Estimate
    steps: int
    tokens: int
    epochs: float
    flops: float
    seconds: float
    speed: Speed
    unigram_nats: float | None  # a model that knows only how often each token occurs; None: no loss of tokens
    token_loss: str | None = None  # the loss term that is to come below it
    problems: list[str] = field(default_factory=list)


def check(
    recipe: str | Path | Recipe,
    corpus: str | Path | Source | Graph,
    overrides: Overrides = (),
    entities: str | Path | None = None,
) -> Check:
    """Check a recipe on a corpus or a graph and measure a short trial; write nothing.

    `entities`: the vectors of a recipe that reads entities.
    """
    loaded = load_recipe(recipe, overrides)
    corpus = open_source(corpus, loaded)
    resolved = resolve_recipe(FirstWeights.read(None, entities).complete(loaded, corpus), corpus, ())
    device = resolve_device(resolved.train.device)
    settings = resolved.train
    with shapes_only():  # a model that does not fit is said to, not tried
        model, objective = build_learner(resolved, corpus.tokenizer)
    learnt = [*model.named_parameters("model"), *objective.named_parameters("objective")]
    weights, available = sum(parameter.nbytes for _, parameter in learnt), memory.machine_memory()
    if device.type == "cpu" and available is not None and weights > available:
        raise UserError(
            f"{resolved.name} needs {weights / 1e9:,.1f} GB for its weights alone, and this machine "
            f"has {available / 1e9:,.1f} GB of memory. Make model.layers, model.width or model.context smaller."
        )
    rows = build_rows(resolved, corpus, objective)
    check_held_out(resolved, corpus, objective)
    trial = shorten_steps(resolved, device, rows.row_tokens)
    speed = measure_speed(trial, corpus, device, limit=trial_limit(settings, device))
    if trial is not resolved:
        speed = speed.with_step(step_tokens(resolved, speed))
    steps = schedule.total_steps(
        settings, speed.row_tokens, speed.flops_per_token, tokens_per_second=speed.tokens_per_second,
        epoch_rows=len(rows), mean_tokens=speed.mean_tokens,
    )  # fmt: skip
    rows_read = schedule.rows_before(settings, rows.row_tokens or 1, steps)
    tokens = round(rows_read * speed.mean_tokens)
    short = find_short_budget(resolved, speed, steps, device)
    return Check(
        recipe=resolved,
        parameters=sum(parameter.numel() for _, parameter in learnt),
        needs=_estimate_memory(resolved, model, objective, rows, device),
        steps=steps,
        tokens=tokens,
        epochs=rows_read / len(rows),
        flops=tokens * speed.flops_per_token,
        seconds=tokens / speed.tokens_per_second,
        speed=speed,
        unigram_nats=unigram_entropy(corpus.token_counts())
        if isinstance(corpus, Corpus) and objective.token_loss is not None
        else None,
        token_loss=objective.token_loss,
        problems=[
            *([short] if short is not None else []),
            *objective.find_problems(corpus),
            *find_problems(resolved, corpus, steps, rows_read / len(rows), speed),
        ],
    )


def _estimate_memory(
    recipe: Recipe, model: Model, objective: PretrainingObjective, rows: Rows, device: torch.device
) -> memory.Estimate:
    """Estimate the memory of training on sequences like those of this text."""
    settings = recipe.train
    micro_tokens = settings.micro_tokens or settings.batch_tokens
    precision = peak.resolve_precision(settings.precision, device)
    if model.activation_bytes(1, 4, device.type) is not None:
        batch = objective.batch([rows[0]], Chance(settings.seed, 0))
        return memory.estimate_for(
            settings, model, objective, batch, micro_tokens=micro_tokens, precision=precision, device=device.type
        )
    return memory.estimate(
        settings,
        [*model.named_parameters("model"), *objective.named_parameters("objective")],
        micro_tokens=micro_tokens,
        precision=precision,
        model=model,
        other_models=objective.trunks(),
        device=device.type,
    )


def find_text_problems(report: Report) -> list[str]:
    """Return warnings on the text of a corpus: unknown tokens, duplicates, documents that are no text."""
    warnings = []
    documents, unknown = max(1, report["documents"]), report["unknown_share"]
    duplicates = (report["duplicates"] - report["dropped"]) / documents
    non_text = report["non_text"] / documents
    if unknown > 0.02:
        warnings.append(f"{unknown:.1%} of the tokens are unknown: train a larger tokenizer, or a byte-level one.")
    if duplicates > 0.05:
        warnings.append(f"{duplicates:.1%} of the documents are exact duplicates: prepare with --unique.")
    if non_text > 0.01:
        file, line = report["non_text_examples"][0]
        warnings.append(f"{non_text:.1%} of the documents do not look like text, the first at {file}:{line}.")
    return warnings


def find_problems(recipe: Recipe, corpus: Source, steps: int, epochs: float, speed: Speed) -> list[str]:
    """Return warnings on the recipe and its source, to read before the run starts."""
    warnings = find_corpus_problems(corpus, epochs, speed) if isinstance(corpus, Corpus) else []
    if held_out(corpus) is None:
        part = f"--valid {_suggest_share(len(corpus.documents)):.2g}" if isinstance(corpus, Corpus) else "--valid FILE"
        warnings.insert(0, f"There is no held-out part, so no evaluation: prepare with {part}.")
    warmup_problem = schedule.check_warmup(recipe.train, steps)
    return [*warnings, f"{warmup_problem}."] if warmup_problem else warnings


def _suggest_share(documents: int) -> float:
    """Return a share to hold out that some documents fall into: of a few, the usual hundredth holds none."""
    return max(0.01, min(0.5, 10 / max(1, documents)))


def find_corpus_problems(corpus: Corpus, epochs: float, speed: Speed) -> list[str]:
    """Return warnings on a corpus, and on what a model is to do with it."""
    report = corpus.manifest.get("report")
    warnings = find_text_problems(report) if report is not None else []
    if epochs > 40:
        warnings.append(
            f"The text is read {epochs:,.0f} times: expect it to be learnt by heart. Use more text or fewer steps."
        )
    uniform = math.log(corpus.tokenizer.target.vocab)
    if math.isfinite(speed.loss) and speed.loss > 3 * uniform + 3:
        warnings.append(
            f"The first loss is {speed.loss:.1f}, where a blind guess gives {uniform:.1f}: check the initialisation."
        )
    return warnings
