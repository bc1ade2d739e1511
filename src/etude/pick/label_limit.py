"""How many labels a pick learns from: all of them, unless the simplest contender could not do that in time.

A linear model over n-grams takes a millisecond or so a label. It is fitted three times: on a fold, on what was chosen
on, and on everything. With tens of thousands of labels and a few minutes that alone would be too long, and such a fit
cannot be stopped. So a fit on some of the labels is measured first, and where all of them would take more than a share
of the time, a stratified part of them is learnt from.
"""

from __future__ import annotations

import time

import numpy as np

from etude.baselines import registry as baselines
from etude.pick.data import PickData
from etude.pick.labels import Labelled
from etude.pick.splits import hold_out

BASELINE = "tfidf"
ALWAYS = 5000  # labels that are learnt from whatever the time: they take seconds
PILOT = 2000  # labels of the fit that is measured
SHARE = 0.5  # of the time that is left, for the three fits
MARGIN = 1.3  # they take so many times what the first one says: features are more, and the machine may become slower


def count_labels(data: PickData, train: Labelled, seconds_left: float, seed: int) -> int:
    """Return how many of the examples of `train` can be learnt from in the seconds that are left."""
    if len(train) <= ALWAYS or not baselines.supports(BASELINE, train.kind):
        return len(train)
    a_label = measure_fit(data, train, seed) / PILOT
    fits = (len(data.folds[0].train) + len(data.chosen_on) + len(data.refit_on)) / len(train)
    most = int(SHARE * seconds_left / (MARGIN * fits * max(a_label, 1e-9)))
    return len(train) if most >= len(train) else max(ALWAYS, most)


def measure_fit(data: PickData, train: Labelled, seed: int) -> float:
    """Return the seconds of a fit on PILOT labels."""
    _, pilot = hold_out(train, PILOT / len(train), seed)
    start = time.monotonic()
    baselines.fit(
        BASELINE, train.kind, data.settings, train.examples.part(pilot), seed, facts=data.facts, columns=train.columns
    )
    return time.monotonic() - start


def take_labels(train: Labelled, count: int, seed: int) -> Labelled:
    """Return a stratified part of about so many examples; what stands once always stays."""
    if count >= len(train):
        return train
    kept, _ = hold_out(train, 1 - count / len(train), seed)
    return train.take(np.sort(kept))
