"""Initialising a tagger's word vectors from a run of word vectors (`task.network.vectors`).

The vocabulary of the network is that of its training examples and the frequent words of the vectors, so that words
outside the training examples have vectors too. They are copied once, when training starts, and then trained. The
network reads words in lower case: where the vectors know a word in another writing alone, such as the name Seoul, its
most frequent writing counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.inference.opening import open_model
from etude.models.base import require
from etude.models.static import Static
from etude.settings import Strict
from etude.tasks.base import Task
from etude.tasks.tag.network import HasNetwork
from etude.tasks.tag.network_inputs import HasWordNetwork
from etude.tasks.tag.word_features import Tables
from etude.text.tokenizer.token_strings import list_token_strings
from etude.text.tokenizer.tokenizer import Tokenizer


def add_vector_words(facts: dict[str, Any], settings: Strict) -> dict[str, Any]:
    """Return the facts of a task with its vocabulary extended by the words of the pre-trained vectors."""
    network = settings.network if isinstance(settings, HasNetwork) else None
    if network is None or network.vectors is None:
        return facts
    tokenizer = _load_vectors(network.vectors, network.words).tokenizer
    special = set(tokenizer.special.ids())
    count = min(tokenizer.vocab, network.known + len(special))
    words = [tokenizer.token(id).lower() for id in range(count) if id not in special]
    return {**facts, "tables": Tables.of(network.features, facts["tables"]).with_words(words).facts()}


def init_word_vectors(task: Task) -> None:
    """Initialise the network's word vectors; called when training starts, not when it resumes."""
    tagger = task.own if isinstance(task, HasWordNetwork) else None
    if tagger is None or tagger.settings.vectors is None:
        return
    loaded = _load_vectors(tagger.settings.vectors, tagger.settings.words)
    written = find_writings(tagger.tables.words, loaded.tokenizer)
    vectors = loaded.states([written], layers="last")[0]  # (words, width)
    is_known = np.array(_are_known(written, loaded.tokenizer))
    tagger.network.start_from(torch.from_numpy(vectors), torch.from_numpy(is_known))


def find_writings(words: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return lower-case words as the vectors know them: as they are, or in their most frequent writing."""
    writings: dict[str, str] = {}
    for token in list_token_strings(tokenizer):  # by falling frequency
        if token is not None:
            writings.setdefault(token.lower(), token)
    known = _are_known(words, tokenizer)
    return [word if is_known else writings.get(word, word) for word, is_known in zip(words, known, strict=True)]


def _are_known(words: Sequence[str], tokenizer: Tokenizer) -> list[bool]:
    """Return for each word whether it is one token, and not the unknown one."""
    encodings = tokenizer.encode_batch(words)
    return [len(encoding.ids) == 1 and encoding.ids[0] != tokenizer.special.unknown for encoding in encodings]


def _load_vectors(path: str, width: int) -> InferenceModel:
    loaded = open_model(path, InferenceModel, "cpu")
    require(loaded.model, Static, f"task.network.vectors={path} is no run of word vectors.")
    if loaded.model.width != width:
        raise UserError(
            f"task.network.words={width}, and the vectors of {path} are {loaded.model.width} wide. "
            f"Set task.network.words={loaded.model.width}."
        )
    return loaded
