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
from etude.settings import Strict
from etude.tasks import tag
from etude.tasks.base import Task
from etude.tasks.tag.word_features import Tables


def add_vector_words(facts: dict[str, Any], settings: Strict) -> dict[str, Any]:
    """The facts of a task, its tables of words extended by those of the vectors that its network starts from."""
    network = settings.network if isinstance(settings, tag.Settings) else None
    if network is None or network.vectors is None:
        return facts
    tokenizer = _load_vectors(network.vectors, network.words).tokenizer
    special = set(tokenizer.special.ids())
    count = min(tokenizer.vocab, network.known + len(special))
    words = [tokenizer.token(id).lower() for id in range(count) if id not in special]
    return {**facts, "tables": Tables.of(network.features, facts["tables"]).with_words(words).facts()}


def init_word_vectors(task: Task) -> None:
    """Initialise the network's word vectors; called when training starts, not when it resumes."""
    own = task.own if isinstance(task, tag.Tagger) else None
    if own is None or own.settings.vectors is None:
        return
    loaded = _load_vectors(own.settings.vectors, own.settings.words)
    words, unknown = own.tables.words, loaded.tokenizer.special.unknown
    vectors = loaded.states([words], layers="last")[0]  # (words, width)
    ids = [encoding.ids for encoding in loaded.tokenizer.encode_batch(words)]
    given = np.array([len(tokens) == 1 and tokens[0] != unknown for tokens in ids])
    own.network.start_from(torch.from_numpy(vectors), torch.from_numpy(given))


def _load_vectors(path: str, width: int) -> InferenceModel:
    loaded = open_model(path, InferenceModel, "cpu")
    require(loaded.model, Static, f"task.network.vectors={path} is no run of word vectors.")
    if loaded.model.width != width:
        raise UserError(f"task.network.words={width}, and the vectors of {path} are {loaded.model.width} wide.")
    return loaded
