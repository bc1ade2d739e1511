"""SVG charts of the report: no library, no script, colours from CSS variables of the page.

Small enough to be read on a phone at their own size (400 units wide), sharp in print.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from etude.study.plan import format_scientific
from etude.study.report.translations import localize_svg
from etude.study.sections import Localized

WIDTH, HEIGHT = 400, 264
LEFT, RIGHT, TOP, BOTTOM = 34, 126, 12, 40  # margins; names stand to the right of what they name
NAME_GAP = 14  # between two names
MAX_LETTERS, LETTER_WIDTH = 17, 7.4  # letters of a name, and their width
WIDE_LETTERS = 1.55  # that a sign as wide as it is high takes: a syllable of Hangul of 11.5 units
STRIP_WIDTH, STRIP_MARGIN = 240, 8  # width of a strip, and room for its dots at both ends


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    label: Localized
    colour: str  # a CSS value
    points: list[Point]
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    log: bool = False
    ticks: list[float] = field(default_factory=list)

    def position(self, value: float, start: float, stop: float) -> float:
        """Map a value to a coordinate between `start` and `stop`."""
        scaled, low, high = (math.log10(v) if self.log else v for v in (value, self.low, self.high))
        return start + (stop - start) * ((scaled - low) / (high - low) if high > low else 0.5)


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round tick values that span a range."""
    if high <= low:
        high = low + 1
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def linear_axis(values: Sequence[float], pad: float = 0.08, floor: float | None = None) -> Axis:
    low, high = min(values), max(values)
    room = max(high - low, 1e-9) * pad
    low, high = low - room, high + room
    if floor is not None:
        low = max(low, floor)
    return Axis(low, high, ticks=round_ticks(low, high))


def log_axis(values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    if high / low < 4:  # all alike: room on both sides, so that they stand in the middle
        middle = math.sqrt(low * high)
        low, high = min(low / 1.3, middle / 2.2), max(high * 1.3, middle * 2.2)
    else:
        low, high = low / 1.25, high * 1.25
    ticks = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factor in (1, 2, 5)
        if low <= factor * 10.0**power <= high
    ]
    if len(ticks) > 5:
        ticks = [tick for tick in ticks if math.log10(tick).is_integer()] if len(ticks) > 7 else ticks[::2]
    return Axis(low, high, True, ticks)


def format_count(value: float) -> str:
    """Format a number with an SI prefix: 1200 becomes 1.2k."""
    for limit, letter in ((1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def draw_chart(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    x_name: Localized | tuple[str, str],
    *,
    title: str,
    lines: bool = False,
    level: Series | None = None,
    unit: str = "",
) -> str:
    """Draw points with intervals, joined if `lines`; `level` is a dashed horizontal line with its band."""
    plot_left, plot_right, plot_top, plot_bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    parts = [_draw_frame(x, y, x_name, plot_left, plot_right, plot_top, plot_bottom, unit)]

    def x_of(value: float) -> float:
        return x.position(value, plot_left, plot_right)

    def y_of(value: float) -> float:
        return y.position(value, plot_bottom, plot_top)

    names: list[tuple[float, float, Series]] = []
    if level is not None and level.points:
        band = level.points[0]
        top, height = y_of(band.high), y_of(band.y)
        parts.append(
            f'<rect x="{plot_left}" y="{top:.1f}" width="{plot_right - plot_left}" '
            f'height="{max(1.0, y_of(band.low) - top):.1f}" fill="{level.colour}" opacity=".13"/>'
            f'<line x1="{plot_left}" x2="{plot_right}" y1="{height:.1f}" y2="{height:.1f}" '
            f'stroke="{level.colour}" stroke-width="1.5" stroke-dasharray="4 3"/>'
        )
        names.append((height, plot_right, level))
    for line in series:
        if not line.points:
            continue
        ordered = sorted(line.points, key=lambda point: point.x)
        if lines and len(ordered) > 1:
            path = " ".join(f"{x_of(p.x):.1f},{y_of(p.y):.1f}" for p in ordered)
            dash = ' stroke-dasharray="4 3"' if line.dashed else ""
            parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>')
        for point in ordered:
            center, top, bottom = x_of(point.x), y_of(point.high), y_of(point.low)
            if point.high > point.low:
                parts.append(
                    f'<line x1="{center:.1f}" x2="{center:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" '
                    f'stroke="{line.colour}" stroke-width="1.6" opacity=".55"/>'
                )
            parts.append(
                f'<circle cx="{center:.1f}" cy="{y_of(point.y):.1f}" r="4" fill="{line.colour}" class="mark"/>'
            )
        names.append((y_of(ordered[-1].y), x_of(ordered[-1].x), line))
    if lines:
        parts += _draw_names(names, plot_right, plot_top, plot_bottom)
    else:
        parts += _draw_names([line for line in names if line[2] is level], plot_right, plot_top, plot_bottom)
        parts += _draw_point_names([line for line in names if line[2] is not level], plot_top, plot_bottom)
    return _svg("".join(parts), WIDTH, HEIGHT, title)


def _draw_frame(
    x: Axis,
    y: Axis,
    x_name: Localized | tuple[str, str],
    left: float,
    right: float,
    top: float,
    bottom: float,
    unit: str,
) -> str:
    parts = []
    for tick in y.ticks:
        at = y.position(tick, bottom, top)
        parts.append(
            f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>'
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end" class="tick">{tick:g}{unit}</text>'
        )
    for tick in x.ticks:
        at = x.position(tick, left, right)
        value = format_scientific(tick) if tick >= 1e9 else format_count(tick)  # FLOPs as the tables have them
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}" class="axis"/>'
            f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle" class="tick">{value}</text>'
        )
    parts.append(f'<line x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}" class="axis"/>')
    parts.append(
        f'<text x="{(left + right) / 2:.0f}" y="{bottom + 34}" text-anchor="middle" class="name">'
        f"{localize_svg(x_name)}</text>"
    )
    return "".join(parts)


