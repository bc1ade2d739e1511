"""Chart sections of the report: quality against cost and labels, and learning curves."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from etude.study.report import charts
from etude.study.report.charts import Point, Series
from etude.study.report.html import (
    GREY,
    JsonDict,
    describe_task,
    entry_name,
    format_row_budget,
    render_section,
    render_swatch,
)
from etude.study.report.translations import TRANSLATIONS, localize_html, translate
from etude.study.sections import Localized, localize


def render_quality(results: JsonDict, colours: dict[str, str]) -> str:
    contenders = [row for row in results["rows"] if row["kind"] == "contender" and row["mean"]]
    if not contenders:
        return ""
    control = next((row for row in results["rows"] if row["kind"] == "control" and row["mean"]), None)
    level = None
    if control:
        level = Series(_short_label(control), GREY, [_make_point(1.0, control["mean"])])
    scores = [row["mean"] for row in (*contenders, *([control] if control else []))]
    y = charts.linear_axis([100 * line[key] for line in scores for key in ("low", "high")])
    drawings = []
    for name in ("flops", "tokens", "seconds"):
        series = _series_by_entry(contenders, name, colours)
        values = [point.x for line in series for point in line.points]
        if not values:
            continue
        x = charts.log_axis(values)
        many = len(results["budget"]["amounts"]) > 1
        drawing = charts.draw_chart(
            series,
            x,
            y,
            (TRANSLATIONS[name][0], TRANSLATIONS[name][1]),
            title=f"quality against {name}",
            lines=many,
            level=level,
        )
        drawings.append(f"<figure><figcaption>{translate(name)}</figcaption>{drawing}</figure>")
    by_labels = _draw_by_labels(results, colours)
    lead = " ".join([translate("quality_lead"), *([translate("quality_labels")] if by_labels else [])])
    return render_section(translate("quality"), lead, f'<div class="charts">{"".join([*drawings, *by_labels])}</div>')


def _short_label(row: JsonDict) -> Localized:
    """Shorten a row's label for a chart: of a varied setting only the value."""
    label = row["label"]
    if isinstance(label, dict):
        return {language: _shorten_label(row, text) for language, text in label.items()}
    return _shorten_label(row, label)


def _shorten_label(row: JsonDict, label: str) -> str:
    if row["kind"] == "control":  # the words over the drawings say that what is dashed did not pre-train
        return label.replace("no pre-training", "none").replace("사전 학습 없음", "없음")
    name, _, varied = label.rpartition(", ")
    if not name or "=" not in varied or len(label) <= charts.MAX_LETTERS:
        return label
    return varied if len(varied) <= charts.MAX_LETTERS else varied.partition("=")[2]


def _make_point(x: float, score: JsonDict) -> Point:
    return Point(x, 100 * score["mean"], 100 * score["low"], 100 * score["high"])


def _series_by_entry(rows: Iterable[JsonDict], cost: str, colours: dict[str, str]) -> list[Series]:
    by_entry: dict[str, Series] = {}
    for row in rows:
        spent = row["pretraining"][cost]
        if spent:
            series = by_entry.setdefault(entry_name(row), Series(_short_label(row), colours[row["name"]], []))
            series.points.append(_make_point(spent, row["mean"]))
    return list(by_entry.values())


def _draw_by_labels(results: JsonDict, colours: dict[str, str]) -> list[str]:
    """Draw score against number of labels, one chart per task with several numbers."""
    last = {entry_name(row): row for row in results["rows"] if row["kind"] in ("contender", "control")}
    drawings = []
    for task in dict.fromkeys(column["task"] for column in results["columns"]):
        columns = [column for column in results["columns"] if column["task"] == task]
        if len(columns) < 2:
            continue
        series = []
        for row in last.values():
            points = [
                _make_point(column["learnt_from"], row["scores"][column["name"]])
                for column in columns
                if column["name"] in row["scores"]
            ]
            if points:
                series.append(Series(_short_label(row), colours[row["name"]], points, dashed=row["kind"] == "control"))
        if not series:
            continue
        values = [point for line in series for point in line.points]
        y = charts.linear_axis([value for point in values for value in (point.low, point.high)])
        x = charts.log_axis([point.x for point in values])
        labels = TRANSLATIONS["labels"]
        label = columns[0]["label"]
        name = tuple(f"{localize(label, language)}: {labels[n]}" for n, language in enumerate(("en", "ko")))
        drawing = charts.draw_chart(series, x, y, (labels[0], labels[1]), title=escape(f"{task} by labels"), lines=True)
        caption = f'<span lang="en">{escape(name[0])}</span><span lang="ko">{escape(name[1])}</span>'
        drawings.append(f"<figure><figcaption>{caption}</figcaption>{drawing}</figure>")
    return drawings


