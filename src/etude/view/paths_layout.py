"""Where the parts of a schema graph's picture stand: boxes of concepts, lines of facts, names of relations.

Concepts of the question stand in the left column, those of the answer in the right one, the rest between, each where no
other box is. A fact that joins question and answer at once has a row of its own above them, so that it does not run
through their boxes; facts between the same two concepts bend apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from etude.view.paths import PathView

WIDTH, ROW, MARGIN = 860, 46, 30
BOX_HEIGHT = 26
LETTER = 7.4  # the width of a letter of a concept, about; a Korean one takes two
SMALL_LETTER = 6.2  # of a relation
LONGEST_NAME = 22
TIP = 14  # of an arrow; a line ends where its tip begins, so that a thick one does not hide it
BETWEEN = 24  # of two lines that join the same concepts, where they are farthest apart
LABEL_PLACES = (0.5, 0.4, 0.6, 0.32, 0.68, 0.25, 0.75)  # along a line, the best first
LABEL_SHIFTS = (-9, -22, 22)  # right above a line; above or below the boxes where they leave no room between them

Point = tuple[float, float]


@dataclass(frozen=True)
class Rectangle:
    x: float  # the middle
    y: float
    width: float
    height: float

    def overlaps(self, other: Rectangle, gap: float = 0.0) -> bool:
        """Whether both have a point in common, or are nearer than `gap`."""
        return (
            abs(self.x - other.x) < (self.width + other.width) / 2 + gap
            and abs(self.y - other.y) < (self.height + other.height) / 2 + gap
        )


@dataclass(frozen=True)
class Fact:
    """A hop that is drawn, from head to tail."""

    head: str
    tail: str
    relation: str


@dataclass(frozen=True)
class Curve:
    """A cubic Bézier curve."""

    points: tuple[Point, Point, Point, Point]

    def at(self, t: float) -> Point:
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
        x, y = (sum(w * point[axis] for w, point in zip(weights, self.points, strict=True)) for axis in (0, 1))
        return x, y


@dataclass(frozen=True)
class Layout:
    columns: dict[str, float]  # of each concept, from 0 (question) to 1 (answer)
    boxes: dict[str, Rectangle]
    curves: dict[Fact, Curve]
    labels: dict[Fact, Rectangle]
    height: float


def lay_out(paths: list[PathView]) -> Layout:
    """Place the concepts and facts of some paths, given in the order of their weight."""
    columns = _find_columns(paths)
    facts = list(dict.fromkeys(fact for path in paths for fact in list_facts(path)))
    direct = [fact for fact in facts if {columns[fact.head], columns[fact.tail]} == {0.0, 1.0}]
    boxes, rows = _place_boxes(columns, len(direct))
    lanes = {fact: MARGIN + ROW * (row + 0.5) for row, fact in enumerate(direct)}
    curves = _draw_curves(facts, boxes, lanes)
    return Layout(columns, boxes, curves, _place_labels(curves, boxes), 2 * MARGIN + ROW * rows)


def list_facts(path: PathView) -> list[Fact]:
    """The facts that a path runs along, whichever way."""
    hops = zip(path.hops, path.concepts, path.concepts[1:], strict=False)
    return [Fact(second, first, hop.relation) if hop.reverse else Fact(first, second, hop.relation)
            for hop, first, second in hops]  # fmt: skip


def shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _measure(text: str, letter: float) -> float:
    return letter * sum(2 if ord(character) > 0x1100 else 1 for character in text)


def _find_columns(paths: list[PathView]) -> dict[str, float]:
    """The column of each concept: where it first stands in a path."""
    columns: dict[str, float] = {}
    for path in paths:
        columns[path.concepts[0]] = 0.0
        columns[path.concepts[-1]] = 1.0
    for path in paths:
        for step, concept in enumerate(path.concepts):
            columns.setdefault(concept, step / (len(path.concepts) - 1))
    return columns


def _place_boxes(columns: dict[str, float], lanes: int) -> tuple[dict[str, Rectangle], int]:
    """Boxes, and the number of rows: `lanes` rows stay free above the concepts between question and answer."""
    edge = 105  # room for half a box
    sizes = {
        name: (edge + column * (WIDTH - 2 * edge), 24 + _measure(shorten(name), LETTER))
        for name, column in columns.items()
    }
    rows: dict[str, int] = {}
    for name in (name for name, column in columns.items() if 0.0 < column < 1.0):
        row = lanes
        while any(rows[other] == row and _are_near(sizes[name], sizes[other]) for other in rows):
            row += 1
        rows[name] = row
    count = max([lanes, *(row + 1 for row in rows.values())])
    for side in (0.0, 1.0):
        count = max(count, sum(column == side for column in columns.values()))
    boxes = {}
    for side in (0.0, 1.0):  # each side column is centred
        names = [name for name, column in columns.items() if column == side]
        for place, name in enumerate(names):
            y = MARGIN + ROW * (place + 0.5 + (count - len(names)) / 2)
            boxes[name] = Rectangle(sizes[name][0], y, sizes[name][1], BOX_HEIGHT)
    for name, row in rows.items():
        boxes[name] = Rectangle(sizes[name][0], MARGIN + ROW * (row + 0.5), sizes[name][1], BOX_HEIGHT)
    return {name: boxes[name] for name in columns}, count


def _are_near(left: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether two boxes (middle, width) of one row would leave no room for an arrow between them."""
    return abs(left[0] - right[0]) < (left[1] + right[1]) / 2 + 2 * TIP


