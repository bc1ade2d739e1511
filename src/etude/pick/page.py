"""The page of a pick, in English and Korean: one file that loads nothing from elsewhere.

Messages of errors are in English alone: the Korean page says where they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from etude.pick.contenders import Label
from etude.study.leaderboard import format_points
from etude.study.plan import format_scientific
from etude.study.report import charts, page
from etude.study.report.html import COLOURS, GREY, format_date, render_section, render_swatch
from etude.study.report.translations import localize_html
from etude.train import checkpoint
from etude.transfer import error_report

KOREAN_METRICS = {"accuracy": "정확도"}  # others keep their name in Korean
KOREAN_ANSWERS = {"(no answer)": "(답 없음)", "(none)": "(없음)", "(nothing)": "(없음)"}  # in place of a label
KOREAN_UNITS = {"examples": "예시", "words": "단어", "characters": "글자"}  # that a confusion matrix counts


def _both(english: str, korean: str) -> str:
    """A text in both languages; HTML in both."""
    return f'<span lang="en">{english}</span><span lang="ko">{korean}</span>'


def _name_metric(results: dict[str, Any]) -> tuple[str, str]:
    """The score's name in English and in Korean, as HTML."""
    name = escape(results["score"].replace("_", " "))
    return name, KOREAN_METRICS.get(results["score"], name)


def _describe_folds(results: dict[str, Any]) -> tuple[str, str]:
    """As in "5 folds, 3 times", in English and in Korean; picks of earlier versions did not store the repeat."""
    folds, repeat = results["folds"], results.get("repeat", results["folds"])
    if repeat == 1:
        return "one split", "한 번 나눔"
    if folds == repeat:
        return f"{folds} folds", f"{folds}겹"
    return f"{repeat} folds, {folds // repeat} times", f"{repeat}겹씩 {folds // repeat}번"


def _describe_comparison(results: dict[str, Any], chosen_on: str) -> tuple[str, str]:
    """On what contenders were compared, in English and in Korean; picks of earlier versions did not store the dev."""
    if dev := results.get("dev_examples"):
        return f"the {dev:,} of the dev file", f"개발(dev) 파일의 {dev:,}개로"
    folds = _describe_folds(results)
    return f"{chosen_on} by {folds[0]}", f"{chosen_on}개를 교차 검증({folds[1]})으로 나누어"


def write(path: Path, results: dict[str, Any]) -> None:
    checkpoint.write_text(path, render(results))


def render(results: dict[str, Any]) -> str:
    sections = [
        _render_table(results), _render_rounds(results), _render_errors(results), _render_use(results),
        _render_methods(results),
    ]  # fmt: skip
    return page.render_document("etude pick", _render_header(results), "".join(sections), _render_footer(results))


def _format_interval(score: dict[str, Any]) -> str:
    return f"{format_points(score['low'])} … {format_points(score['high'])}"


