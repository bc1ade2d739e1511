"""A trie over words in flat arrays: nodes in one hash table, searched for a whole text at a time.

A step from a node by a word is one look-up of hash(node, word, white space before it) in a table with open addressing.
All words of a text take their first step together, those that got somewhere their second, and so on: a few array
operations a step. Keys are 64-bit hashes and are not compared letter by letter: a text of 10^9 words against 10^7
labels meets a false step with a chance of about 10^-3.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from etude.chance import fold, mix_array

ROOT = 0
MAX_WORDS = 24  # of a label; longer ones are titles of papers and laws
_STEP, _SPACE = np.uint64(fold("step") | 1), np.uint64(fold("space") | 1)


@dataclass(frozen=True)
class WordTrie:
    """The nodes of a trie; node 0 is the root."""

    slots: np.ndarray  # (2^k,) uint64: keys of steps by open addressing; 0 is empty
    slot_nodes: np.ndarray  # (2^k,) int32: the node that a step leads to
    is_inner: np.ndarray  # (nodes,) bool: whether any step leads on

    @classmethod
    def build(cls, hashes: np.ndarray, follows_space: np.ndarray, bounds: np.ndarray) -> tuple[Self, np.ndarray]:
        """Build the trie of phrases; also return the last node of each phrase, (phrases,) int32.

        hashes, follows_space: of all words end to end. bounds: where each phrase starts, and the end, (phrases + 1,).
        """
        lengths = np.diff(bounds)
        nodes = np.zeros(len(lengths), np.int64)
        level_keys, inner, count = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 1
        for depth in range(int(lengths.max(initial=0))):
            active = np.flatnonzero(lengths > depth)
            words = bounds[active] + depth
            has_space = follows_space[words] if depth else np.zeros(len(words), bool)
            inner.append(np.unique(nodes[active]))
            keys, numbers = np.unique(step_keys(nodes[active], hashes[words], has_space), return_inverse=True)
            nodes[active] = count + numbers
            level_keys.append(keys)
            count += len(keys)
        is_inner = np.zeros(count, bool)
        is_inner[np.concatenate(inner)] = True
        slots, slot_nodes = _fill_table(np.concatenate(level_keys))
        return cls(slots, slot_nodes, is_inner), nodes.astype(np.int32)

    def step(self, nodes: np.ndarray, hashes: np.ndarray, follows_space: np.ndarray) -> np.ndarray:
        """Return the node each step leads to, (steps,) int32; -1 where it leads nowhere."""
        keys = step_keys(nodes, hashes, follows_space)
        places = (keys >> np.uint64(65 - len(self.slots).bit_length())).astype(np.int64)
        slots = self.slots[places]
        reached = np.full(len(keys), -1, np.int32)
        hits = np.flatnonzero(slots == keys)
        reached[hits] = self.slot_nodes[places[hits]]
        unresolved = np.flatnonzero((slots != keys) & (slots != 0))
        while len(unresolved):
            places[unresolved] = (places[unresolved] + 1) & (len(self.slots) - 1)
            slots = self.slots[places[unresolved]]
            is_hit = slots == keys[unresolved]
            reached[unresolved[is_hit]] = self.slot_nodes[places[unresolved[is_hit]]]
            unresolved = unresolved[~is_hit & (slots != 0)]
        return reached

    @classmethod
    def names(cls) -> list[str]:
        """The names of the arrays."""
        return [field.name for field in fields(cls)]


def step_keys(nodes: np.ndarray, hashes: np.ndarray, follows_space: np.ndarray) -> np.ndarray:
    """Return the key of each step: node, word, white space before it; uint64, never 0."""
    keys = hashes ^ (nodes.astype(np.uint64) * _STEP)
    keys[follows_space] ^= _SPACE
    return mix_array(keys) | np.uint64(1)


def _fill_table(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a table with the distinct keys of nodes 1, 2, ...; at most half full, so that searches are short."""
    size = 1 << max(4, (2 * len(keys)).bit_length())
    slots, slot_nodes = np.zeros(size, np.uint64), np.zeros(size, np.int32)
    places = (keys >> np.uint64(65 - size.bit_length())).astype(np.int64)
    numbers = np.arange(len(keys))
    while len(numbers):
        is_free = slots[places] == 0
        slots[places[is_free]] = keys[numbers[is_free]]  # of several for one slot one gets it
        is_stored = is_free & (slots[places] == keys[numbers])
        slot_nodes[places[is_stored]] = numbers[is_stored] + 1
        numbers, places = numbers[~is_stored], (places[~is_stored] + 1) & (size - 1)
    return slots, slot_nodes
