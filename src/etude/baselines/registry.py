"""Which baselines there are for a kind of task; fitting one, and loading a saved one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.baselines.base import Baseline, BaselineTask, read_saved
from etude.baselines.candidates import ChoiceBaseline, RankBaseline, SimilarityBaseline
from etude.baselines.labels import LabelBaseline
from etude.baselines.linear_baseline import WordVectors
from etude.baselines.ngram_bag import BagBaseline
from etude.baselines.spans import SpanBaseline
from etude.baselines.tagger import TagBaseline
from etude.errors import UserError
from etude.runs.task_plan import task_module
from etude.settings import Strict
from etude.tasks.base import Facts
from etude.tasks.data.examples import Examples

Family = LabelBaseline | SimilarityBaseline | ChoiceBaseline | RankBaseline | TagBaseline | SpanBaseline
BASELINES: dict[str, str] = {
    "tfidf": "tf-idf of words and characters under a linear model; of tags, word features under a linear chain; "
    "of spans, overlap with the question under a linear model of spans",
    "ngrams": "a bag of n-grams with embeddings, as fastText",
    "vectors": "the mean of word vectors under a linear model",
    "tfidf+vectors": "tf-idf beside the mean of word vectors; of tags, word features beside clusters of word vectors",
}
PAIRS: dict[str, type[Family]] = {
    "pair": LabelBaseline, "similarity": SimilarityBaseline, "choice": ChoiceBaseline, "rank": RankBaseline,
}  # fmt: skip
TEXTS: dict[str, type[Family]] = {"classify": LabelBaseline, "relation": LabelBaseline}
FAMILIES: dict[str, dict[str, type[Family]]] = {
    "tfidf": {**TEXTS, **PAIRS, "tag": TagBaseline, "span": SpanBaseline},
    "ngrams": {"classify": BagBaseline, "relation": BagBaseline},
    "vectors": {**TEXTS, **PAIRS},
    "tfidf+vectors": {**TEXTS, **PAIRS, "tag": TagBaseline},
}


def supports(name: str, kind: str) -> bool:
    """Whether there is such a baseline for this kind of task."""
    return kind in FAMILIES.get(name, {})


def needs_vectors(name: str) -> bool:
    """Whether `fit` has to be given word vectors."""
    return name in ("vectors", "tfidf+vectors")


def fit(
    name: str,
    kind: str,
    settings: Strict | None,
    examples: Examples[Any],
    seed: int = 0,
    *,
    facts: Facts | None = None,
    columns: Mapping[str, str] | None = None,
    vectors: WordVectors | None = None,
) -> Baseline[Any]:
    """Fit a baseline to labelled examples.

    `settings` of the task, its defaults if None. `facts` are learnt from the examples unless given: folds of one set
    share those of the whole set, so that all know the same labels.
    """
    family = _family(name, kind)
    if needs_vectors(name) != (vectors is not None):
        raise ValueError(f"the baseline '{name}' {'needs' if needs_vectors(name) else 'takes no'} word vectors")
    module = task_module(kind)
    settings = module.Settings() if settings is None else settings
    known = dict(facts) if facts is not None else module.learn(examples, settings)
    task = BaselineTask(kind, settings, known, dict(columns or {}))
    task.module.scoring(settings, known)  # refuses a single label, an unknown positive one
    return family.fit(name, task, examples, seed, vectors)


def load(folder: str | Path) -> Baseline[Any]:
    """Open a saved baseline; UserError where the folder is none, or damaged."""
    saved = read_saved(folder)
    family = _family(saved.name, saved.task.kind)
    try:
        return family.restore(saved.name, saved.task, saved.description, saved.arrays)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as problem:
        raise UserError(f"{folder} is a damaged baseline: {problem}. Make it again.") from None


def _family(name: str, kind: str) -> type[Family]:
    if not supports(name, kind):
        available = ", ".join(baseline for baseline in BASELINES if supports(baseline, kind)) or "none"
        raise UserError(f"There is no baseline '{name}' for the task {kind}. There is: {available}.")
    return FAMILIES[name][kind]
