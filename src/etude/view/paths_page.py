"""The paths of a question as one self-contained HTML file, in English and Korean (view/paths.html)."""

from __future__ import annotations

from html import escape

from etude.view.page_template import fill_template
from etude.view.paths import AnswerView, PathExplanation, format_path
from etude.view.paths_picture import MOST_PATHS, draw_answer

LISTED = 8  # paths of an answer, as text


def render_paths_page(explanation: PathExplanation, model: str) -> str:
    """Return the page of all answers, the most probable first and open."""
    values = {
        "title": escape(explanation.question),
        "model": escape(model),
        "answers": "\n".join(_render_answer(answer, number) for number, answer in enumerate(explanation.answers)),
    }
    return fill_template("etude.view", "paths.html", values)


def _both(english: str, korean: str) -> str:
    return f'<span lang="en">{english}</span><span lang="ko">{korean}</span>'


def _render_answer(answer: AnswerView, number: int) -> str:
    paths = answer.paths
    count = "1 path" if len(paths) == 1 else f"{len(paths)} paths"
    summary = (
        f'<summary><i style="width:{100 * answer.probability:.1f}%"></i><b>{escape(answer.text)}</b>'
        f"<span>{answer.probability:.1%} · {_both('score', '점수')} {answer.score:.3f} · "
        f"{_both(count, f'경로 {len(paths)}개')}</span></summary>"
    )
    if not paths:
        inside = (
            f"<p>{_both('No path joins this answer with the question.', '이 답과 질문을 잇는 경로가 없습니다.')}</p>"
        )
    else:
        rows = "".join(
            f"<tr><td>{'' if path.weight is None else f'{path.weight:.1%}'}</td><td>{escape(format_path(path))}</td>"
            f"<td>{path.score:.2f}</td></tr>"
            for path in paths[:LISTED]
        )
        inside = f'<div class="picture">{draw_answer(answer, number)}</div>' + (
            f"<table><thead><tr><th>{_both('attention', '주의')}</th><th>{_both('path', '경로')}</th>"
            f"<th>{_both('plausibility', '그럴듯함')}</th></tr></thead><tbody>{rows}</tbody></table>"
        )
        if len(paths) > LISTED:
            note = _both(f"Listed: the heaviest {LISTED} paths.", f"가장 무거운 경로 {LISTED}개만 적었습니다.")
            inside += f"<p>{note}</p>"
        if len(paths) > MOST_PATHS:
            note = _both(f"Drawn: the heaviest {MOST_PATHS} paths.", f"가장 무거운 경로 {MOST_PATHS}개만 그렸습니다.")
            inside += f"<p>{note}</p>"
    return f"<details{'' if number else ' open'}>{summary}{inside}</details>"
