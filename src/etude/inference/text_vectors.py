"""Vectors of many texts (`encode`): one for each, pooled over the hidden states of its tokens.

Texts are encoded by the tokenizer while the model computes the vectors of those before, and a GPU is never waited for:
vectors of a pass are copied to the host while it computes the next ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.inference.base import InferenceModel, spans
from etude.inference.text_inputs import require_texts
from etude.models.framing import pool
from etude.nn.host_copy import HostCopy
from etude.nn.packed import Packed

VectorPooling = Literal["mean", "max", "start", "last"]  # the words of `task.pooling` and of `etude features --pool`
Pool = Literal["mean", "max", "start", "last", "none"]  # none: the states of all tokens
TEXTS, CHARACTERS = 4096, 1_000_000  # that are encoded together: encodings are large, so not all of them are
# of one forward pass; never changes a result. A CPU is a fifth faster where a pass stays in its caches, a GPU where
# there is more to compute than to launch
TOKENS = {"cpu": 4_096, "cuda": 32_768}
LAST = -1


@torch.no_grad()
def encode_texts(loaded: InferenceModel, texts: Iterable[str], layer: int, pooling: VectorPooling) -> np.ndarray:
    """Return one vector a text, (texts, width), of a layer of a model; markers count, and long texts are cut."""
    texts = _check_arguments(texts, layer, pooling)
    tokens = TOKENS["cpu" if torch.device(loaded.device).type == "cpu" else "cuda"]
    vectors = np.zeros((len(texts), loaded.model.width), np.float32)
    done, copies = 0, deque[HostCopy]()
    for packed in loaded.pack_arrays(_frame_texts(loaded, texts), tokens):
        pooled = pool(_compute_layer(loaded, packed, layer), packed.layout, pooling)
        if pooled.shape[1] != vectors.shape[1]:  # layers of two towers are wider than what combines them
            vectors = np.zeros((len(texts), pooled.shape[1]), np.float32)
        copies.append(HostCopy(pooled.float()))
        if len(copies) > 1:  # while the pass that was launched last is under way
            done = _write(vectors, done, copies.popleft())
    for copy in copies:
        done = _write(vectors, done, copy)
    return vectors


@torch.no_grad()
def encode_tokens(loaded: InferenceModel, texts: Iterable[str], layer: int) -> list[np.ndarray]:
    """Return the states of each text's tokens, (tokens, width), markers among them."""
    texts = _check_arguments(texts, layer, "none")
    arrays: list[np.ndarray] = []
    for packed in loaded.pack_arrays(_frame_texts(loaded, texts), TOKENS["cpu"]):
        states = _compute_layer(loaded, packed, layer).float().cpu().numpy()  # (N, D)
        arrays += [states[start:stop] for start, stop in spans(packed)]
    return arrays


def _check_arguments(texts: Iterable[str], layer: int, pooling: Pool) -> list[str]:
    """Return the texts as a list; raise UserError for what is no list of texts, no layer or no pooling."""
    listed = require_texts(texts, "encode")
    if not isinstance(layer, int):
        raise UserError(f"layer={layer!r}: give the number of one; 0 is the embeddings, -1 the last.")
    check_pool(pooling)
    return listed


def check_pool(pooling: str) -> None:
    """Raise UserError where states are not pooled in this way."""
    if pooling not in get_args(Pool):
        raise UserError(f"pool is one of {', '.join(get_args(Pool))}, not '{pooling}'.")


def _write(vectors: np.ndarray, start: int, copy: HostCopy) -> int:
    """Write those of a pass (S, D) behind the first `start` rows; return where they end."""
    arrived = copy.wait()
    stop = start + len(arrived)
    vectors[start:stop] = arrived.numpy()
    return stop


def _compute_layer(loaded: InferenceModel, packed: Packed, layer: int) -> Tensor:
    """Return the states (N, D) of a layer."""
    if layer == LAST and loaded.model.state_width == loaded.model.width:
        return loaded.model(packed).last
    states = loaded.model.layer_states(packed)
    if not -len(states) <= layer < len(states):
        raise UserError(
            f"layer={layer}: this model has layers 0 (the embeddings) to {len(states) - 1}; -1 is the last."
        )
    return states[layer]


def _frame_texts(loaded: InferenceModel, texts: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield the ids of each text as in pre-training, cut to the context."""
    number = 0
    for group in _encode_ahead(loaded, texts):
        for ids in group:
            framed = loaded.frame(ids)
            if not len(framed):
                raise UserError(f"Text {number} has no tokens, so it has no vector: leave it out.")
            yield framed
            number += 1


def _encode_ahead(loaded: InferenceModel, texts: Sequence[str]) -> Iterator[list[np.ndarray]]:
    """Yield the ids of the texts in groups; the next group is encoded by a thread meanwhile."""
    groups = _split(texts)
    encode = loaded.tokenizer.encode_ids
    first = next(groups, [])
    if len(first) == len(texts):
        yield encode(first)
        return
    with ThreadPoolExecutor(1, "etude-encode") as executor:
        coming: Future[list[np.ndarray]] | None = executor.submit(encode, first)
        while coming is not None:
            ids = coming.result()
            group = next(groups, None)
            coming = None if group is None else executor.submit(encode, group)
            yield ids


def _split(texts: Sequence[str]) -> Iterator[list[str]]:
    """Groups of neighbouring texts, of limited numbers and characters."""
    group: list[str] = []
    characters = 0
    for text in texts:
        if len(group) == TEXTS or (group and characters + len(text) > CHARACTERS):
            yield group
            group, characters = [], 0
        group.append(text)
        characters += len(text)
    if group:
        yield group
