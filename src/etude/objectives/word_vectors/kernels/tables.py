"""What the inner loops read beside the vectors: plain arrays, made once a run.

Noise words are drawn in constant time from Walker's alias table (1977): V equal slots, each shared by two words. One
64-bit hash is a draw: its upper half chooses the slot, its lower half which of the two words. word2vec's own table of
10^8 entries says the same to eight digits in 400 MB.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LIMIT = 6.0  # scores beyond it count as certain, as in word2vec [code]
CELLS = 1000  # of the sigmoid's table over (-LIMIT, LIMIT), as in word2vec [code]


def _sigmoid_tables() -> tuple[np.ndarray, np.ndarray]:
    # at the middle of each cell: word2vec takes its left edge, which is off by half a cell on average
    middle = (np.arange(CELLS) + 0.5) / CELLS * 2 * LIMIT - LIMIT
    return (1 / (1 + np.exp(-middle))).astype(np.float32), np.log1p(np.exp(-middle)).astype(np.float32)


SIGMOID, LOSS = _sigmoid_tables()  # (CELLS,) sigmoid(x) and -log sigmoid(x)


class Noise(NamedTuple):
    """Words told apart from a context. Without words (hierarchical softmax) both arrays are empty."""

    accept: np.ndarray  # (V,) uint32: below it the slot gives its own word
    alias: np.ndarray  # (V,) int32: the word it gives otherwise


class Paths(NamedTuple):
    """The way to each word through a binary tree; all empty where noise is used."""

    bounds: np.ndarray  # (V+1,) int64
    nodes: np.ndarray  # (steps,) int32, row of the output table
    labels: np.ndarray  # (steps,) float32, 1 or 0: what the node has to say


class Subwords(NamedTuple):
    """The rows of the input table whose mean is a word's vector."""

    bounds: np.ndarray  # (V+1,) int64
    rows: np.ndarray  # (entries,) int32
    growth: np.ndarray  # (V,) float32: how much the mean moves when 1 is added to a row for each time it is listed


NO_NOISE = Noise(np.zeros(0, np.uint32), np.zeros(0, np.int32))
NO_PATHS = Paths(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def whole_words(vocab: int) -> Subwords:
    """A word is its own row and nothing else."""
    return Subwords(np.arange(vocab + 1), np.arange(vocab, dtype=np.int32), np.ones(vocab, np.float32))


def noise_table(weights: np.ndarray) -> Noise:
    """(V,) how likely each word is, in any unit; a word of weight 0 is never drawn."""
    share, alias = alias_table(weights / weights.sum())
    # a full slot always gives its own word: its alias is itself, so the one draw in 2^32 above it does no harm
    accept = np.minimum(np.floor(share * 2.0**32), 2.0**32 - 1).astype(np.uint32)
    return Noise(accept, alias.astype(np.int32))


def alias_table(probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(V,) probabilities -> for each of V equal slots, the share of its own word and the word that has the rest."""
    share = probability * len(probability)
    alias = np.arange(len(probability))
    poor = np.flatnonzero(share < 1).tolist()
    rich = np.flatnonzero(share >= 1).tolist()
    left = share.tolist()  # plain floats: one at a time is slow in arrays
    while poor and rich:
        low, high = poor.pop(), rich[-1]
        alias[low] = high
        left[high] -= 1.0 - left[low]
        if left[high] < 1:
            poor.append(rich.pop())
    accept = np.array(left)
    accept[poor + rich] = 1.0  # rounding: these are full
    return np.clip(accept, 0.0, 1.0), alias


def huffman_paths(counts: np.ndarray) -> Paths:
    """The tree of least mean depth (Huffman 1952) over the words that occur; its V-1 inner nodes are output rows.

    Going to the left child is label 1, to the right 0: the loss of a step is -log sigmoid((1 - 2d) score) for the
    code bit d of word2vec [code]. The root has the last row in use, so frequent nodes lie together. Words that are
    equally frequent are joined as in word2vec and fastText [code]: the last one first, an inner node before a word.
    So whoever reads a file with these counts finds every node in its row.
    """
    present = np.flatnonzero(counts)
    words = present[np.argsort(-counts[present], kind="stable")].tolist()  # by falling frequency
    waiting = [int(counts[word]) for word in words]  # popped from the end: the rarest first
    sums: list[int] = []  # of inner nodes: they arise in rising order
    parent: dict[int, tuple[int, float]] = {}  # of a word, or of ~node: its node, and the label there
    first = 0  # the first inner node without a parent
    for node in range(len(words) - 1):
        total = 0
        for label in (1.0, 0.0):
            if waiting and (first == len(sums) or waiting[-1] < sums[first]):
                total += waiting.pop()
                child = words[len(waiting)]
            else:
                total += sums[first]
                child = ~first
                first += 1
            parent[child] = (node, label)
        sums.append(total)
    bounds = np.zeros(len(counts) + 1, np.int64)
    nodes: list[int] = []
    labels: list[float] = []
    for word in range(len(counts)):
        step = parent.get(word)
        while step is not None:
            nodes.append(step[0])
            labels.append(step[1])
            step = parent.get(~step[0])
        bounds[word + 1] = len(nodes)
    return Paths(bounds, np.array(nodes, np.int32), np.array(labels, np.float32))