def _draw_names(names: list[tuple[float, float, Series]], right: float, top: float, bottom: float) -> list[str]:
    """Label the last points at the right edge, spread apart, with a thin line to each point."""
    ordered = sorted(names, key=lambda line: line[0])
    heights = [height for height, _, _ in ordered]
    for number in range(1, len(heights)):
        heights[number] = max(heights[number], heights[number - 1] + NAME_GAP)
    if heights and heights[-1] > bottom - 2:
        heights[-1] = bottom - 2
        for number in range(len(heights) - 2, -1, -1):
            heights[number] = min(heights[number], heights[number + 1] - NAME_GAP)
    parts = []
    for place, (height, x_end, line) in zip(heights, ordered, strict=True):
        x = right + 8
        if x_end < right - 1 or abs(place - height) > 3:
            parts.append(
                f'<path d="M{x_end + 6:.1f},{height:.1f} L{x - 5:.1f},{place:.1f}" fill="none" stroke="{line.colour}" '
                'stroke-width=".8" opacity=".6"/>'
            )
        parts.append(
            f'<text x="{x}" y="{place + 4:.1f}" class="label" style="fill:{line.colour}">{_shorten(line.label)}</text>'
        )
    return parts


def _draw_point_names(names: list[tuple[float, float, Series]], top: float, bottom: float) -> list[str]:
    """Label single points: to the right, or at the nearest free position."""
    points = [(center - 6, height - 6, center + 6, height + 6) for height, center, _ in names]
    boxes: list[tuple[float, float, float, float]] = []
    parts = []
    for number, (height, center, line) in sorted(enumerate(names), key=lambda item: (-item[1][1], item[1][0])):
        texts = [line.label] if isinstance(line.label, str) else list(line.label.values())
        longest = max(map(_count_letters, texts), default=0.0)
        obstacles = [*boxes, *(box for place, box in enumerate(points) if place != number)]
        for most in sorted({longest, min(longest, MAX_LETTERS)}, reverse=True):  # whole, if there is room for that
            size = LETTER_WIDTH * most
            place = _find_place(center, height, size, (top, bottom), obstacles)
            if place is not None:
                break
        x, y = place or (center + 9, height)
        boxes.append((x, y - 6, x + size, y + 6))
        parts.append(
            f'<text x="{x:.1f}" y="{y + 4:.1f}" class="label" style="fill:{line.colour}">'
            f"{_shorten(line.label, most)}</text>"
        )
    return parts


def _find_place(
    center: float,
    height: float,
    size: float,
    limits: tuple[float, float],
    obstacles: Sequence[tuple[float, float, float, float]],
) -> tuple[float, float] | None:
    """Find the nearest free position of a name beside its point: right of it, left of it, then above and below."""
    top, bottom = limits
    for up in (0, -1, 1, -2, 2, -3, 3):
        for x in (center + 9, center - 9 - size):
            y = height + NAME_GAP * up
            box = (x, y - 6, x + size, y + 6)
            is_inside = x > LEFT and top < y < bottom and x + size < WIDTH
            if is_inside and not any(_overlap(box, obstacle) for obstacle in obstacles):
                return x, y
    return None


