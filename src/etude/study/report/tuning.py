"""Section of the report on fairness: trials of pre-training, and what the study sets for everybody."""

from __future__ import annotations

from html import escape

from etude.study.leaderboard import format_points
from etude.study.plan import format_scientific
from etude.study.report.html import JsonDict, entry_name, render_section, render_swatch
from etude.study.report.translations import localize_html, translate
from etude.study.sections import format_value


def render_tuning(results: JsonDict, colours: dict[str, str]) -> str:
    """Render what was tried for whom with its dev score, and common settings beside each recipe's own."""
    trials, common = _render_trials(results, colours), _render_common(results, colours)
    by_loss = any((row.get("tuning") or {}).get("by") == "loss" for row in results["rows"])
    parts = [
        (translate("fairness_lead_loss" if by_loss else "fairness_lead"), trials),
        (translate("common_lead"), common),
    ]
    shown = [(lead, table) for lead, table in parts if table]
    if not shown:
        return ""
    (lead, table), *others = shown
    inside = table + "".join(f'<p class="lead">{text}</p>{body}' for text, body in others)
    return render_section(translate("fairness"), lead, inside)


def _render_trials(results: JsonDict, colours: dict[str, str]) -> str:
    rows = {entry_name(row): row for row in results["rows"] if row.get("tuning")}  # of a curve, the largest budget
    body = ""
    for row in rows.values():
        tuning = row["tuning"]
        settings = dict.fromkeys(trial["setting"] for trial in tuning["trials"])
        for number, setting in enumerate(settings):
            trials = [trial for trial in tuning["trials"] if trial["setting"] == setting]
            values = " · ".join(_render_trial(trial) for trial in trials)
            flags = [translate("at_end")] if setting in tuning["at_end"] else []
            if setting == "train.lr" and tuning.get("uncorrected"):  # results of earlier versions do not say
                flags.append(translate("uncorrected"))
            if setting == "train.lr" and (rate := tuning.get("lowest_loss")) is not None:
                flags.append(translate("lowest_loss", rate=format_value(rate)))
            if setting == "train.lr":
                flags += _flag_rises(tuning)
            values += "".join(f'<p class="trouble">{flag}</p>' for flag in flags)
            name = f"{render_swatch(colours[row['name']])}{localize_html(row['label'])}" if not number else ""
            cost = f"{format_scientific(tuning['flops'])} FLOPs<br>{tuning['seconds']:,.0f} s" if not number else ""
            body += (
                f"<tr><td>{name}</td><td><code>{escape(setting)}</code></td><td>{values}</td>"
                f'<td class="n">{cost}</td></tr>'
            )
    if not body:
        return ""
    head = (
        f"<tr><th>{translate('system')}</th><th>{translate('setting')}</th><th>{translate('tried')}</th>"
        f"<th class='n'>{translate('cost_of_trials')}</th></tr>"
    )
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def _flag_rises(tuning: JsonDict) -> list[str]:
    """Say at which rates whole runs got worse while they trained (results of earlier versions do not)."""
    flags = [
        translate("given_up", rate=format_value(each["rate"]), **_format_rises(each))
        for each in tuning.get("given_up", [])
    ]
    kept = tuning.get("rises")
    return [*flags, translate("rises", **_format_rises(kept))] if kept and kept["rises"] else flags


def _format_rises(ended: JsonDict) -> dict[str, str]:
    rises = [" → ".join("∞" if loss is None else f"{loss:.3f}" for loss in (rise["lowest"], rise["last"]))
             for rise in ended["rises"]]  # fmt: skip
    return {"rises": ", ".join(rises), "count": str(len(rises)), "runs": str(ended["runs"])}


def _render_trial(trial: JsonDict) -> str:
    value = escape(format_value(trial["value"]))
    mark = f" ({translate('own_value')})" if trial["own"] else ""
    missing = translate("not_done" if trial.get("pending") else "failed")
    score = missing if trial["dev"] is None else format_points(trial["dev"])
    loss = trial.get("loss")  # not in results of earlier versions
    text = f"{value}{mark}: {score}" + (f" ({loss:.2f})" if loss is not None else "")
    return f"<b>{text}</b>" if trial["chosen"] else text


def _render_common(results: JsonDict, colours: dict[str, str]) -> str:
    common = [
        setting
        for setting in results.get("common", [])  # results of earlier versions have none
        if any(value != setting["value"] for value in setting["own"].values())
    ]
    if not common:
        return ""
    names = dict.fromkeys(name for setting in common for name in setting["own"])
    rows = {entry_name(row): row for row in results["rows"]}
    shown = {name: render_swatch(colours[row["name"]]) + localize_html(row["label"]) for name, row in rows.items()}
    head = f"<tr><th>{translate('setting')}</th><th>{translate('everybody')}</th>" + "".join(
        f"<th>{shown.get(name, escape(name))} ({translate('own_value')})</th>" for name in names
    )
    body = "".join(
        f"<tr><td><code>{escape(setting['name'])}</code></td><td><b>{_format_setting(setting['value'])}</b></td>"
        + "".join(f"<td>{_format_setting(setting['own'].get(name))}</td>" for name in names)
        + "</tr>"
        for setting in common
    )
    return f'<div class="scroll"><table>{head}</tr>{body}</table></div>'


def _format_setting(value: object) -> str:
    return "–" if value is None else escape(format_value(value))