def render_lengths(results: JsonDict, colours: dict[str, str]) -> str:
    """Draw score against the length of the source, one chart for each column that has lengths."""
    rows = {row["name"]: row for row in results["rows"]}
    drawings = []
    for part in results.get("lengths", []):
        x_values = [bucket["mean"] for bucket in part["buckets"]]
        series = [
            Series(_short_label(rows[name]), colours[name],
                   [_make_point(x, score) for x, score in zip(x_values, scores, strict=True)],
                   dashed=rows[name]["kind"] == "control")
            for name, scores in part["rows"].items()
        ]  # fmt: skip
        points = [point for line in series for point in line.points]
        y = charts.linear_axis([value for point in points for value in (point.low, point.high)], floor=0.0)
        words = TRANSLATIONS["source_words"]
        drawing = charts.draw_chart(
            series, charts.linear_axis(x_values, floor=0.0), y, (words[0], words[1]),
            title=escape(f"{part['column']} by length"), lines=True,
        )  # fmt: skip
        sizes = ", ".join(f"{bucket['low']}-{bucket['high']}: {bucket['examples']}" for bucket in part["buckets"])
        caption = f"{describe_task(results, part['column'])} <small>({sizes})</small>"
        drawings.append(f"<figure><figcaption>{caption}</figcaption>{drawing}</figure>")
    inside = f'<div class="charts">{"".join(drawings)}</div>'
    return render_section(translate("lengths"), translate("lengths_lead"), inside) if drawings else ""


def render_curves(results: JsonDict, colours: dict[str, str]) -> str:
    drawings = []
    for row in results["rows"]:
        curves = row.get("pretraining", {}).get("curves") or []
        lines = [[(line["tokens"], line["loss"]) for line in curve if line.get("loss") is not None] for curve in curves]
        drawn = charts.draw_curve(
            [line for line in lines if line], colours[row["name"]], escape(f"held-out loss of {row['name']}"),
            (TRANSLATIONS["tokens"][0], TRANSLATIONS["tokens"][1]), _loss_name(row.get("objective", "")),
        )  # fmt: skip
        if drawn:
            name = f"{localize_html(row['label'])}{format_row_budget(results, row)}"
            drawings.append(
                f"<figure><figcaption>{render_swatch(colours[row['name']])}{name}</figcaption>{drawn}</figure>"
            )
    shared = _draw_bits_per_byte(results, colours)
    inside = (
        f'<div class="charts">{shared}</div>' if shared else ""
    ) + f'<div class="sparks">{"".join(drawings)}</div>'
    return render_section(translate("curves"), translate("curves_lead"), inside) if drawings else ""


def _loss_name(objective: str) -> tuple[str, str]:
    return f"{TRANSLATIONS['loss'][0]} ({objective})", f"{TRANSLATIONS['loss'][1]} ({objective})"


def _draw_bits_per_byte(results: JsonDict, colours: dict[str, str]) -> str:
    """Draw bits per byte of held-out text against FLOPs: language models on one scale."""
    series = []
    for row in results["rows"]:
        curves = row.get("pretraining", {}).get("curves") or []
        points = [
            Point(line["flops"], line["bits_per_byte"], line["bits_per_byte"], line["bits_per_byte"])
            for line in (curves[0] if curves else [])
            if line.get("bits_per_byte") is not None and line["flops"]
        ]
        if points:
            series.append(Series(_short_label(row), colours[row["name"]], points))
    if len(series) < 2:
        return ""
    values = [point for line in series for point in line.points]
    drawing = charts.draw_chart(
        series, charts.log_axis([point.x for point in values]), charts.linear_axis([point.y for point in values]),
        (TRANSLATIONS["flops"][0], TRANSLATIONS["flops"][1]), title="bits per byte", lines=True,
    )  # fmt: skip
    return f"<figure><figcaption>{translate('bits')}</figcaption>{drawing}</figure>"
