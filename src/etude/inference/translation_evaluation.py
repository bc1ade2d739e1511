"""A translation run on a file of pairs: BLEU and chrF with intervals, and BLEU by the length of the source.

Bahdanau et al. 2015, figure 2, is BLEU by source length: one context vector forgets long sentences. The sums that BLEU
and chrF are made of are added up over the sentences of a bucket, or of a resample, and the score is that of the sums;
a mean of sentence scores would be something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from etude.errors import UserError
from etude.extras import require
from etude.inference.model import LoadedModel
from etude.inference.translation import Search, Translation, require_translator, translate
from etude.runs.run import Run
from etude.tasks.bootstrap import Score, bootstrap
from etude.tasks.data.examples import Examples, Record, gather
from etude.tasks.data.records import records
from etude.tasks.translate.pairs import SOURCE, TARGET, SentencePair, parse_pair
from etude.tasks.translate.scores import SegmentScores, make_segment_scores
from etude.train import checkpoint

BUCKETS = (5, 10, 15, 20, 30, 40, 50)  # the longest source of each, in words; one more for what is longer


@dataclass(frozen=True)
class TranslationScore(Score):
    """A score from 0 to 100, with the signature that says how it was computed."""

    signature: str

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}] (n = {self.count:,})  {self.signature}"

    def json(self) -> dict[str, Any]:
        return {**super().json(), "signature": self.signature}


@dataclass
class TranslationReport:
    """Scores of a file by name, and the translations in its order."""

    scores: dict[str, Score]
    translations: list[Translation]
    examples: Examples[SentencePair] = field(repr=False)

    def write(self, path: str | Path) -> None:
        """Write source, reference and translation as JSON lines."""
        lines = (
            {"source": pair.source, "reference": pair.reference, "translation": each.text, "score": each.score}
            for pair, each in zip(self.examples, self.translations, strict=True)
        )
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        checkpoint.write_text(Path(path), text)


def is_translation_run(run: str | Path) -> bool:
    """Whether a folder is a run of a translation recipe."""
    folder = Path(run)
    return (folder / "recipe.yaml").is_file() and Run.open(folder).recipe.objective_kind == "translate"


def read_pairs(
    path: str | Path, names: tuple[str, str] | None, columns: Mapping[str, str], skip_bad: bool = False
) -> Examples[SentencePair]:
    """Read a file of pairs; `names` are those of the run's own pairs, `columns` come before them."""
    unknown = sorted(set(columns) - {"source", "target"})
    if unknown:
        raise UserError(f"'{unknown[0]}' is no role of a column here: name source and target, as '-c source=en'.")

    def parse(record: Record, where: str) -> SentencePair:
        usual = (SOURCE, TARGET) if names is None else ((names[0], *SOURCE), (names[1], *TARGET))
        return parse_pair(record, columns, where, usual=usual)

    return gather(records(path), parse, path, skip_bad)


def admit_sources(loaded: LoadedModel, examples: Examples[SentencePair], skip_bad: bool) -> Examples[SentencePair]:
    """Return the pairs whose sources the model can read; UserError at one that is too long, unless it is left out."""
    limit = loaded.model.max_length - 1  # its end is read, too
    sources = loaded.tokenizer.encode_ids([" ".join(pair.source.split()) for pair in examples])
    long = {number: len(ids) for number, ids in enumerate(sources) if len(ids) > limit}
    if not long:
        return examples
    messages = [
        f"{examples.places[number]}: the source has {length} tokens, and this model reads at most {limit}."
        for number, length in long.items()
    ]
    if not skip_bad or len(long) == len(examples):
        raise UserError(messages[0], "Split it, or leave such pairs out with --skip-bad.")
    admitted = examples.part(number for number in range(len(examples)) if number not in long)
    admitted.bad = [*examples.bad, *messages]
    return admitted


def evaluate_translation(
    loaded: LoadedModel,
    examples: Examples[SentencePair],
    search: Search | None = None,
    tokenizer: str | None = None,
    intervals: bool = True,
) -> TranslationReport:
    """Translate the sources and score them: BLEU and chrF of all, and BLEU of sources of similar lengths."""
    require("sacrebleu", "Scoring translations")  # before an hour of translation, not behind it
    require_translator(loaded)
    best = [hypotheses[0] for hypotheses in translate(loaded, [pair.source for pair in examples], search)]
    references = [pair.reference for pair in examples]
    metrics = make_segment_scores([each.text for each in best], references, tokenizer)
    scores: dict[str, Score] = {metric.name: score_part(metric, None, intervals) for metric in metrics}
    lengths = np.array([len(pair.source.split()) for pair in examples])
    for name, numbers in split_by_length(lengths):
        scores[f"{metrics[0].name}, {name} source words"] = score_part(metrics[0], numbers, intervals)
    return TranslationReport(scores, best, examples)


def score_part(metric: SegmentScores, numbers: np.ndarray | None, intervals: bool) -> TranslationScore:
    """The score of some sentences, or of all, with its interval."""
    parts = metric.parts if numbers is None else metric.parts[numbers]
    score = bootstrap(len(parts), lambda drawn: metric.score(parts[drawn].sum(0)), intervals)
    return TranslationScore(score.value, score.low, score.high, score.count, metric.signature)


def split_by_length(lengths: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Name and numbers of the sentences of each bucket of source lengths that holds any."""
    buckets = []
    for number, low in enumerate((0, *BUCKETS)):
        high = BUCKETS[number] if number < len(BUCKETS) else None
        inside = np.flatnonzero((lengths > low) & (lengths <= (lengths.max() if high is None else high)))
        if len(inside):
            buckets.append((f"over {low}" if high is None else f"{low + 1}-{high}", inside))
    return buckets
