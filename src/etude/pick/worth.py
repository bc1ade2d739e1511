"""Whether a pre-training is worth its time here: the text it would read, from its measured speed.

An encoder that has read too little knows hardly more than word frequencies, and its features are worse than a bag of
words. A core of a small server (Neoverse-N1) trains the first encoder of the list on 5,300 tokens a second: after 1.5
million tokens of YNAT's text and Wikipedia, 285 seconds of one core, its loss is 6.1 nats, and with 100 labels a linear
head on its features is right for 27.8 % of the headlines (dev from the pool, three draws). Word vectors read 230,000
tokens a second on the same core, and after 44 seconds the head has 67.0 %. So what cannot read enough is not tried, and
the table says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import torch

from etude.cores import count_cores
from etude.errors import UserError
from etude.pick.contenders import BACKWARD
from etude.pick.encoders import Candidate, tokenizer_of
from etude.pick.race import Entry, Race
from etude.pick.text import PickText
from etude.pretraining.continued import continued_recipe, read_start
from etude.pretraining.loop import build_rows
from etude.pretraining.setup import resolve_recipe
from etude.pretraining.trial import measure_speed, shorten_steps, step_tokens
from etude.recipes.learner import build_learner
from etude.recipes.model_memory import shapes_only

SCRATCH_TOKENS = 10e6  # that an encoder from scratch must read
CONTINUED_TOKENS = 1e6  # that a start must read to go on
TRIAL_SECONDS = 1.5
TRIAL_BYTES = 400_000  # of text that a trial of speed is made with: to prepare all of it would cost what it saves
HALF_PRECISION = 8  # times faster at most where a core multiplies matrices in it
CORE_SPEED = 20_000  # tokens a second that no core reaches: where even that is too slow, nothing is measured


def drop_unpaying(
    race: Race, candidates: Sequence[Candidate], text: PickText, share: float, seconds: float,
    fastest: float = math.inf,
) -> list[Candidate]:  # fmt: skip
    """Those that would read enough if they had all of these seconds: all or none; the table says why.

    `fastest` tokens a second are more than they could reach: where that is too slow, nothing is measured.

    The first of a list is measured. The others are of its size, and a trial of each would cost what it saves.
    A GPU reads enough in any case.
    """
    if not candidates or race.device != "cpu":
        return list(candidates)
    first = candidates[0]
    reason: dict[str, str] | None = race.journal.decide(
        f"worth {first.name}", lambda: _describe_too_little(race, first, text, share, max(0.0, seconds), fastest)
    )
    if reason is None:
        return list(candidates)
    race.skip([candidate.label for candidate in candidates], reason)
    return []


def _describe_too_little(
    race: Race, candidate: Candidate, text: PickText, share: float, seconds: float, fastest: float
) -> dict[str, str] | None:
    """Why a candidate is not worth so many seconds of pre-training, in both languages; None where it is."""
    needed = CONTINUED_TOKENS if candidate.is_start else SCRATCH_TOKENS
    if seconds * CORE_SPEED * count_cores() < needed:
        return {
            "en": f"not tried: needs about {needed / 1e6:.0f} M tokens, too many for the {seconds:.0f} s left for it",
            "ko": f"시도하지 않음: 약 {needed / 1e6:.0f} M 토큰을 읽어야 하는데, 남은 {seconds:.0f}초로는 모자람",
        }
    is_hopeless = fastest * seconds < needed
    speed = fastest if is_hopeless else _measure(race, candidate, text, min(share, _trial_share(text)))
    tokens = speed * seconds
    if speed <= 0 or tokens >= needed:  # what cannot be measured fails when it is tried, and says so
        return None
    numbers = f"{tokens / 1e6:.1f} M", f"{seconds:.0f}", f"{needed / 1e6:.0f} M"
    return {
        "en": f"not tried: would read {numbers[0]} tokens in {numbers[1]} s, and pays from about {numbers[2]} on",
        "ko": f"시도하지 않음: {numbers[1]}초에 {numbers[0]} 토큰을 읽게 되며, 약 {numbers[2]}부터 쓸모가 있음",
    }


def bound_speed(race: Race, probed: Sequence[Entry]) -> float:
    """Tokens a second that no start can train at, by the seconds that reading the labels' features took.

    A token has two bytes at least on average, an update costs three forward passes, and half precision, in which
    features are not read, may be several times faster. On a busy processor a trial of a model of 20 million parameters
    took six minutes, only to say that it is too slow.
    """
    decisions = race.journal.values["decisions"]
    keys = [f"features {entry.encoder.key}" for entry in probed if entry.encoder is not None]
    records = race.data.labelled.records[: len(race.data.refit_on)]  # those of a test file come last, and are not read
    size = sum(len(json.dumps(record, ensure_ascii=False, default=str).encode()) for record in records)
    seconds = [float(decisions.get(key, 0.0)) for key in keys]
    return max(
        (HALF_PRECISION * size / 2 / BACKWARD / each if each > 0 else math.inf for each in seconds), default=math.inf
    )


def _trial_share(text: PickText) -> float:
    """Share of the text for a trial; rounded, so that its corpus is found again."""
    return max(0.001, float(f"{min(1.0, TRIAL_BYTES / max(1, text.size)):.2g}"))


def _measure(race: Race, candidate: Candidate, text: PickText, share: float) -> float:
    """Tokens a second of a few real steps; 0 where they fail."""
    overrides = {**candidate.changes, "train.minutes": 1.0, "train.seed": race.seed, "train.device": race.device}
    try:
        corpus = text.open_corpus(tokenizer_of(candidate), share, race.on_progress)
        if candidate.is_start:
            recipe = resolve_recipe(continued_recipe(read_start(candidate.recipe), overrides), corpus, ())
        else:
            recipe = resolve_recipe(candidate.recipe, corpus, overrides)
        device = torch.device(race.device)
        with shapes_only():
            _, objective = build_learner(recipe, corpus.tokenizer)
        row_tokens = build_rows(recipe, corpus, objective).row_tokens
        # three steps of a published batch take a processor a minute
        trial = shorten_steps(recipe, device, row_tokens)
        speed = measure_speed(trial, corpus, device, TRIAL_SECONDS)
        return (speed if trial is recipe else speed.with_step(step_tokens(recipe, speed))).tokens_per_second
    except UserError:
        return 0.0
