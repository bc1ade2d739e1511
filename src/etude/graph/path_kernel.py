"""The loops of the path search, plain Python that numba compiles where it is installed (some hundred times faster).

All simple paths between two concepts, the shortest first and those of one length in the order of their concepts. From
the target, neighbours (`near`) and what joins a neighbour (`reach`) are marked once; from the source, only hops that
these marks allow are followed, so nearly every step is part of a path and hubs cost what they contribute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from etude.extras import is_installed

MOST_EDGES = 4  # of a path: the loops below are written out

Kernel = Callable[..., tuple[np.ndarray, np.ndarray]]


@cache
def compile_search() -> Kernel:
    """`search_pairs`, compiled by numba where that is installed: the same paths in the same order."""
    if not is_installed("numba"):
        return search_pairs
    from numba import njit

    kernel: Kernel = njit(search_pairs)
    ends = np.zeros(1, np.int64)
    # compiled by the types of the first call: here, so that processes forked later have it
    kernel(np.zeros(2, np.int64), np.zeros(0, np.int32), np.ones(1, bool), ends, ends, 2, 1)
    return kernel


def search_pairs(
    bounds: np.ndarray,
    neighbours: np.ndarray,
    passable: np.ndarray,
    sources: np.ndarray,
    targets: np.ndarray,
    edges: int,
    most: int,
) -> tuple[np.ndarray, np.ndarray]:
    """All simple paths of up to `edges` edges between each source and its target, at most `most` a pair.

    bounds (C+1,), neighbours (M,) ascending within a concept; passable (C,): may lie inside a path; sources, targets
    (P,): pairs with one target side by side are faster. Returns the concepts of the paths (K, edges+1), -1 behind
    the last, and the number of each path's pair (K,).
    """
    count = len(bounds) - 1
    near = np.full(count, -1, np.int32)
    reach = np.full(count, -1, np.int32)
    paths = np.full((64, edges + 1), -1, np.int32)
    pairs = np.zeros(64, np.int32)
    total = 0
    mark = -1  # the first pair of the present target: marks of earlier targets need no clearing
    reach_mark = -1
    for pair in range(len(sources)):
        source, target = sources[pair], targets[pair]
        if total + most > len(pairs):  # room for all paths of this pair; element by element, which compiles fastest
            longer = np.empty((2 * len(pairs) + most, edges + 1), np.int32)
            longer_pairs = np.empty(2 * len(pairs) + most, np.int32)
            for row in range(total):
                longer_pairs[row] = pairs[row]
                for column in range(edges + 1):
                    longer[row, column] = paths[row, column]
            for row in range(total, len(longer)):
                for column in range(edges + 1):
                    longer[row, column] = -1
            paths, pairs = longer, longer_pairs
        if source == target:
            continue
        if mark < 0 or target != targets[mark]:
            mark = pair
            for place in range(bounds[target], bounds[target + 1]):
                near[neighbours[place]] = mark
        end = total + most
        if near[source] == mark and total < end:  # one edge
            paths[total, 0], paths[total, 1] = source, target
            pairs[total] = pair
            total += 1
        if edges >= 2:
            for place in range(bounds[source], bounds[source + 1]):
                if total == end:
                    break
                first = neighbours[place]
                if near[first] == mark and passable[first]:
                    paths[total, 0], paths[total, 1], paths[total, 2] = source, first, target
                    pairs[total] = pair
                    total += 1
        if edges >= 3 and total < end and reach_mark != mark:
            reach_mark = mark
            for place in range(bounds[target], bounds[target + 1]):
                last = neighbours[place]
                if passable[last]:
                    for onward in range(bounds[last], bounds[last + 1]):
                        reach[neighbours[onward]] = mark
        if edges >= 3:
            for place in range(bounds[source], bounds[source + 1]):
                if total == end:
                    break
                first = neighbours[place]
                if first == target or not passable[first] or reach[first] != mark:
                    continue
                for onward in range(bounds[first], bounds[first + 1]):
                    if total == end:
                        break
                    last = neighbours[onward]
                    if near[last] == mark and passable[last] and last != source:
                        paths[total, 0], paths[total, 1], paths[total, 2] = source, first, last
                        paths[total, 3] = target
                        pairs[total] = pair
                        total += 1
        if edges >= 4:
            for place in range(bounds[source], bounds[source + 1]):
                if total == end:
                    break
                first = neighbours[place]
                if first == target or not passable[first]:
                    continue
                for onward in range(bounds[first], bounds[first + 1]):
                    if total == end:
                        break
                    middle = neighbours[onward]
                    if middle in (source, target) or not passable[middle] or reach[middle] != mark:
                        continue
                    for beyond in range(bounds[middle], bounds[middle + 1]):
                        if total == end:
                            break
                        last = neighbours[beyond]
                        if near[last] == mark and passable[last] and last != source and last != first:
                            paths[total, 0], paths[total, 1], paths[total, 2] = source, first, middle
                            paths[total, 3], paths[total, 4] = last, target
                            pairs[total] = pair
                            total += 1
    return paths[:total], pairs[:total]
