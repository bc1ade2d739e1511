"""A batch of training as one self-contained HTML file, in English and Korean (view/batch.html)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from etude.objectives.batch_view import MARKS, BatchView, SequenceView, TokenView, Words
from etude.view.batch import Names
from etude.view.page_template import fill_template


def render_batch_page(view: BatchView, names: Names, title: str, lead: Words, tokens: int = 2000) -> str:
    """Return the page; `tokens`: of each sequence at most."""
    legend = "".join(f'<li><b class="{mark}">{mark}</b> {_both(MARKS[mark])}</li>' for mark in view.marks)
    legend += "".join(f"<li><b>{escape(name)}</b> {escape(shape)}</li>" for name, shape in view.fields.items())
    values = {
        "title": escape(title),
        "lead": f"<p class=lead>{_both(lead)}</p>",
        "asks": _both((f"Predicted: {view.asks[0]}.", f"예측하는 것: {view.asks[1]}")),
        "legend": f"<ul>{legend}</ul>" if legend else "",
        "sequences": "\n".join(
            _render_sequence(sequence, number, names, tokens) for number, sequence in enumerate(view.sequences, 1)
        ),
    }
    return fill_template("etude.view", "batch.html", values)


def _both(words: Words) -> str:
    return f'<span lang="en">{escape(words[0])}</span><span lang="ko">{escape(words[1])}</span>'


def _render_sequence(sequence: SequenceView, number: int, names: Names, tokens: int) -> str:
    name = f" {escape(sequence.name)}" if sequence.name else ""
    note = f" <em>{_both(sequence.note)}</em>" if sequence.note[0] else ""
    left = len(sequence.tokens) - tokens
    rest = f"<p>… {left:,}</p>" if left > 0 else ""
    first = sequence.tokens[:tokens]
    body = _render_list(sequence, first, names) if sequence.form == "list" else _render_text(first, names)
    title = _both((f"sequence {number}", f"시퀀스 {number}"))
    size = _both(_count_tokens(sequence))
    return f"<section><h2>{title}{name} <small>{size}</small>{note}</h2>{body}{rest}</section>"


def _count_tokens(sequence: SequenceView) -> Words:
    """Count tokens, or the entries of a list (pairs, triples)."""
    count = len(sequence.tokens)
    one, many, korean = ("entry", "entries", "항목") if sequence.form == "list" else ("token", "tokens", "토큰")
    return f"{count:,} {one if count == 1 else many}", f"{korean} {count:,}개"


def _render_text(tokens: Sequence[TokenView], names: Names) -> str:
    """Each token, and over it what is asked there."""
    return "<p class=text>" + " ".join(_render_token(token, names) for token in tokens) + "</p>"


def _render_token(token: TokenView, names: Names) -> str:
    kind = token.mark or ("special" if token.token in names.special else "plain")
    above = " ".join("·" if target is None else names.token(target) for target in token.targets)
    text = f'<span class="{kind}">{escape(names.token(token.token))}</span>'
    if token.entity is not None:
        text += f"<sub>{escape(str(token.entity) if names.entities is None else names.entities[token.entity])}</sub>"
    return f"<ruby>{text}<rt>{escape(above)}</rt></ruby>" if above else text


def _render_list(sequence: SequenceView, tokens: Sequence[TokenView], names: Names) -> str:
    rows = []
    for token in tokens:
        cells = [names.token(token.token), " ".join(names.token(t) for t in token.targets if t is not None)]
        between = _both(sequence.joint)
        if token.relation is not None:
            between = escape(names.relations[token.relation])
        note = escape(token.note)
        rows.append(f"<tr><th>{escape(cells[0])}<td>{between}<td>{escape(cells[1])}<td>{note}")
    return "<table>" + "".join(rows) + "</table>"
