"""The schema graph of one answer as an SVG: concepts of the question left, of the answer right, the rest between.

Lines are hops of the heaviest paths; their width is the sum of the weights of the paths that take them, and the arrow
runs from head to tail. All colours are those of the page (view/page.css).
"""

from __future__ import annotations

import math
from html import escape

from etude.view.paths import AnswerView, PathView

MOST_PATHS = 24  # drawn of an answer, the heaviest; the page says how many are left out
WIDTH, ROW, MARGIN = 860, 46, 30
BOX_HEIGHT = 26
LETTER = 7.4  # the width of a letter, about; a Korean one takes two
LONGEST_NAME = 22
TIP = 14  # of an arrow; a line ends where its tip begins, so that a thick one does not hide it


def draw_answer(answer: AnswerView, number: int) -> str:
    """The picture of an answer's paths; "" where it has none. `number` keeps the names of parts apart on a page."""
    paths = answer.paths[:MOST_PATHS]
    if not paths:
        return ""
    columns = _place_concepts(paths)
    spots = _spread(columns)
    height = 2 * MARGIN + ROW * max(sum(column == own for own in columns.values()) for column in columns.values())
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(answer.text)}">',
        f'<defs><marker id="tip{number}" viewBox="0 0 8 8" refX="0" refY="4" markerWidth="{TIP}" markerHeight="{TIP}" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>',
    ]
    parts += [
        _draw_hop(head, tail, relation, weight, spots, number)
        for (head, tail, relation), weight in _weigh(paths).items()
    ]
    parts += [_draw_concept(name, columns[name], spots[name]) for name in columns]
    return "\n".join([*parts, "</svg>"])


def _place_concepts(paths: list[PathView]) -> dict[str, float]:
    """The column of each concept, from 0 (question) to 1 (answer): where it first stands in a path."""
    columns: dict[str, float] = {}
    for path in paths:
        columns[path.concepts[0]] = 0.0
        columns[path.concepts[-1]] = 1.0
    for path in paths:
        for step, concept in enumerate(path.concepts):
            columns.setdefault(concept, step / (len(path.concepts) - 1))
    return columns


def _spread(columns: dict[str, float]) -> dict[str, tuple[float, float]]:
    """The middle of each concept's box: those of one column below each other, each column centred."""
    groups: dict[float, list[str]] = {}
    for name, column in columns.items():
        groups.setdefault(column, []).append(name)
    tallest = max(map(len, groups.values()))
    edge = 105  # room for half a box
    return {
        name: (
            edge + column * (WIDTH - 2 * edge),
            MARGIN + ROW * (place + 0.5 + (tallest - len(names)) / 2),
        )
        for column, names in groups.items()
        for place, name in enumerate(names)
    }


def _weigh(paths: list[PathView]) -> dict[tuple[str, str, str], float]:
    """(head, tail, relation) of every hop drawn, with the sum of its paths' weights."""
    weights: dict[tuple[str, str, str], float] = {}
    for path in paths:
        for hop, first, second in zip(path.hops, path.concepts, path.concepts[1:], strict=False):
            head, tail = (second, first) if hop.reverse else (first, second)
            key = (head, tail, hop.relation)
            weights[key] = weights.get(key, 0.0) + (1 / len(paths) if path.weight is None else path.weight)
    return weights


def _draw_hop(
    head: str, tail: str, relation: str, weight: float, spots: dict[str, tuple[float, float]], number: int
) -> str:
    (x, y), (end_x, end_y) = spots[head], spots[tail]
    if x == end_x:  # two concepts of one column: around the boxes
        bend = 70.0 if x < WIDTH / 2 else -70.0
        side = _half_width(tail) + TIP if bend > 0 else -_half_width(tail) - TIP  # it arrives from the bend's side
        bend += side
        curve = f"M{x:.0f} {y:.0f}C{x + bend:.0f} {y:.0f} {x + bend:.0f} {end_y:.0f} {end_x + side:.0f} {end_y:.0f}"
        middle_x = x + 0.75 * bend
    else:
        shift = _half_width(tail) if end_x < x else -_half_width(tail)
        length = math.hypot(end_x + shift - x, end_y - y)
        back = max(0.0, 1 - TIP / length)
        curve = f"M{x:.0f} {y:.0f}L{x + back * (end_x + shift - x):.0f} {y + back * (end_y - y):.0f}"
        middle_x = (x + end_x) / 2
    width = 1 + 5 * min(1.0, weight)
    shade = 0.25 + 0.75 * min(1.0, weight)
    return (
        f"<g><title>{escape(f'{head} – {relation} – {tail}: {weight:.1%}')}</title>"
        f'<path d="{curve}" class="hop" style="stroke-width:{width:.1f};opacity:{shade:.2f}" '
        f'marker-end="url(#tip{number})"/>'
        f'<text x="{middle_x:.0f}" y="{(y + end_y) / 2 - 9:.0f}" class="relation">{escape(relation)}</text></g>'
    )


def _draw_concept(name: str, column: float, spot: tuple[float, float]) -> str:
    x, y = spot
    half = _half_width(name)
    kind = "question" if column == 0 else "answer" if column == 1 else "between"
    return (
        f'<g class="concept {kind}"><title>{escape(name)}</title>'
        f'<rect x="{x - half:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{2 * half:.0f}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text x="{x:.0f}" y="{y + 4:.0f}">{escape(_shorten(name))}</text></g>'
    )


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _half_width(name: str) -> float:
    letters = sum(2 if ord(letter) > 0x1100 else 1 for letter in _shorten(name))
    return 12 + LETTER * letters / 2
