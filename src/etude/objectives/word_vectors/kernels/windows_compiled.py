"""The loops, compiled by numba: word2vec's (Mikolov et al. 2013) [code] at more than twice the speed of C and BLAS.

Three things make the speed. The words of a pair are scored together and updated two at a time, so that a vector is
read from memory once. Noise is drawn one centre ahead, and its rows are asked for then: most of the time of the plain
loop is waiting for them. The input vector is kept at hand over all pairs of a centre.

That a pair's gradients are all taken before its vectors change is no change to the algorithm: its words are different
rows (a noise word drawn twice counts twice), and the input vector waits for the end of the pair in word2vec too.

Arrays are handed on one by one: a tuple of them would be counted up and down at every call, which takes longer than a
pair. Compiling takes some seconds a process; numba could keep the result on disk, but as a pickle, which we never load.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from etude.objectives.word_vectors.kernels.tables import CELLS, LIMIT, LOSS, SIGMOID, Noise, Paths, Subwords

PARALLEL = True  # the loops may run in several threads at once

# sums in any order and fused products, but infinities and NaN keep their meaning: they show in the loss
ROUGHLY = {"reassoc", "contract", "nsz", "arcp"}
LINE = 16  # float32 in a cache line of 64 bytes
PER_CELL = np.float32(CELLS / (2 * LIMIT))
EDGE = np.float32(LIMIT)
ZERO, ONE = np.float32(0), np.float32(1)
GOLDEN, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
HALF, LOWER = np.uint64(32), np.uint64(0xFFFFFFFF)


def skip_gram(
    words: np.ndarray, low: np.ndarray, high: np.ndarray, keys: np.ndarray, start: int, stop: int,
    inputs: np.ndarray, outputs: np.ndarray, subwords: Subwords, noise: Noise, paths: Paths, negatives: int,
    rate: float,
) -> float:  # fmt: skip
    """Centres start..stop predict the words low..high around them, pair by pair; returns the sum of losses.

    words (n,) int64; low, high (n,) int32; keys (n,) uint64, one a centre; inputs, outputs (rows, D) float32, changed.
    """
    return _skip_gram(
        words, low, high, keys, start, stop, inputs, outputs, *subwords, *noise, *paths, negatives, np.float32(rate)
    )


def cbow(
    words: np.ndarray, low: np.ndarray, high: np.ndarray, keys: np.ndarray, start: int, stop: int,
    inputs: np.ndarray, outputs: np.ndarray, subwords: Subwords, noise: Noise, paths: Paths, negatives: int,
    rate: float, divide: bool,
) -> float:  # fmt: skip
    """The mean of the rows of the words low..high predicts the centre; `divide`: a row gets its share of a change."""
    return _cbow(
        words, low, high, keys, start, stop, inputs, outputs, *subwords, *noise, *paths, negatives, np.float32(rate),
        divide,
    )  # fmt: skip


# --- numba from here on: it finds the types by itself -----------------------------------------------


@njit(inline="always")
def _bits(key: Any, index: Any) -> Any:
    """etude.chance.random_bits."""
    x = key + (index + np.uint64(1)) * GOLDEN
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


@intrinsic
def _ask_for(typing: Any, table: Any, row: Any, column: Any) -> Any:
    """Tells the memory that a place of a table will be written soon, and goes on without waiting."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, signature.args[0], array, arguments[1:], wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # to write; into every cache; data
        builder.call(function, [builder.bitcast(place, byte), word(1), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(table, row, column), generate


@njit(inline="always")
def _ask_for_row(table: Any, row: Any) -> None:
    for column in range(0, table.shape[1], LINE):
        _ask_for(table, np.int64(row), column)  # type: ignore[call-arg]


@njit(inline="always")
def _path(word: Any, bounds: Any, nodes: Any, node_labels: Any, table: Any, rows: Any, labels: Any, line: Any) -> Any:
    """Fills a line with the nodes on the way to a word; returns how many they are."""
    first, count = bounds[word], bounds[word + 1] - bounds[word]
    for step in range(count):
        rows[line, step], labels[line, step] = nodes[first + step], node_labels[first + step]
        _ask_for_row(table, rows[line, step])
    return count


@njit(inline="always")
def _contrast(
    word: Any, key: Any, first: Any, negatives: Any, accept: Any, alias: Any, table: Any, rows: Any, labels: Any,
    weights: Any, line: Any,
) -> Any:  # fmt: skip
    """Fills a line with a word and its noise, draws `first` and on of the key; returns how many different rows."""
    rows[line, 0], labels[line, 0], weights[line, 0] = word, ONE, ONE
    _ask_for_row(table, word)
    count, slots = 1, np.uint64(len(accept))
    for number in range(first, first + negatives):
        bits = _bits(key, np.uint64(number))
        slot = np.int64(((bits >> HALF) * slots) >> HALF)
        noise = slot if (bits & LOWER) < accept[slot] else np.int64(alias[slot])
        if noise == word:  # skipped, not drawn again [code]
            continue
        again = False
        for before in range(1, count):
            if rows[line, before] == noise:
                weights[line, before] += ONE
                again = True
        if not again:
            rows[line, count], labels[line, count], weights[line, count] = noise, ZERO, ONE
            _ask_for_row(table, noise)
            count += 1
    return count


@njit(fastmath=ROUGHLY, error_model="numpy", inline="always")
def _score(hidden: Any, table: Any, rows: Any, line: Any, count: Any, grads: Any) -> None:
    """The products of the rows of a line with the hidden vector, three at a time."""
    for number in range(count, (count + 2) // 3 * 3):
        rows[line, number] = rows[line, 0]  # scored and forgotten
    for number in range(0, count, 3):
        a, b, c = rows[line, number], rows[line, number + 1], rows[line, number + 2]
        x, y, z = ZERO, ZERO, ZERO
        for d in range(len(hidden)):
            value = hidden[d]
            x += value * table[a, d]
            y += value * table[b, d]
            z += value * table[c, d]
        grads[number], grads[number + 1], grads[number + 2] = x, y, z


@njit(inline="always")
def _to_grads(grads: Any, labels: Any, weights: Any, line: Any, count: Any, rate: Any, hard: Any) -> Any:
    """Scores become steps: rate times (label - sigmoid); returns the loss.

    `hard`: a certain score is left alone (hierarchical softmax [code]); otherwise it pulls with full force.
    """
    loss = 0.0
    for number in range(count):
        score, label, weight = grads[number], labels[line, number], weights[line, number]
        if -EDGE < score < EDGE:
            cell = np.int64((score + EDGE) * PER_CELL)
            grads[number] = (label - SIGMOID[cell]) * rate * weight
            loss += weight * (LOSS[cell] if label == ONE else LOSS[CELLS - 1 - cell])
        else:
            certain = ONE if score >= EDGE else ZERO
            grads[number] = ZERO if hard else (label - certain) * rate * weight
            if label != certain or score != score:
                loss += weight * (score if label == ZERO else -score)
    return loss


@njit(fastmath=ROUGHLY, error_model="numpy", inline="always")
def _move(hidden: Any, change: Any, table: Any, rows: Any, line: Any, count: Any, grads: Any) -> None:
    """Moves the rows of a line, two at a time; `change` becomes what the hidden vector should move by."""
    for d in range(len(hidden)):
        change[d] = ZERO
    for number in range(0, count - 1, 2):
        a, b, x, y = rows[line, number], rows[line, number + 1], grads[number], grads[number + 1]
        for d in range(len(hidden)):
            value, first, second = hidden[d], table[a, d], table[b, d]
            change[d] += x * first + y * second
            table[a, d] = first + x * value
            table[b, d] = second + y * value
    for number in range(count - count % 2, count):  # one is left
        a, x = rows[line, number], grads[number]
        for d in range(len(hidden)):
            output = table[a, d]
            change[d] += x * output
            table[a, d] = output + x * hidden[d]


@njit(inline="always")
def _learn(
    hidden: Any, change: Any, table: Any, rows: Any, labels: Any, weights: Any, line: Any, count: Any, grads: Any,
    rate: Any, hard: Any,
) -> Any:  # fmt: skip
    """Scores the rows of a line against the hidden vector and moves them; `change` is what it should move by."""
    _score(hidden, table, rows, line, count, grads)
    loss = _to_grads(grads, labels, weights, line, count, rate, hard)
    _move(hidden, change, table, rows, line, count, grads)
    return loss


@njit(inline="always")
def _room(negatives: Any, bounds: Any) -> Any:
    """Rows of the longest line, in threes."""
    most = 1 + negatives
    for word in range(len(bounds) - 1):
        most = max(most, bounds[word + 1] - bounds[word])
    return (most + 2) // 3 * 3


@njit(fastmath=ROUGHLY, error_model="numpy", inline="always")
def _add_rows(word: Any, bounds: Any, rows: Any, table: Any, total: Any) -> Any:
    """Adds the rows of a word to a vector; returns how many they are."""
    for place in range(bounds[word], bounds[word + 1]):
        row = rows[place]
        for d in range(len(total)):
            total[d] += table[row, d]
    return bounds[word + 1] - bounds[word]


@njit(fastmath=ROUGHLY, error_model="numpy", inline="always")
def _move_rows(word: Any, bounds: Any, rows: Any, table: Any, change: Any, share: Any) -> None:
    """Adds `share` of a change to every row of a word."""
    for place in range(bounds[word], bounds[word + 1]):
        row = rows[place]
        for d in range(len(change)):
            table[row, d] += share * change[d]


@njit(inline="always")
def _ask_for_word(word: Any, bounds: Any, rows: Any, table: Any) -> None:
    for place in range(bounds[word], bounds[word + 1]):
        _ask_for_row(table, rows[place])


@njit(nogil=True, fastmath=ROUGHLY, error_model="numpy")
def _skip_gram(
    words: Any, low: Any, high: Any, keys: Any, start: Any, stop: Any, inputs: Any, outputs: Any, sub_bounds: Any,
    sub_rows: Any, sub_growth: Any, accept: Any, alias: Any, path_bounds: Any, nodes: Any, node_labels: Any,
    negatives: Any, rate: Any,
) -> Any:  # fmt: skip
    """A word's vector is the mean of its rows, and a change is added to each of them undivided (fastText [code]), so
    the mean itself moves by it times `growth`: rows are read and written once a centre, not once a pair.
    """
    width, hard = inputs.shape[1], len(path_bounds) > 0
    most = 1
    for place in range(start, stop):
        most = max(most, high[place] - low[place] - 1)
    room = _room(negatives, path_bounds)
    rows, counts = np.zeros((2 * most, room), np.int64), np.zeros(2 * most, np.int64)
    labels, weights = np.zeros((2 * most, room), np.float32), np.ones((2 * most, room), np.float32)
    hidden, change, total = np.zeros(width, np.float32), np.zeros(width, np.float32), np.zeros(width, np.float32)
    grads = np.zeros(room, np.float32)
    loss = 0.0
    for place in range(start, stop + 1):
        if place < stop:  # look ahead: draw and ask for what the next turn needs
            _ask_for_word(words[place], sub_bounds, sub_rows, inputs)
            line = (place & 1) * most
            for neighbour in range(low[place], high[place]):
                if neighbour == place:
                    continue
                if hard:
                    counts[line] = _path(words[neighbour], path_bounds, nodes, node_labels, outputs, rows, labels, line)
                else:
                    counts[line] = _contrast(
                        words[neighbour], keys[place], (neighbour - low[place]) * negatives, negatives, accept,
                        alias, outputs,
                        rows, labels, weights, line,
                    )  # fmt: skip
                line += 1
        if place == start:
            continue
        centre, word = place - 1, words[place - 1]
        for d in range(width):
            hidden[d] = ZERO
        share = ONE / np.float32(_add_rows(word, sub_bounds, sub_rows, inputs, hidden))
        for d in range(width):
            hidden[d] *= share
            total[d] = ZERO
        begin, growth = (centre & 1) * most, sub_growth[word]
        for line in range(begin, begin + high[centre] - low[centre] - 1):
            loss += _learn(hidden, change, outputs, rows, labels, weights, line, counts[line], grads, rate, hard)
            for d in range(width):
                total[d] += change[d]
                hidden[d] += growth * change[d]
        _move_rows(word, sub_bounds, sub_rows, inputs, total, ONE)
    return loss


@njit(nogil=True, fastmath=ROUGHLY, error_model="numpy")
def _cbow(
    words: Any, low: Any, high: Any, keys: Any, start: Any, stop: Any, inputs: Any, outputs: Any, sub_bounds: Any,
    sub_rows: Any, sub_growth: Any, accept: Any, alias: Any, path_bounds: Any, nodes: Any, node_labels: Any,
    negatives: Any, rate: Any, divide: Any,
) -> Any:  # fmt: skip
    width, hard = inputs.shape[1], len(path_bounds) > 0
    room = _room(negatives, path_bounds)
    rows, counts = np.zeros((2, room), np.int64), np.zeros(2, np.int64)
    labels, weights = np.zeros((2, room), np.float32), np.ones((2, room), np.float32)
    hidden, change, grads = np.zeros(width, np.float32), np.zeros(width, np.float32), np.zeros(room, np.float32)
    loss = 0.0
    for place in range(start, stop + 1):
        if place < stop and high[place] - low[place] > 1:
            line = place & 1
            _ask_for_word(words[high[place] - 1], sub_bounds, sub_rows, inputs)  # the others were at hand before
            if hard:
                counts[line] = _path(words[place], path_bounds, nodes, node_labels, outputs, rows, labels, line)
            else:
                counts[line] = _contrast(
                    words[place], keys[place], 0, negatives, accept, alias, outputs, rows, labels, weights, line
                )
        centre = place - 1
        if place == start or high[centre] - low[centre] < 2:
            continue
        for d in range(width):
            hidden[d] = ZERO
        size = 0
        for neighbour in range(low[centre], high[centre]):
            if neighbour != centre:
                size += _add_rows(words[neighbour], sub_bounds, sub_rows, inputs, hidden)
        share = ONE / np.float32(size)
        for d in range(width):
            hidden[d] *= share
        line = centre & 1
        loss += _learn(hidden, change, outputs, rows, labels, weights, line, counts[line], grads, rate, hard)
        for neighbour in range(low[centre], high[centre]):
            if neighbour != centre:
                _move_rows(words[neighbour], sub_bounds, sub_rows, inputs, change, share if divide else ONE)
    return loss
