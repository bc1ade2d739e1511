"""Word vectors that a tagger's own network starts from (`task.network.vectors`): a run of word vectors.

The network knows the words of its training examples and the frequent ones of the vectors, so that words it meets only
later have theirs too. They are taken over once, when training begins; then they are the tagger's own and are trained.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.inference.opening import open_model
from etude.models.base import require
from etude.models.static import Static
from etude.tasks.tag.word_features import Tables


def with_words(facts: dict[str, Any], settings: Any) -> dict[str, Any]:
    """The facts of a task, its tables of words made longer where its network starts from vectors."""
    network = getattr(settings, "network", None)
    if network is None or network.vectors is None:
        return facts
    tokenizer = _opened(network.vectors, network.words).tokenizer
    special = set(tokenizer.special.ids())
    count = min(tokenizer.vocab, network.known + len(special))
    words = [tokenizer.token(id).lower() for id in range(count) if id not in special]
    return {**facts, "tables": Tables.of(network.features, facts["tables"]).with_words(words).facts()}


def begin(task: Any) -> None:
    """First values of the network's word vectors; called when training starts, not when it goes on."""
    own = getattr(task, "own", None)
    if own is None or own.settings.vectors is None:
        return
    vectors = _opened(own.settings.vectors, own.settings.words)
    words, unknown = own.tables.words, vectors.tokenizer.special.unknown
    found = vectors.states([words], layers="last")[0]  # (words, width)
    ids = [encoding.ids for encoding in vectors.tokenizer.encode_batch(words)]
    given = np.array([len(one) == 1 and one[0] != unknown for one in ids])
    own.network.start_from(torch.from_numpy(found), torch.from_numpy(given))


def _opened(place: str, width: int) -> InferenceModel:
    vectors = open_model(place, InferenceModel, "cpu")
    require(vectors.model, Static, f"task.network.vectors={place} is no run of word vectors.")
    if vectors.model.width != width:
        raise UserError(f"task.network.words={width}, and the vectors of {place} are {vectors.model.width} wide.")
    return vectors
