"""How objects show themselves in a notebook: small HTML tables, curves and maps, every text escaped.

No script, nothing from outside, and no colour of their own for text and lines, so that light and dark notebooks do.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np

BLUE = (48, 118, 190)  # seen on white and on black
CELL = "padding:.2em .9em .2em 0;text-align:{align};border:0;vertical-align:top"
CURVE_WIDTH, CURVE_HEIGHT = 260, 60


def render_card(title: str, *parts: str) -> str:
    """A title, and parts that are HTML already."""
    return f'<div style="line-height:1.5"><b>{escape(title)}</b>{"".join(parts)}</div>'


def render_note(text: str) -> str:
    """A line in small letters."""
    return f'<div style="font-size:.86em;opacity:.75">{escape(text)}</div>' if text else ""


def render_facts(facts: Sequence[tuple[str, object]]) -> str:
    """Names with their values, a row each; those without a value are left out."""
    rows = [(name, str(value)) for name, value in facts if value not in (None, "")]
    return render_table((), rows, numbers=False)


def render_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[int] = (), numbers: bool = True
) -> str:
    """A table; the first column is text, the others stand to the right where they are `numbers`."""

    def render_row(tag: str, cells: Sequence[str], weight: str) -> str:
        aligned = (
            f'<{tag} style="{CELL.format(align="right" if at and numbers else "left")};font-weight:{weight}">'
            f"{escape(cell)}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f'<tr style="background:none">{"".join(aligned)}</tr>'

    head = f"<thead>{render_row('th', columns, '600')}</thead>" if columns else ""
    body = (render_row("td", row, "600" if at in best else "400") for at, row in enumerate(rows))
    return f'<table style="border-collapse:collapse;margin:.3em 0">{head}<tbody>{"".join(body)}</tbody></table>'


def render_curve(values: Sequence[float], name: str) -> str:
    """A curve of equally spaced values with its first and last; nothing where there is only one."""
    finite = [value for value in values if np.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    scale = (CURVE_HEIGHT - 6) / (high - low or 1)
    step = (CURVE_WIDTH - 6) / (len(finite) - 1)
    points = " ".join(f"{3 + step * at:.1f},{3 + (high - value) * scale:.1f}" for at, value in enumerate(finite))
    label = escape(f"{name} from {finite[0]:.3f} to {finite[-1]:.3f}")
    return (
        f'<svg width="{CURVE_WIDTH}" height="{CURVE_HEIGHT}" role="img" aria-label="{label}"><title>{label}</title>'
        f'<polyline points="{points}" fill="none" stroke="rgb{BLUE}" stroke-width="1.6"/></svg>'
    )


def render_map(weights: np.ndarray, title: str, pixels: int) -> str:
    """A matrix of shares as a picture: the stronger the colour, the larger the share. Rows are drawn from the top."""
    rows, columns = weights.shape
    shape = np.empty((rows, columns, 4), np.uint8)
    shape[..., :3] = BLUE
    shape[..., 3] = np.rint(255 * np.sqrt(np.clip(weights, 0, 1)))
    lines = b"".join(b"\0" + row.tobytes() for row in shape)  # every line of a PNG begins with its filter: none
    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)  # 8 bits, red green blue alpha
    data = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines)) + _chunk(b"IEND", b"")
    height = max(1, round(pixels * rows / columns))
    return (
        f'<img src="data:image/png;base64,{base64.b64encode(data).decode()}" alt="{escape(title)}" '
        f'title="{escape(title)}" style="width:{pixels}px;height:{height}px;max-width:none;image-rendering:pixelated;'
        'border:1px solid rgba(128,128,128,.4);margin:0">'
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A part of a PNG file: its length, kind, content and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
