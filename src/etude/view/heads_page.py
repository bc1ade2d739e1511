"""Heads beside the arcs of a treebank as one self-contained HTML file, in English and Korean (view/heads.html)."""

from __future__ import annotations

from html import escape

from etude.view.heads import HeadReport, RelationScore
from etude.view.page_template import fill_template

HEADING = (
    ("relation", "관계"), ("arcs", "개수"), ("attention head", "어텐션 헤드"), ("it finds", "헤드가 찾음"),
    ("offset", "거리"), ("it finds", "거리로 찾음"), ("gain in points", "점수 차이"), ("direction", "방향"),
)  # fmt: skip
REMOVAL_LEAD = (
    "Loss in nats a token. The heads whose own removal costs least are removed first.",
    "토큰당 손실(nat). 혼자 지웠을 때 손실이 가장 적게 느는 헤드부터 지웁니다.",
)
IMPORTANCE_LEAD = (
    "By how much the loss grows if one head is removed: layers in rows, heads in columns.",
    "헤드 하나를 지울 때 늘어나는 손실. 행은 층, 열은 헤드입니다.",
)
WAYS = {
    "up": ("word → head", "단어 → 지배소"),
    "down": ("head → word", "지배소 → 단어"),
}


def render_heads_page(report: HeadReport, model: str, treebank: str) -> str:
    """Return the page of all relations and of the loss without heads; `treebank` is the name of its sentences."""
    values = {
        "title": f"{escape(model)}: attention heads",
        "model": escape(model),
        "layers": str(report.layers),
        "heads": str(report.heads),
        "treebank": escape(treebank),
        "sentences": f"{report.sentences:,}",
        "heading": "".join(f"<th>{_both(*names)}</th>" for names in HEADING),
        "rows": "\n".join(_render_row(score) for score in report.relations),
        "pruning": _render_pruning(report),
    }
    return fill_template("etude.view", "heads.html", values)


def _both(english: str, korean: str) -> str:
    return f'<span lang="en">{english}</span><span lang="ko">{korean}</span>'


def _bar(share: float, name: str = "bar") -> str:
    return f'<i class="{name}" style="width:{5 * share:.2f}rem"></i> {share:.1%}'


def _render_row(score: RelationScore) -> str:
    mark = ' class="beats"' if score.beats_offset else ""
    cells = [
        f"<b>{escape(score.relation)}</b>", f"{score.arcs:,}", f"{score.layer}-{score.head}",
        _bar(score.accuracy), f"{score.offset:+d}", _bar(score.offset_accuracy, "bar base"),
        f"{100 * score.gain:+.1f} ± {100 * score.error:.1f}", _both(*WAYS[score.direction]),
    ]  # fmt: skip
    return f"<tr{mark}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _render_pruning(report: HeadReport) -> str:
    if report.pruning is None or report.importance is None:
        return ""
    first = report.pruning[0][1]
    losses = "".join(
        f"<tr><td>{share:.0%}</td><td>{loss:.3f}</td><td>{loss - first:+.3f}</td></tr>"
        for share, loss in report.pruning
    )
    heads = "".join(f"<th>{head}</th>" for head in range(report.importance.shape[1]))
    grid = "".join(
        f"<tr><th>{number}</th>" + "".join(f"<td>{value:+.3f}</td>" for value in row) + "</tr>"
        for number, row in enumerate(report.importance)
    )
    columns = "".join(
        f"<th>{_both(*names)}</th>" for names in (("removed", "지운 비율"), ("loss", "손실"), ("more", "증가"))
    )
    return (
        f"<h2>{_both('Without heads', '헤드를 지우면')}</h2><p>{_both(*REMOVAL_LEAD)}</p>"
        f"<table><thead><tr>{columns}</tr></thead><tbody>{losses}</tbody></table>"
        f"<h2>{_both('What each head is worth', '헤드 하나하나의 몫')}</h2><p>{_both(*IMPORTANCE_LEAD)}</p>"
        f'<div class="scroll"><table class="grid"><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{grid}</tbody></table></div>"
    )