def _render_header(results: dict[str, Any]) -> str:
    name, score = localize_html(results["label"]), results["held_out"]
    majority = next((row for row in results["rows"] if row["name"] == "majority"), None)
    if score is None:
        answer = _both(f"Best: <b>{name}</b>.", f"가장 좋은 모형: <b>{name}</b>.")
    else:
        value = f"<b>{format_points(score['value'])}</b>"
        interval, count = _format_interval(score), f"{score['examples']:,}"
        metric, metric_ko = _name_metric(results)
        answer = _both(
            f"Best: <b>{name}</b>, with {metric} {value} (95&nbsp;% {interval}) on {count} examples that nothing was "
            "chosen on.",
            f"가장 좋은 모형: <b>{name}</b>. 선택에 쓰지 않은 예시 {count}개에서 {metric_ko} {value} "
            f"(95&nbsp;% 신뢰 구간 {interval}).",
        )
    first = results["rows"][0]
    best = next(row for row in results["rows"] if row["name"] == results["winner"])
    if first is not best:
        label = localize_html(first["label"])
        answer += " " + _both(
            f"<b>{label}</b> was better, but no time was left to refit it: give the pick more minutes.",
            f"<b>{label}</b>: 더 나았지만 다시 학습할 시간이 없었습니다. 시간을 더 주세요.",
        )
    if majority is not None and best["score"] <= majority["score"]:
        answer += " " + _both("Nothing beats the most frequent answer here.", "가장 흔한 답을 이기는 것이 없습니다.")
    labels, minutes = results["labels"], f"{results['minutes']:g}"
    contenders = sum(row["is_selectable"] for row in results["rows"])
    facts = [
        (f"{labels['refit_on']:,}", _both("labels learnt from", "학습한 레이블")),
        (str(contenders), _both("contender" if contenders == 1 else "contenders", "후보")),
        (f"{results['seconds'] / 60:.1f}", _both(f"of {minutes} minute{'s' * (minutes != '1')}", f"/ {minutes}분")),
    ]
    items = "".join(f"<li><b>{value}</b>{text}</li>" for value, text in facts)
    title = _both("Which model is best here", "여기서는 어떤 모형이 가장 좋은가")
    return (
        f'<header class="page">\n<div class="over"><span><b>Etude</b> &nbsp;pick · {format_date(results)}</span>'
        '<span class="tongues"><label for="en">English</label><label for="ko">한국어</label></span></div>\n'
        f'<h1>{title}</h1>\n<p class="answer">{answer}</p>\n<ul class="facts">{items}</ul>\n</header>'
    )


