"""The schema graph of one answer as an SVG: concepts of the question left, of the answer right, the rest between.

Lines are hops of the heaviest paths; their width is the sum of the weights of the paths that take them, and the arrow
runs from head to tail. Where everything stands is view/paths_layout.py; all colours are those of the page
(view/page.css).
"""

from __future__ import annotations

from html import escape

from etude.view.paths import AnswerView, PathView
from etude.view.paths_layout import TIP, WIDTH, Curve, Fact, Rectangle, lay_out, list_facts, shorten

MOST_PATHS = 24  # drawn of an answer, the heaviest; the page says how many are left out


def draw_answer(answer: AnswerView, number: int) -> str:
    """The picture of an answer's paths; "" where it has none. `number` keeps the names of parts apart on a page."""
    paths = answer.paths[:MOST_PATHS]
    if not paths:
        return ""
    layout = lay_out(paths)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {layout.height}" role="img" aria-label="{escape(answer.text)}">',
        f'<defs><marker id="tip{number}" viewBox="0 0 8 8" refX="0" refY="4" markerWidth="{TIP}" markerHeight="{TIP}" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>',
    ]
    parts += [_draw_fact(fact, weight, layout.curves[fact], number) for fact, weight in _weigh(paths).items()]
    # boxes over lines, names of relations over both
    parts += [_draw_concept(name, layout.columns[name], box) for name, box in layout.boxes.items()]
    parts += [_draw_label(fact, label) for fact, label in layout.labels.items()]
    return "\n".join([*parts, "</svg>"])


def _weigh(paths: list[PathView]) -> dict[Fact, float]:
    """Every fact drawn, with the sum of its paths' weights."""
    weights: dict[Fact, float] = {}
    for path in paths:
        for fact in list_facts(path):
            weights[fact] = weights.get(fact, 0.0) + (1 / len(paths) if path.weight is None else path.weight)
    return weights


def _draw_fact(fact: Fact, weight: float, curve: Curve, number: int) -> str:
    start, *rest = (f"{x:.0f} {y:.0f}" for x, y in curve.points)
    width = 1 + 5 * min(1.0, weight)
    shade = 0.25 + 0.75 * min(1.0, weight)
    return (
        f"<g><title>{escape(f'{fact.head} – {fact.relation} – {fact.tail}: {weight:.1%}')}</title>"
        f'<path d="M{start}C{" ".join(rest)}" class="hop" style="stroke-width:{width:.1f};opacity:{shade:.2f}" '
        f'marker-end="url(#tip{number})"/></g>'
    )


def _draw_label(fact: Fact, label: Rectangle) -> str:
    return f'<text x="{label.x:.0f}" y="{label.y + 3:.0f}" class="relation">{escape(fact.relation)}</text>'


def _draw_concept(name: str, column: float, box: Rectangle) -> str:
    kind = "question" if column == 0 else "answer" if column == 1 else "between"
    return (
        f'<g class="concept {kind}"><title>{escape(name)}</title>'
        f'<rect x="{box.x - box.width / 2:.0f}" y="{box.y - box.height / 2:.0f}" width="{box.width:.0f}" '
        f'height="{box.height}" rx="8"/>'
        f'<text x="{box.x:.0f}" y="{box.y + 4:.0f}">{escape(shorten(name))}</text></g>'
    )