def _overlap(left: tuple[float, float, float, float], right: tuple[float, float, float, float]) -> bool:
    return left[0] < right[2] and right[0] < left[2] and left[1] < right[3] and right[1] < left[3]


def _shorten(label: Localized, most: float = MAX_LETTERS) -> str:
    def cut(text: str) -> str:
        if _count_letters(text) <= most:
            return text
        fitting = max(count for count in range(len(text)) if _count_letters(text[:count]) <= most - 1)
        return text[:fitting] + "…"

    return localize_svg(cut(label) if isinstance(label, str) else {name: cut(text) for name, text in label.items()})


def _count_letters(text: str) -> float:
    """Count the letters of a text by their width."""
    return sum(WIDE_LETTERS if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _svg(inside: str, width: float, height: float, title: str, kind: str = "chart") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="xMinYMid" role="img" '
        f'aria-label="{title}">'
        f"<title>{title}</title>{inside}</svg>"
    )


def draw_strip(mean: float, low: float, high: float, seeds: Sequence[float], axis: Axis, colour: str, title: str,
          zero: float | None = None) -> str:  # fmt: skip
    """Draw an interval on a line, with seeds as small dots and the mean as a large one."""
    width, height = STRIP_WIDTH, 26

    def x_of(value: float) -> float:
        return axis.position(min(max(value, axis.low), axis.high), STRIP_MARGIN, width - STRIP_MARGIN)

    middle = height / 2
    parts = [f'<line x1="{STRIP_MARGIN}" x2="{width - STRIP_MARGIN}" y1="{middle}" y2="{middle}" class="grid"/>']
    if zero is not None:
        parts.append(f'<line x1="{x_of(zero):.1f}" x2="{x_of(zero):.1f}" y1="2" y2="{height - 2}" class="zero"/>')
    parts.append(
        f'<line x1="{x_of(low):.1f}" x2="{x_of(high):.1f}" y1="{middle}" y2="{middle}" stroke="{colour}" '
        'stroke-width="5" stroke-linecap="round" opacity=".35"/>'
    )
    parts += [f'<circle cx="{x_of(seed):.1f}" cy="{middle}" r="2" fill="{colour}" opacity=".8"/>' for seed in seeds]
    parts.append(f'<circle cx="{x_of(mean):.1f}" cy="{middle}" r="5.5" fill="{colour}" class="mark"/>')
    return _svg("".join(parts), width, height, title, "strip")


def draw_scale(axis: Axis, title: str) -> str:
    """Draw the axis above a column of strips."""
    parts = []
    for tick in round_ticks(axis.low, axis.high, 4):
        at = axis.position(tick, STRIP_MARGIN, STRIP_WIDTH - STRIP_MARGIN)
        parts.append(
            f'<text x="{at:.1f}" y="11" text-anchor="middle" class="tick">{tick:g}</text>'
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="15" y2="19" class="axis"/>'
        )
    return _svg("".join(parts), STRIP_WIDTH, 20, title, "strip")


def draw_curve(points: Sequence[Sequence[tuple[float, float]]], colour: str, title: str, x_name: tuple[str, str],
          y_name: tuple[str, str]) -> str:  # fmt: skip
    """Draw a learning curve: one thin line per seed."""
    all_points = [point for line in points for point in line]
    if len(all_points) < 2:
        return ""
    width, height, left, right, top, bottom = 240, 132, 34, 8, 20, 24
    x = linear_axis(
        [0.0, *(point[0] for point in all_points)], pad=0.0
    )  # the first place that was looked at is no beginning
    y = linear_axis([point[1] for point in all_points], pad=0.1)
    ticks = round_ticks(y.low, y.high, 3)
    parts = [f'<text x="{left}" y="12" class="tick strong">{localize_svg(y_name)}</text>']
    for tick in ticks:
        at = y.position(tick, height - bottom, top)
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>'
            f'<text x="{left - 5}" y="{at + 3.5:.1f}" text-anchor="end" class="tick">{tick:g}</text>'
        )
    for line in points:
        path = " ".join(
            f"{x.position(a, left, width - right):.1f},{y.position(b, height - bottom, top):.1f}"
            for a, b in sorted(line)
        )
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round" '
            'opacity=".85"/>'
        )
    last = max(point[0] for point in all_points)
    end = f"{format_count(last)} {localize_svg(x_name)}"
    parts.append(
        f'<text x="{left}" y="{height - 6}" class="tick">0</text>'
        f'<text x="{width - right}" y="{height - 6}" text-anchor="end" class="tick">{end}</text>'
    )
    return _svg("".join(parts), width, height, title, "spark")
