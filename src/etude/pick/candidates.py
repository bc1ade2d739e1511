"""Which pre-trainings a pick tries, and for how long: successive halving with rounds that grow.

Successive halving (Jamieson and Talwalkar 2016): all candidates pre-train for a short time, the better half goes on
with twice as much, and so on until one is left, so the winner has had the longest pre-training. Rounds start afresh,
because a schedule of the learning rate belongs to its length. Where the minutes are too few for all candidates, the
first of the list enter; where they are too few for one, nothing is pre-trained, and the pick says so.

A GPU is shared: the candidates of a round run at once, as many as there are slots, and halving ends with two of them,
since one small model alone leaves most of the card idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etude.pick.encoders import Candidate

WORDS = "word:30000,lower"
PIECES = "wordpiece:8000,lower"

# Word vectors are not in the halving: they need seconds, and are read beside the words themselves. On the text of YNAT
# (850,000 tokens), 100 labels, dev from the pool, three draws: 55.0 % after 3 epochs, 67.0 % after 12, 66.6 % after 35.
VECTORS = Candidate(
    "vectors", {"en": "word vectors", "ko": "단어 벡터"}, "fasttext-toy",
    {"tokenizer": WORDS, "model.width": 100, "model.buckets": 100_000, "train.batch_tokens": 10_000}, epochs=12,
)  # fmt: skip

_CPU = {
    "tokenizer": PIECES,
    "model.width": 128,
    "model.context": 128,
    "objective.length": 128,  # learnt positions that no pre-training saw would be noise
    "train.batch_tokens": 4096,
}
# no sentence task; pairs as ELECTRA reads them, or a task of pairs would stand on a segment that learnt nothing
_PAIRS = {"objective.sentence": "none", "objective.pair_rate": 0.9}
CPU_CANDIDATES = (
    Candidate("encoder", {"en": "modern encoder", "ko": "현대식 인코더"}, "encoder-modern-toy",
              {**_CPU, "model.feedforward": 192, "model.window": None, "train.lr": 3e-3}),
    Candidate("electra", {"en": "ELECTRA", "ko": "ELECTRA"}, "electra-toy", {**_CPU, "train.lr": 2e-3}),
    Candidate("bert", {"en": "BERT", "ko": "BERT"}, "bert-toy",
              {**_CPU, **_PAIRS, "train.lr": 2e-3}),
    Candidate("gpt", {"en": "GPT", "ko": "GPT"}, "gpt1-toy", {**_CPU, "train.lr": 2e-3}),
)  # fmt: skip

# Published warm-ups count steps of runs of days: here they are a share of the run.
_GPU = {
    "tokenizer": "wordpiece:16000,lower",
    "objective.length": 128,
    "train.batch_tokens": 32_768,
    "train.micro_tokens": None,
    "train.warmup": 0.06,
}
_TABLE_POSITIONS = {"model.context": 128}  # learnt positions: those that no pre-training saw would be noise
GPU_CANDIDATES = (
    Candidate("encoder", {"en": "modern encoder", "ko": "현대식 인코더"}, "encoder-modern",
              {**_GPU, "model.layers": 8, "model.width": 512, "model.heads": 8, "model.feedforward": 768,
               "model.window": None, "model.context": 512, "train.batch_ramp": None, "train.lr": 1.5e-3}),
    Candidate("electra", {"en": "ELECTRA", "ko": "ELECTRA"}, "electra-small",
              {**_GPU, **_TABLE_POSITIONS, "train.lr": 7e-4}),
    Candidate("bert", {"en": "BERT", "ko": "BERT"}, "bert-small",
              {**_GPU, **_TABLE_POSITIONS, **_PAIRS, "train.lr": 7e-4}),
    Candidate("gpt", {"en": "GPT", "ko": "GPT"}, "gpt1",
              {**_GPU, **_TABLE_POSITIONS, "model.layers": 6, "model.width": 512, "model.heads": 8, "train.lr": 6e-4}),
)  # fmt: skip
# below it a pre-training has not left the word frequencies; of a GPU that others share, its share of the seconds. An
# H200 reads a million tokens a second of such a model and more (benchmarks/results/2026-11-16-h200.md). Where six picks
# share it, with a sixth of that each, 25 s are 4 million tokens, and the last round passes the 10 million of worth.py.
FIRST_ROUND_SECONDS = {"cpu": 25.0, "cuda": 25.0}


@dataclass(frozen=True)
class Round:
    seconds: float  # of pre-training, each
    survivors: int


def default_candidates(device: str) -> tuple[Candidate, ...]:
    return GPU_CANDIDATES if device == "cuda" else CPU_CANDIDATES


def parse_candidates(recipes: list[str], device: str) -> tuple[Candidate, ...]:
    """Recipes that the user named, as they are; results are kept by name, so files of one name go by their path."""
    if not recipes:
        return default_candidates(device)
    distinct = list(dict.fromkeys(recipes))
    stems = [Path(name).stem for name in distinct]
    names = [name if stems.count(stem) > 1 else stem for name, stem in zip(distinct, stems, strict=True)]
    pairs = zip(names, distinct, strict=True)
    return tuple(Candidate(name, {"en": name, "ko": name}, recipe, {}) for name, recipe in pairs)


def plan_rounds(count: int, seconds: float, overhead: float, minimum: float) -> tuple[int, list[Round]]:
    """Return how many candidates enter, and the rounds; `overhead` seconds go with each pre-training besides.

    The rounds of n candidates: n, then half of them twice as long, until one is left. Fewer enter where the first
    round would be shorter than `minimum`.
    """
    for entering in range(count, 0, -1):
        sizes = [entering]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // 2))
        units = sum(size * 2**number for number, size in enumerate(sizes))
        first = (seconds - overhead * sum(sizes)) / units
        if first >= minimum:
            survivors = [*sizes[1:], 1]
            return entering, [Round(first * 2**number, left) for number, left in enumerate(survivors)]
    return 0, []


def plan_parallel_rounds(
    count: int, slots: int, seconds: float, overhead: float, minimum: float
) -> tuple[int, list[Round]]:
    """Return how many candidates enter, and the rounds where `slots` of them run at once, each on its own machine."""
    for entering in range(count, 0, -1):
        sizes = [entering]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // 2))
        turns = [-(-size // slots) for size in sizes]
        first = (seconds - overhead * sum(turns)) / sum(turn * 2**number for number, turn in enumerate(turns))
        if first >= minimum:
            return entering, [Round(first * 2**number, left) for number, left in enumerate([*sizes[1:], 1])]
    return 0, []


def plan_shared_rounds(
    count: int, slots: int, seconds: float, overhead: float, minimum: float
) -> tuple[int, list[Round]]:
    """Return how many candidates enter, and the rounds of a device that `slots` candidates share at once.

    `seconds` of a round are those of the device for each candidate: those that run at once take as many times longer.
    `overhead` goes with each start of as many as there are slots.
    """
    for entering in range(count, 0, -1):
        sizes = [entering]
        while sizes[-1] > min(2, slots):
            sizes.append(-(-sizes[-1] // 2))
        units = sum(size * 2**number for number, size in enumerate(sizes))
        starts = sum(-(-size // slots) for size in sizes)
        first = (seconds - overhead * starts) / units
        if first >= minimum:
            survivors = [*sizes[1:], sizes[-1]]
            return entering, [Round(first * 2**number, left) for number, left in enumerate(survivors)]
    return 0, []