def _render_table(results: dict[str, Any]) -> str:
    rows = results["rows"]
    spread = [100 * value for row in rows for value in (row["score"] - row["error"], row["score"] + row["error"])]
    axis = charts.linear_axis(spread, pad=0.04)
    cost, fit = _both("pre-training", "사전 학습"), _both("one fit", "1회 학습")
    body = []
    for number, row in enumerate(rows):
        colour = f"var(--c{number % COLOURS})" if row["is_selectable"] else GREY
        low, high = 100 * (row["score"] - row["error"]), 100 * (row["score"] + row["error"])
        strip = charts.draw_strip(100 * row["score"], low, high, [], axis, colour, escape(row["name"]))
        partial = row["folds"] < results["folds"]
        folds = f"{row['folds']} / {results['folds']}"
        small = f"<small>{_both(f'{folds} folds', f'{folds}겹')}</small>" if partial else ""
        body.append(
            f'<tr{"" if row["is_selectable"] else " class=base"}><td class="rank n">{number + 1}</td>'
            f'<td class="who">{render_swatch(colour)}{localize_html(row["label"])}{small}</td>'
            f'<td class="n mean"><span class="big">{format_points(row["score"])}</span>'
            f'<span class="sd">± {format_points(row["error"])}</span></td><td class="plot">{strip}</td>'
            f'<td class="n part"><span class="key">{cost}</span><span class="cost">{_format_cost(row)}</span></td>'
            f'<td class="n part"><span class="key">{fit}</span>{_format_duration(row["fit_seconds"], 1)}</td></tr>'
        )
    body += [
        f'<tr class=base><td class="rank n">–</td><td class="who">{localize_html(labels)}</td>'
        f'<td colspan="4">{localize_html(reason)}</td></tr>'
        for labels, reason in _group_untried(results["untried"])
    ]
    table = (
        f'<div class="scroll"><table class="board"><thead><tr><th></th><th>{_both("contender", "후보")}</th>'
        f'<th class="n">{_both(*_name_metric(results))}</th><th class="plot">'
        f'{charts.draw_scale(axis, escape(results["score"]))}</th><th class="n">{cost}</th>'
        f'<th class="n">{fit}</th></tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
    lead = _both(
        "Ordered by the score that chose: on labels that a contender did not learn from. ± one standard error. "
        "Those that the best does not clearly beat are ordered by the probability they give to the right answers.",
        "선택의 기준이 된 점수 순서입니다. 점수는 후보가 학습에 쓰지 않은 레이블로 쟀고, ±는 표준 오차입니다. "
        "1위와 차이가 뚜렷하지 않은 후보끼리는 정답에 매긴 확률이 높은 순서입니다.",
    )
    return render_section(_both("Contenders", "후보"), lead, table)


def _group_untried(untried: Sequence[Mapping[str, Label]]) -> list[tuple[Label, Label]]:
    """The labels of those that were not tried, together where the reason is the same, and the reason."""
    groups: list[tuple[Label, Label]] = []
    for skipped in untried:
        label, reason = skipped["label"], skipped["reason"]
        if groups and groups[-1][1] == reason:
            labels = groups[-1][0]
            groups[-1] = {name: f"{labels[name]}, {label[name]}" for name in labels}, reason
        else:
            groups.append((label, reason))
    return groups


def _format_cost(row: dict[str, Any]) -> str:
    cost = row["pretraining"]
    if cost is None:
        return "–"
    if cost["flops"] is None:
        return _both("unknown, published", "알 수 없음 (공개 모형)")
    return f"{format_scientific(cost['flops'])} FLOPs<span class='under'>{_format_duration(cost['seconds'])}</span>"


def _format_duration(seconds: float, digits: int = 0) -> str:
    return _both(f"{seconds:.{digits}f} s", f"{seconds:.{digits}f}초")


def _render_rounds(results: dict[str, Any]) -> str:
    if not results["rounds"]:
        return ""
    items = []
    for entry in results["rounds"]:
        scores = ", ".join(f"{escape(name)} {format_points(value)}" for name, value in entry["scores"].items())
        survivors = escape(", ".join(entry["survivors"]))
        stage, seconds = localize_html(entry["stage"]), _format_duration(entry["seconds"])
        items.append(f"<li>{stage}, {seconds}: {scores} → <b>{survivors}</b></li>")
    lead = _both("Each round is longer than the one before; the better half goes on.",
                 "라운드마다 더 길게 학습하고, 나은 절반이 다음으로 갑니다.")  # fmt: skip
    return render_section(_both("Rounds of pre-training", "사전 학습 라운드"), lead, f"<ol>{''.join(items)}</ol>")


def _render_errors(results: dict[str, Any]) -> str:
    errors = results["errors"]
    if not errors or not (errors["worst"] or errors["confusion"]):
        return ""
    parts = []
    if errors["confusion"]:
        matrix = error_report.render_confusion(
            _name_confusion(errors["confusion"]["unit"]), errors["confusion"]["counts"]
        )
        parts.append(f'<div class="scroll matrix">{matrix}</div>')
    rows = "".join(
        f'<tr><td>{escape(error["where"])}</td><td class="text">{escape(error["text"][:400])}</td>'
        f"<td>{_render_answer(error['gold'])}</td><td>{_render_answer(error['predicted'])}</td></tr>"
        for error in errors["worst"]
    )
    if rows:
        head = "".join(f"<th>{_both(*texts)}</th>" for texts in
                       (("where", "위치"), ("example", "예시"), ("label", "정답"), ("answer", "예측")))  # fmt: skip
        parts.append(
            f'<div class="scroll"><table class="wrap"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        )
    lead = _both("None is wrong.", "오답이 없습니다.")
    if errors["wrong"]:
        lead = _both(f"{errors['wrong']:,} wrong; the most confident errors first.",
                     f"오답 {errors['wrong']:,}개, 확신이 컸던 것부터.")  # fmt: skip
    return render_section(_both("Errors on the examples set aside", "따로 떼어 둔 예시의 오답"), lead, "".join(parts))


def _render_answer(answer: str) -> str:
    korean = KOREAN_ANSWERS.get(answer)
    return escape(answer) if korean is None else _both(answer, korean)


def _name_confusion(unit: str) -> error_report.ConfusionTexts:
    return error_report.ConfusionTexts(
        _both(f"Confusion ({unit})", f"혼동 행렬 ({KOREAN_UNITS[unit]} 수)"),
        _both("label \\ answer", "정답 \\ 예측"),
        _both("{count} labels: too many for a matrix.", "레이블이 {count}개여서 행렬로 보이기에는 너무 많습니다."),
    )


def _render_use(results: dict[str, Any]) -> str:
    commands = "etude predict best &lt; lines.txt\netude evaluate best labelled.csv\netude serve best"
    python = 'import etude\nmodel = etude.load("best")\nmodel.predict(["…"])'
    exported = (
        _both(
            f"Not exported: {escape(results['not_exported'])}",
            "이 모형은 공개 형식으로 내보내지 못했습니다 (이유는 영어 화면에 있습니다). 이 폴더에서 쓰세요.",
        )
        if results["not_exported"]
        else _both(
            "Run this in the folder of the pick; the published form is in best/export.",
            "이 결과 폴더에서 실행하세요. 배포용 형식은 best/export에 있습니다.",
        )
    )
    return render_section(
        _both("Use it", "쓰는 법"), exported, f"<pre>{commands}</pre><pre>{escape(python, quote=False)}</pre>"
    )


def _describe_calibration(calibration: Mapping[str, Any]) -> str:
    """What the temperature did: it is fitted by the log loss; the calibration error of few answers may even rise."""
    before, after = (f"{100 * calibration[name]:.1f}" for name in ("error_before", "error_after"))
    english = f"Probabilities are calibrated by a temperature of {calibration['temperature']:.2f}"
    korean = f"확률을 온도 {calibration['temperature']:.2f}로 보정했습니다"
    if "answers" not in calibration:  # picks of earlier versions
        return _both(f"{english}: expected calibration error {before} → {after} points on out-of-fold answers.",
                     f"{korean}: 학습에 쓰지 않은 겹에서 기대 보정 오차(ECE) {before} → {after}%p.")  # fmt: skip
    count = f"{calibration['answers']:,}"
    loss = " → ".join(f"{calibration[name]:.3f}" for name in ("loss_before", "loss_after"))
    return _both(
        f"{english}: on {count} out-of-fold answers the log loss goes {loss}, the expected calibration error "
        f"{before} → {after} points.",
        f"{korean}: 학습에 쓰지 않은 겹의 예측 {count}개에서 로그 손실 {loss}, 기대 보정 오차(ECE) {before} → "
        f"{after}%p.",
    )


def _render_methods(results: dict[str, Any]) -> str:
    labels, calibration = results["labels"], results["calibration"]
    counts = {name: f"{labels[name]:,}" for name in ("scored_on", "chosen_on", "refit_on")}
    how = _describe_comparison(results, counts["chosen_on"])
    origin = ("the test file", "테스트 파일") if labels["has_test"] else ("a stratified share", "층화 표본")
    lines = [
        _both(
            f"{counts['scored_on']} examples ({origin[0]}) were set aside first; contenders were compared on "
            f"{how[0]}; the final model learnt from all {counts['refit_on']}.",
            f"먼저 {counts['scored_on']}개({origin[1]})를 따로 두고, {how[1]} 후보를 비교했으며, "
            f"최종 모형은 {counts['refit_on']}개 모두에서 학습했습니다.",
        )
    ]
    if calibration is not None:
        lines.append(_describe_calibration(calibration))
        if calibration["threshold"] is not None:
            lines.append(_both(f"Below a probability of {calibration['threshold']:.3f} the answer is “don't know”.",
                               f"확률이 {calibration['threshold']:.3f}보다 낮으면 “모름”으로 답합니다."))  # fmt: skip
    lines += [localize_html(note) for note in (*results["notes"], *results["warnings"])]
    items = "".join(f"<li>{line}</li>" for line in lines)
    return render_section(_both("How it was chosen", "선택 방법"), "", f"<ul>{items}</ul>")


def _render_footer(results: dict[str, Any]) -> str:
    english = escape(f"{results['versions']} · {results['hardware']}")
    korean = english.replace("from source", "소스 설치본").replace(" threads", "스레드").replace(" thread", "스레드")
    return f"<footer>{_both(english, korean)} · {format_date(results)}</footer>"
