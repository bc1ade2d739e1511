"""How often the rule of `etude study` decides a claim where nothing is true, and how often where something is.

    python benchmarks/calibration.py                     # errors, families, power and tails: half an hour
    python benchmarks/calibration.py --rounds 1000       # as in docs/studies, quicker and coarser

Studies are simulated as they are run: each contender has its own deviation over pre-training seeds, transfer seeds add
theirs, every example has its own difficulty (shared by contenders in part, or not at all) and is right or wrong by the
draw of a threshold, so that scores are accuracies of `items` answers. The whole chain of `etude.study.uncertainty` runs
on the simulated answers. `old` is the rule before: a percentile bootstrap over seeds and examples, and all seeds agree.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from etude.study.statistics import holm_adjust
from etude.study.uncertainty import example_variance, seed_variance, tail_probability

ACCURACY = 0.75
TRANSFER_DEVIATION = 0.01
COLLAPSE = 0.2
SEEDS = (2, 3, 5, 10)
DEVIATIONS = (0.005, 0.01, 0.02, 0.04, 0.08)
BATCH_NUMBERS = 1_000_000  # simulated answers at a time, which stay in the cache
NORMAL = ndtri((np.arange(65_536) + 0.5) / 65_536).astype(np.float32)  # by 16 bits: a third of the time of a draw
GLOBAL = 4  # how many contenders' worth of noise an example's difficulty has: most examples are easy or hard for all


@dataclass(frozen=True)
class Setting:
    seeds: int
    transfers: int
    deviations: tuple[float, float]  # of either contender over pre-training seeds
    items: int
    is_correlated: bool  # contenders find the same examples hard
    difference: float = 0.0
    collapses: float = 0.0  # chance that a seed of the first contender ends 20 points lower; the mean stays

    @property
    def title(self) -> str:
        shared = "shared" if self.is_correlated else "own"
        left, right = (f"{100 * deviation:g}" for deviation in self.deviations)
        return f"{self.seeds} x {self.transfers} seeds, deviations {left} and {right}, {self.items} items, {shared}"


def simulate(setting: Setting, rounds: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield answers (rounds, contenders, seeds, transfers, items) of bool, some rounds at a time."""
    places = [round(1e4 * deviation) for deviation in setting.deviations]
    rng = np.random.default_rng([seed, setting.seeds, setting.transfers, setting.items, *places, setting.is_correlated])
    size = 2 * setting.seeds * setting.transfers * setting.items
    remaining = rounds
    scale = math.sqrt(1 + GLOBAL)  # an answer's latent: difficulty of variance GLOBAL, and 1 of its own
    slope = math.exp(-(ndtri(ACCURACY) ** 2) / 2) / math.sqrt(2 * math.pi) / scale  # accuracy per unit of latent
    while remaining:
        count = min(remaining, max(1, BATCH_NUMBERS // size))
        remaining -= count
        shape = (count, 2, setting.seeds, setting.transfers, 1)
        deviations = np.asarray(setting.deviations).reshape(1, 2, 1, 1, 1)
        shift = rng.normal(size=(count, 2, setting.seeds, 1, 1)) * deviations
        shift = shift + rng.normal(size=shape) * TRANSFER_DEVIATION
        shift[:, 0] += setting.difference
        if setting.collapses:
            is_lost = rng.random((count, setting.seeds, 1, 1)) < setting.collapses
            kept = ACCURACY + COLLAPSE * setting.collapses / (1 - setting.collapses)
            accuracy = np.where(is_lost, ACCURACY - COLLAPSE, kept)
            shift[:, 0] += (ndtri(accuracy) - ndtri(ACCURACY)) * scale * slope
        own = (count, 1 if setting.is_correlated else 2, 1, 1, setting.items)
        difficulty = math.sqrt(GLOBAL) * rng.standard_normal(own, dtype=np.float32)
        noise = NORMAL[rng.integers(len(NORMAL), size=(*shape[:-1], setting.items), dtype=np.uint16)]
        # a curve bends the mean of what varies along it: raised, so that the mean accuracy is the same for everybody
        spread = (deviations**2 + TRANSFER_DEVIATION**2) / (slope * scale) ** 2
        limit = (scale * ndtri(ACCURACY) * np.sqrt(1 + spread) + shift / slope).astype(np.float32)
        noise += difficulty
        yield noise < limit


def judge(answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rounds,) differences and p-values by the rule, from answers (rounds, 2, seeds, transfers, items)."""
    transfers = answers.shape[3]
    right = answers[:, :, :, 0].view(np.int8) if transfers == 1 else answers.sum(3, dtype=np.int8)
    table = (right[:, 0] - right[:, 1]).astype(np.float32) / np.float32(transfers)  # (rounds, seeds, items)
    scores = table.mean(-1, dtype=np.float64)
    by_seed, by_example = seed_variance(scores, 1 / table[0].size ** 2), example_variance(table)
    variance = by_seed + by_example
    difference = scores.mean(-1)
    p = tail_probability(difference / np.sqrt(variance), by_seed / variance, table.shape[-2] - 1)
    return difference, p


def judge_by_bootstrap(answers: np.ndarray, draws: int = 1000, seed: int = 0) -> np.ndarray:
    """Return (rounds,) decisions of the former rule: the 95 % percentile interval, and every seed agrees."""
    rng = np.random.default_rng(seed)
    rounds, _, seeds, transfers, items = answers.shape
    units = answers[:, 0].astype(np.float32) - answers[:, 1]  # (rounds, seeds, transfers, items)
    weights = rng.multinomial(items, [1 / items] * items, size=draws).astype(np.float32) / items
    scores = np.moveaxis(units @ weights.T, -1, 1)  # (rounds, draws, seeds, transfers)
    outer = rng.integers(seeds, size=(draws, seeds, 1))
    inner = rng.integers(transfers, size=(draws, seeds, transfers))
    means = scores[:, np.arange(draws)[:, None, None], outer, inner].mean((2, 3))  # (rounds, draws)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    own = units.mean(-1).reshape(rounds, -1)
    decided: np.ndarray = ((low > 0) & (own > 0).all(1)) | ((high < 0) & (own < 0).all(1))
    return decided


def decision_rate(setting: Setting, rounds: int, level: float = 0.95, seed: int = 0) -> float:
    """Return the share of claims decided (in either direction)."""
    decided = sum(int((judge(answers)[1] < 1 - level).sum()) for answers in simulate(setting, rounds, seed))
    return decided / rounds


def family_error(settings: list[Setting], rounds: int, seed: int = 0) -> float:
    """Return the share of studies that decide any of their claims, all null, after Holm's correction."""
    values = np.stack([
        np.concatenate([judge(answers)[1] for answers in simulate(setting, rounds, seed + 1000 * number)])
        for number, setting in enumerate(settings)
    ])  # fmt: skip
    return float(np.mean([min(holm_adjust(list(column))) < 0.05 for column in values.T]))


def list_settings(seeds: int, items: tuple[int, ...], transfers: tuple[int, ...] = (1, 3)) -> list[Setting]:
    pairs = list(itertools.combinations_with_replacement(DEVIATIONS, 2))
    return [
        Setting(seeds, inner, pair, size, shared)
        for inner, pair, size, shared in itertools.product(transfers, pairs, items, (False, True))
    ]


def print_errors(rounds: int) -> None:
    print("Share of claims decided where there is no difference, in %: over 60 settings, and of the worst again\n")
    print("| seeds | items | mean | worst, again | worst at |\n|---|---|---|---|---|")
    for seeds, items in itertools.product(SEEDS, (200, 1000, 5000)):
        count = max(200, rounds * 200 // items)  # of each setting; long ones differ least
        rates = {setting: decision_rate(setting, count) for setting in list_settings(seeds, (items,))}
        worst = max(rates, key=lambda setting: rates[setting])
        repeated = max(2000, 8 * count)  # the worst of sixty is so by chance as well: new draws say how bad it is
        again, error = decision_rate(worst, repeated, seed=1), 1.96 * math.sqrt(0.05 * 0.95 / repeated)
        mean = float(np.mean(list(rates.values())))
        print(
            f"| {seeds} | {items:,} | {100 * mean:.1f} | {100 * again:.1f} ± {100 * error:.1f} | {worst.title} |",
            flush=True,
        )


def print_former(rounds: int) -> None:
    print("\nThe same of the former rule, a bootstrap over seeds and examples, one transfer seed, 1,000 items\n")
    print("| seeds | deviation | decided |\n|---|---|---|")
    for seeds, deviation in itertools.product((3, 5, 10), (0.02, 0.04, 0.08)):
        setting = Setting(seeds, 1, (deviation, deviation), 1000, True)
        rate = np.mean([judge_by_bootstrap(answers).mean() for answers in simulate(setting, rounds)])
        print(f"| {seeds} | {100 * deviation:g} | {100 * rate:.1f} |", flush=True)


def print_families(rounds: int) -> None:
    print("\nShare of studies of five claims that decide any, none being true, after Holm's correction, in %\n")
    print("| seeds | deviation | items | decided |\n|---|---|---|---|")
    for seeds, deviation, items in itertools.product(SEEDS, (0.005, 0.02, 0.08), (200, 5000)):
        settings = [Setting(seeds, 1, (deviation, deviation), items, True)] * 5
        error = family_error(settings, rounds)
        print(f"| {seeds} | {100 * deviation:g} | {items:,} | {100 * error:.1f} |", flush=True)


def print_collapses(rounds: int) -> None:
    print("\nShare of claims decided where means are equal and one contender's seeds collapse now and then, in %\n")
    chances = (0.05, 0.1, 0.2)
    print("| seeds | " + " | ".join(f"{100 * chance:g} % of seeds" for chance in chances) + " |")
    print("|---" * (1 + len(chances)) + "|")
    for seeds in SEEDS:
        settings = [Setting(seeds, 1, (0.01, 0.01), 1000, True, collapses=chance) for chance in chances]
        rates = [f"{100 * decision_rate(setting, rounds):.0f}" for setting in settings]
        print(f"| {seeds} | " + " | ".join(rates) + " |", flush=True)


def print_power(rounds: int) -> None:
    print("\nShare of claims settled in the right direction, in %: one claim, 1,000 items, one transfer seed\n")
    differences = (0.01, 0.02, 0.04, 0.08)
    print("| seeds | deviation | " + " | ".join(f"{100 * value:g} points" for value in differences) + " |")
    print("|---" * (2 + len(differences)) + "|")
    for seeds, deviation in itertools.product(SEEDS, (0.005, 0.01, 0.02, 0.04)):
        rates = []
        for difference in differences:
            setting = Setting(seeds, 1, (deviation, deviation), 1000, True, difference)
            won = 0
            for answers in simulate(setting, rounds):
                mean, p = judge(answers)
                won += int(((p < 0.05) & (mean > 0)).sum())
            rates.append(f"{100 * won / rounds:.0f}")
        print(f"| {seeds} | {100 * deviation:g} | " + " | ".join(rates) + " |", flush=True)


def print_tails(rounds: int) -> None:
    """Print the rule's tail against Satterthwaite's and Cochran's, by the seeds' true share of the variance."""
    print("\nShare of true nulls decided, as a multiple of the level, normal scores: here / Satterthwaite / Cochran\n")
    levels = (0.05, 0.05 / 3, 0.005)
    print("| seeds | seeds' share | " + " | ".join(f"level {level:.3g}" for level in levels) + " |")
    print("|---" * (2 + len(levels)) + "|")
    rng = np.random.default_rng(0)
    for seeds, share in itertools.product(SEEDS, (0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)):
        degrees, items = seeds - 1, 400
        by_seed = share * rng.chisquare(degrees, rounds) / degrees
        by_example = (1 - share) * rng.chisquare(items, rounds) / items
        variance = by_seed + by_example
        statistic = np.abs(rng.normal(size=rounds)) / np.sqrt(variance)
        p = tail_probability(statistic, by_seed / variance, degrees)
        effective = variance**2 / (by_seed**2 / degrees + by_example**2 / items)
        satterthwaite = 2 * stdtr(effective, -statistic)
        cells = []
        for level in levels:
            limits = by_seed * stdtrit(degrees, 1 - level / 2) + by_example * ndtri(1 - level / 2)
            rates = [(p < level).mean(), (satterthwaite < level).mean(), (statistic > limits / variance).mean()]
            cells.append(" / ".join(f"{rate / level:.2f}" for rate in rates))
        print(f"| {seeds} | {share:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4000)
    arguments = parser.parse_args()
    print_errors(arguments.rounds)
    print_former(arguments.rounds)
    print_families(arguments.rounds)
    print_collapses(arguments.rounds)
    print_power(max(500, arguments.rounds // 4))
    print_tails(50 * arguments.rounds)
