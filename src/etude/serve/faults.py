"""What pydantic finds wrong with a body, in a sentence a fault: which part of it, and what it must be.

Of a field that may be a text or a list pydantic reports the faults of both readings. Only those of the reading that the
client meant are of use: the one whose values are all of the right type, else the one that goes deepest into the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.errors import suggest_name
from etude.serve.problems import Problem

Fault = Mapping[str, Any]  # an entry of ValidationError.errors()

# what a value must be, by the type of the fault
EXPECTED = {
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}
LENGTHS = ("string_too_short", "string_too_long", "too_short", "too_long")
MOST = 5  # faults that are told: a list of a thousand inputs may have as many
NAMED = ("missing", "extra_forbidden")  # faults whose place ends with the name of a field


def explain_faults(faults: Sequence[Fault], fields: Sequence[str]) -> Problem:
    """The faults of a body as one problem; `fields` are those that a request has."""
    if any(fault["type"] == "json_invalid" for fault in faults):
        return Problem(400, f"The body is not JSON: {faults[0].get('ctx', {}).get('error', faults[0]['msg'])}.")
    by_field: dict[str, list[Fault]] = {}
    for fault in faults:
        by_field.setdefault(str(next(iter(_place(fault)), "")), []).append(fault)
    listed = [message for found in by_field.values() for message in _explain_field(_choose_reading(found), fields)]
    messages = list(dict.fromkeys(listed))
    others = f" There are {len(messages) - MOST:,} more such faults." if len(messages) > MOST else ""
    return Problem(422, " ".join(messages[:MOST]) + others)


def _place(fault: Fault) -> list[str | int]:
    return [part for part in fault["loc"] if part not in ("body", "query")]


def _choose_reading(faults: Sequence[Fault]) -> Sequence[Fault]:
    """The faults of one field under the reading that fits its value best; all where it has only one."""
    readings: dict[object, list[Fault]] = {}
    for fault in faults:
        reading = next(iter(_place(fault)[1:]), "")  # its name stands behind the field; a number: there is only one
        readings.setdefault(reading if isinstance(reading, str) else "", []).append(fault)
    if len(readings) == 1:
        return faults
    fitting = [found for found in readings.values() if all(fault["type"] not in EXPECTED for fault in found)]
    if fitting:
        return fitting[0]
    depths = {key: max(len(_place(fault)) for fault in found) for key, found in readings.items()}
    deepest = max(depths.values())
    return [fault for key, found in readings.items() if depths[key] == deepest for fault in found]


def _explain_field(faults: Sequence[Fault], fields: Sequence[str]) -> list[str]:
    """A sentence for each place; of a value of the wrong type one with all types that it may have."""
    expected: dict[str, list[str]] = {}
    for fault in faults:
        if fault["type"] in EXPECTED:
            expected.setdefault(_name(fault), []).append(EXPECTED[fault["type"]])
    messages = []
    for fault in faults:
        name = _name(fault)
        if fault["type"] in EXPECTED and name:
            kinds = " or ".join(dict.fromkeys(expected[name]))
            messages.append(f"'{name}' is {_describe(fault['input'])}; it must be {kinds}.")
        else:
            messages.append(_explain(fault, name, fields))
    return messages


def _name(fault: Fault) -> str:
    """The part of the body that a fault is about, as a program writes it: input, input[3]."""
    place = _place(fault)
    return "".join([*map(str, place[:1]), *(f"[{part}]" for part in place[1:] if isinstance(part, int))])


def _explain(fault: Fault, name: str, fields: Sequence[str]) -> str:
    place, kind, context = _place(fault), str(fault["type"]), fault.get("ctx", {})
    if not place and kind == "value_error":  # of several fields together
        return str(context["error"])
    if not place:
        return "The body is a JSON object with the fields of the request."
    if kind in NAMED:
        inside = "" if len(place) == 1 else f" in '{name}'"
        if kind == "missing":
            return f"The field '{place[-1]}' is missing{inside}."
        return f"There is no field '{place[-1]}'{inside}.{'' if inside else suggest_name(str(place[-1]), fields)}"
    if kind == "value_error":
        return f"'{name}': {context['error']}"
    if kind in LENGTHS:
        return f"'{name}' {_explain_length(fault)}"
    message = str(fault["msg"])
    if message.startswith("Input should "):
        return f"'{name}' must {message.removeprefix('Input should ')}."
    return f"'{name}': {message[:1].lower()}{message[1:]}."


def _explain_length(fault: Fault) -> str:
    size = len(fault["input"])
    unit = "letters" if str(fault["type"]).startswith("string") else "items"
    least, most = fault["ctx"].get("min_length"), fault["ctx"].get("max_length")
    if not size:
        return "is empty."
    return f"has {size:,} {unit}; " + (f"at least {least:,} are needed." if least else f"at most {most:,} are taken.")


def _describe(value: object) -> str:
    """The type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {str: "a text", list: "a list", dict: "an object"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a number")