def _draw_curves(facts: list[Fact], boxes: dict[str, Rectangle], lanes: dict[Fact, float]) -> dict[Fact, Curve]:
    together: defaultdict[frozenset[str], list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact not in lanes:
            together[frozenset((fact.head, fact.tail))].append(fact)
    curves = {}
    for fact in facts:
        same = together[frozenset((fact.head, fact.tail))]
        offset = 0.0 if fact in lanes else BETWEEN * (same.index(fact) - (len(same) - 1) / 2)
        curves[fact] = _draw_curve(boxes[fact.head], boxes[fact.tail], offset, lanes.get(fact))
    return curves


def _draw_curve(head: Rectangle, tail: Rectangle, offset: float, lane: float | None) -> Curve:
    """From the middle of the head's box to where the tip at the tail's box begins."""
    x, y = head.x, head.y
    if x == tail.x:  # two concepts of one column: around the boxes
        side = 1.0 if x < WIDTH / 2 else -1.0
        edge = tail.x + side * tail.width / 2
        bend = edge + side * (70 + abs(offset))
        first, second = (bend, y), (bend, tail.y)
    else:
        edge = tail.x + math.copysign(tail.width / 2, x - tail.x)
        if lane is None:
            height = 4 / 3 * offset  # the middle of the curve is then `offset` off the straight line
            first = (x + (edge - x) / 3, y + (tail.y - y) / 3 + height)
            second = (x + 2 * (edge - x) / 3, y + 2 * (tail.y - y) / 3 + height)
        else:
            height = (lane - (y + tail.y) / 8) / 0.75  # the middle of the curve lies in its lane
            first, second = (x + 0.2 * (edge - x), height), (x + 0.8 * (edge - x), height)
    length = max(1e-6, math.hypot(edge - second[0], tail.y - second[1]))
    end = edge - TIP * (edge - second[0]) / length, tail.y - TIP * (tail.y - second[1]) / length
    return Curve(((x, y), first, second, end))


def _place_labels(curves: dict[Fact, Curve], boxes: dict[str, Rectangle]) -> dict[Fact, Rectangle]:
    """The name of each relation above its line, where it covers neither a box nor another name if there is room."""
    labels: dict[Fact, Rectangle] = {}
    for fact, curve in curves.items():
        width = _measure(fact.relation, SMALL_LETTER)
        spots = [curve.at(t) for t in LABEL_PLACES]
        choices = [Rectangle(x, y + shift, width, 13) for shift in LABEL_SHIFTS for x, y in spots]
        obstacles = [*boxes.values(), *labels.values()]
        free = (choice for choice in choices if not any(choice.overlaps(other, 1.0) for other in obstacles))
        labels[fact] = next(free, choices[0])
    return labels
