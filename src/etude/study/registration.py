"""Registration of claims: what was claimed, and by which rule, before the first cell ran.

Each study keeps its registration in `registered.json`. Those of all studies that one archive of cells serves travel
with it (cell_archive.py), in `registrations.json` of the folder that it is exported from: a study that goes on
elsewhere keeps the date of its claims, and is not compared with the claims of another study.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.settings import check_values, read_json
from etude.study.plan import Plan
from etude.study.settings import Study
from etude.study.study_folder import REGISTERED, REGISTRATIONS
from etude.train import checkpoint

_DEFAULTS = {"trainability": False}  # of claims that were registered before there was this setting
_ADVICE = "Take it from a copy, or choose another folder with -o."


def _check_date(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a date without a time zone")
    return text


class Registration(TypedDict):
    """What `registered.json` of a study holds."""

    date: Annotated[str, AfterValidator(_check_date)]
    claims: list[dict[str, Any]]
    rule: dict[str, Any]
    changed: NotRequired[bool]
    seeds: NotRequired[list[str]]


class Registrations(TypedDict):
    """What `registrations.json` holds: a registration by the name of its study."""

    studies: dict[str, Registration]


def register_claims(plan: Plan, root: Path) -> dict[str, Any]:
    """Save the claims and the rule before the first cell runs, so that the report can say if they changed later.

    `root` is the folder that cells are exported from: the study's own, or the one that several studies share.
    """
    study, path = plan.study, plan.folder / REGISTERED
    current = {
        "claims": [claim.model_dump(mode="json") for claim in study.claims],
        "rule": study.rule.model_dump(mode="json", exclude={"deviation"}),  # a guess for plans decides nothing
    }
    has_results = any(plan.store.state(key) != "absent" for key in plan.cells)
    counts = f"{study.seeds.pretrain} × {study.seeds.transfer}"
    registration: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "changed": False,
        "seeds": [counts],
        **current,
    }
    former = _load_former(path, root, study.name)
    if former is not None:
        is_same = {name: former[name] for name in current} == current
        registration["changed"] = former.get("changed", False) if is_same else True  # results could be seen
        if is_same:
            registration["date"] = former["date"]
        if has_results:
            registration["seeds"] = list(dict.fromkeys([*former.get("seeds", []), counts]))
    if registration != former or not path.is_file():
        checkpoint.write_text(path, json.dumps(registration, indent=1, ensure_ascii=False))
    save_registrations(root, load_registrations(root) | {study.name: registration})
    return _describe(study, registration)


def load_registrations(root: Path) -> dict[str, dict[str, Any]]:
    """Load the registrations of all studies that a folder has cells of, by name."""
    path = root / REGISTRATIONS
    if not path.is_file():
        return {}
    return {name: {**values} for name, values in read_json(path, Registrations, _ADVICE)["studies"].items()}


def save_registrations(root: Path, registrations: Mapping[str, Mapping[str, Any]]) -> None:
    """Save the registrations of all studies that a folder has cells of, unless they are there already."""
    text = json.dumps({"studies": registrations}, indent=1, ensure_ascii=False)
    path = root / REGISTRATIONS
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        checkpoint.write_text(path, text)


def check_registrations(values: dict[str, Any], place: str) -> dict[str, dict[str, Any]]:
    """Check what an archive says of the registrations of its studies; returns them by name."""
    checked = check_values(values, Registrations, place, "Export the archive again.")
    return {name: {**registration} for name, registration in checked["studies"].items()}


def merge_registrations(root: Path, imported: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the registrations of an archive; of two of one study the earlier counts."""
    registrations: dict[str, Mapping[str, Any]] = {**load_registrations(root)}
    for name, registration in imported.items():
        present = registrations.get(name)
        registrations[name] = registration if present is None else _choose_earlier(present, registration)
    save_registrations(root, registrations)


def _load_former(path: Path, root: Path, name: str) -> dict[str, Any] | None:
    """Load what was registered for a study before: in its folder, or where its cells come from."""
    registrations = load_registrations(root)
    former: dict[str, Any] | None = registrations.get(name)
    if path.is_file():
        own: dict[str, Any] = {**read_json(path, Registration, _ADVICE)}
        # the file does not say whose it is: another study may have run in this folder before
        owners = [study for study, other in registrations.items() if _claims_same(own, other)]
        if name in owners or not owners:
            former = own if former is None else _choose_earlier(own, former)
    if former is None:
        return None
    return former | {"claims": [_DEFAULTS | claim for claim in former["claims"]]}


def _claims_same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return bool(left["claims"] == right["claims"] and left["rule"] == right["rule"])


def _choose_earlier(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Return the earlier of two registrations; a change, and seeds, that either knows of stay known."""
    earlier, later = sorted((left, right), key=lambda registration: datetime.fromisoformat(registration["date"]))
    seeds = dict.fromkeys([*earlier.get("seeds", []), *later.get("seeds", [])])
    is_changed = earlier.get("changed", False) or later.get("changed", False)
    return {**earlier, "changed": is_changed, "seeds": list(seeds)}


def _describe(study: Study, registration: dict[str, Any]) -> dict[str, Any]:
    """Describe when claims were registered, and the numbers of seeds that were judged without having been planned."""
    planned = {f"{look} × {study.seeds.transfer}" for look in study.rule.looks}
    seeds = registration["seeds"]
    unplanned = seeds if len(seeds) > 1 and not set(seeds) <= planned else []
    return {"date": registration["date"], "changed": registration["changed"], "unplanned_seeds": unplanned}
