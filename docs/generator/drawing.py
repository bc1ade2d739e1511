"""Small pictures as SVG: boxes, arrows and words on a grid, in colours that the page decides.

Drawn in a page, classes take the colours of the site, light or dark; as a file on its own, those of the style inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

STYLE = """\
text{font-family:system-ui,sans-serif;fill:#22303c}.soft{fill:#6b7885}.a{fill:#dbe8f4}.b{fill:#fbe6d3}.c{fill:#dff0e0}
.d{fill:#eee4f5}.n{fill:none}.box{stroke:#a9b7c4}.line{stroke:#8794a1;fill:none;stroke-width:1.3}
.dash{stroke-dasharray:4 3}.tip{fill:#8794a1}
@media (prefers-color-scheme:dark){text{fill:#e3e9ef}.soft{fill:#a3b0bd}.a{fill:#264463}.b{fill:#5a3d24}.c{fill:#28492f}
.d{fill:#43325a}.box{stroke:#5d7083}.line{stroke:#7d8c9a}.tip{fill:#7d8c9a}}"""
TIP = 6.0  # length of an arrow's head


class Picture:
    """A drawing of `width` x `height`; coordinates are those of centres, from the upper left corner."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self.title, self.width, self.height = title, width, height
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, label: str = "", kind: str = "a", size: int = 13) -> None:
        """A rounded box with a label of one or more lines."""
        corner = f'x="{x - w / 2:g}" y="{y - h / 2:g}" width="{w:g}" height="{h:g}"'
        self.parts.append(f'<rect class="box {kind}" {corner} rx="4"/>')
        if label:
            self.text(x, y, label, size=size)

    def text(self, x: float, y: float, label: str, size: int = 13, soft: bool = False, anchor: str = "middle") -> None:
        lines = label.split("\n")
        for number, line in enumerate(lines):
            height = y + size * 0.35 + (number - (len(lines) - 1) / 2) * size * 1.25
            name = ' class="soft"' if soft else ""
            place = f'x="{x:g}" y="{height:g}"'
            self.parts.append(f'<text{name} {place} font-size="{size}" text-anchor="{anchor}">{escape(line)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, dash: bool = False, width: float = 1.3) -> None:
        name = "line dash" if dash else "line"
        stroke = "" if width == 1.3 else f' style="stroke-width:{width:g}"'
        self.parts.append(f'<line class="{name}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"{stroke}/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, dash: bool = False, width: float = 1.3) -> None:
        """A line with a head at its end."""
        angle = math.atan2(y2 - y1, x2 - x1)
        back = (x2 - TIP * math.cos(angle), y2 - TIP * math.sin(angle))
        self.line(x1, y1, *(round(value, 1) for value in back), dash=dash, width=width)
        side = (TIP * 0.5 * math.sin(angle), -TIP * 0.5 * math.cos(angle))
        corners = [(x2, y2), (back[0] + side[0], back[1] + side[1]), (back[0] - side[0], back[1] - side[1])]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        self.parts.append(f'<polygon class="tip" points="{points}"/>')

    def curve(self, x1: float, y1: float, x2: float, y2: float, bend: float, dash: bool = False) -> None:
        """An arc that bends upwards by `bend`."""
        name = "line dash" if dash else "line"
        middle = f"{(x1 + x2) / 2:g} {min(y1, y2) - bend:g}"
        self.parts.append(f'<path class="{name}" d="M{x1:g} {y1:g} Q{middle} {x2:g} {y2:g}"/>')

    def dot(self, x: float, y: float, radius: float = 4, kind: str = "a") -> None:
        self.parts.append(f'<circle class="box {kind}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def row(
        self,
        words: Sequence[str],
        y: float,
        kinds: str = "",
        x: float | None = None,
        w: float = 66,
        gap: float = 10,
        h: float = 28,
        size: int = 13,
    ) -> list[float]:
        """Boxes side by side, in the middle of the picture unless `x` is the first centre; their centres."""
        start = self.width / 2 - (len(words) - 1) * (w + gap) / 2 if x is None else x
        centres = [start + number * (w + gap) for number in range(len(words))]
        for number, (centre, word) in enumerate(zip(centres, words, strict=True)):
            self.box(centre, y, w, h, word, kinds[number] if kinds else "a", size)
        return centres

    def svg(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self.title)}">'
        return "\n".join([head, f"<style>{STYLE}</style>", *self.parts, "</svg>"]) + "\n"
