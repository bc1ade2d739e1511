"""Tables between published tensor names and ours (design decision 5): one table a family, used in both directions.

A rule says that some published tensors, stacked along the rows, are some of ours, stacked along the rows:

    linear("bert.encoder.layer.{i}.output.dense", "model.feedforward.{i}.down")         one is one
    linear(["...query", "...key", "...value"], "model.attention.{i}.qkv")               three are one
    linear("...mlp.Wi", ["model.feedforward.{i}.gate", "model.feedforward.{i}.up"])     one is two
    linear("h.{i}.attn.c_attn", "model.attention.{i}.qkv", transposed=True)             matrices of (in, out)

`{i}` runs over the layers. Both ways are strict: every tensor is used exactly once; a missing, an unexpected
and a misshapen one are named. A rule belongs to a `part`; the parts "" are always there, any other one (a
pooler, a head) is there as a whole or not at all. `when` names a property of the settings that a rule needs.

What a file may hold besides: `Copy`, a second name of a tied tensor; `Constant`, a buffer that follows from the
sizes; `Fixed`, a parameter that their class has, ours has not, and that does nothing at one value. None of them
is dropped unseen: each is compared with what it must be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from etude.errors import UserError

Names = str | list[str]
Shapes = Mapping[str, tuple[int, ...]]

# What a rule's `when` may name, as a question to the settings of a Transformer.
CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "": lambda settings: True,
    "segments": lambda settings: settings.segments > 0,
    "narrow": lambda settings: (settings.embedding_width or settings.width) != settings.width,
    "full": lambda settings: (settings.embedding_width or settings.width) == settings.width,
    "bias": lambda settings: settings.bias,
    "norm bias": lambda settings: settings.bias and settings.norm_kind == "layer",
}


@dataclass(frozen=True)
class Rule:
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    transposed: bool = False
    part: str = ""
    when: str = ""
    start: int = 0  # the first layer it holds for

    def at(self, layer: int) -> Rule:
        return replace(
            self,
            theirs=tuple(name.replace("{i}", str(layer)) for name in self.theirs),
            ours=tuple(name.replace("{i}", str(layer)) for name in self.ours),
        )


@dataclass(frozen=True)
class Copy:
    """A published name that repeats another tensor of the same file."""

    name: str
    of: str
    part: str = ""


@dataclass(frozen=True)
class Constant:
    """A published buffer whose content is known: `value(shape)`; not written, checked where it is found."""

    name: str
    value: Callable[[tuple[int, ...]], Tensor]


@dataclass(frozen=True)
class Fixed:
    """A published parameter without a counterpart here: written with this value, refused with any other."""

    name: str
    value: Callable[[Any], Tensor]  # from the settings
    when: str = ""


@dataclass(frozen=True)
class Table:
    prefix: str  # of the encoder's tensors, such as "bert."; files of a bare encoder leave it out
    rules: tuple[Rule, ...]
    copies: tuple[Copy, ...] = ()
    constants: tuple[Constant, ...] = ()
    fixed: tuple[Fixed, ...] = ()
    older: Mapping[str, str] = field(default_factory=dict)  # endings of names in old files -> today's

    def expand(self, settings: Any) -> list[Rule]:
        """The rules that hold for a model of these settings, one for each layer."""
        own = 1 if settings.share == "all" else settings.layers
        found = []
        for rule in self.rules:
            if CONDITIONS[rule.when](settings):
                layered = any("{i}" in name for name in rule.theirs)
                found += [rule.at(layer) for layer in range(rule.start, own)] if layered else [rule]
        return found

    def renamed(self, changes: Mapping[str, str]) -> Table:
        """The same table for a model that lies elsewhere in our names; `changes` maps the starts of names."""

        def rename(name: str) -> str:
            start = max((start for start in changes if name.startswith(start)), key=len, default="")
            return changes.get(start, "") + name[len(start) :]

        rules = (replace(rule, ours=tuple(rename(name) for name in rule.ours)) for rule in self.rules)
        return replace(self, rules=tuple(rules))


# --- writing a table ---------------------------------------------------------------------------------


def tensor(theirs: Names, ours: Names, *, part: str = "", when: str = "") -> tuple[Rule, ...]:
    return (Rule(_names(theirs), _names(ours), part=part, when=when),)


def linear(
    theirs: Names, ours: Names, *, transposed: bool = False, part: str = "", when: str = "", bias: str = "bias"
) -> tuple[Rule, ...]:
    """weight and bias of a projection; `bias` is the condition under which it has one."""
    return (
        Rule(_names(theirs, ".weight"), _names(ours, ".weight"), transposed, part, when),
        Rule(_names(theirs, ".bias"), _names(ours, ".bias"), False, part, when or bias),
    )


def norm(theirs: str, ours: str, *, part: str = "", start: int = 0) -> tuple[Rule, ...]:
    return (
        Rule((f"{theirs}.weight",), (f"{ours}.weight",), part=part, start=start),
        Rule((f"{theirs}.bias",), (f"{ours}.bias",), part=part, when="norm bias", start=start),
    )


def _names(names: Names, ending: str = "") -> tuple[str, ...]:
    return tuple(name + ending for name in ([names] if isinstance(names, str) else names))


# --- using it ----------------------------------------------------------------------------------------


def to_own_names(
    table: Table, settings: Any, tensors: Mapping[str, Tensor], shapes: Shapes, where: str, tied: bool = True
) -> dict[str, Tensor]:
    """Published tensors under our names.

    `shapes` are those of our tensors; `tied` False says that the file's output layer claims a table of its own.
    """
    rules = table.expand(settings)
    current = _current(table, rules, tensors)
    found = dict(zip(current, tensors.values(), strict=True))
    used, faults = _used(rules, found, lambda rule: rule.theirs)
    faults += [f"{name} stands there under two names" for name, count in Counter(current).items() if count > 1]
    faults += _stray(table, settings, used, found, tied)
    faults += [
        f"{name} has the shape {tuple(found[name].shape)}, and {shape} is expected"
        for rule in used
        for name, shape in _expected(rule, shapes)
        if name in found and tuple(found[name].shape) != shape
    ]
    _raise(faults, where)
    ours: dict[str, Tensor] = {}
    for rule in used:
        parts = [found[name].t() if rule.transposed else found[name] for name in rule.theirs]
        joined = torch.cat(parts) if len(parts) > 1 else parts[0]
        ours.update(zip(rule.ours, _split(joined, len(rule.ours)), strict=True))
    return ours


def to_published_names(table: Table, settings: Any, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Our tensors under the published names, without second names of tied ones."""
    used, faults = _used(table.expand(settings), tensors, lambda rule: rule.ours)
    known = {name for rule in used for name in rule.ours}
    faults += [f"{name} has no place in the published form" for name in tensors if name not in known]
    _raise(faults, where)
    theirs: dict[str, Tensor] = {}
    for rule in used:
        parts = [tensors[name] for name in rule.ours]
        joined = torch.cat(parts) if len(parts) > 1 else parts[0]
        pieces = _split(joined, len(rule.theirs))
        theirs.update(zip(rule.theirs, [p.t() if rule.transposed else p for p in pieces], strict=True))
    theirs.update({fixed.name: fixed.value(settings) for fixed in _fixed(table, settings)})
    return {name: piece.contiguous() for name, piece in theirs.items()}


def find_parts(table: Table, settings: Any, tensors: Iterable[str]) -> set[str]:
    """The parts of which the published names hold something."""
    rules = table.expand(settings)
    names = set(_current(table, rules, tensors))
    return {rule.part for rule in rules if rule.part and names.intersection(rule.theirs)}


def _used(
    rules: list[Rule], found: Mapping[str, Tensor], side: Callable[[Rule], tuple[str, ...]]
) -> tuple[list[Rule], list[str]]:
    """The rules whose parts are there, and what these rules miss."""
    there = {""} | {rule.part for rule in rules if any(name in found for name in side(rule))}
    used = [rule for rule in rules if rule.part in there]
    return used, [f"{name} is missing" for rule in used for name in side(rule) if name not in found]


def _stray(table: Table, settings: Any, used: list[Rule], found: Mapping[str, Tensor], tied: bool) -> list[str]:
    """What is wrong with the tensors that no rule uses."""
    faults = []
    there = {rule.part for rule in used}
    rest = set(found) - {name for rule in used for name in rule.theirs}
    for copy in table.copies:
        if copy.name in rest and copy.of in found:
            rest.discard(copy.name)
            if not torch.equal(found[copy.name], found[copy.of]):
                faults.append(f"{copy.name} differs from {copy.of}: only an output layer tied to it has a place here")
        elif not tied and copy.part in there and copy.name not in found:
            faults.append(f"{copy.name} is missing, and config.json says that it is not tied to {copy.of}")
    for fixed in _fixed(table, settings):
        value = fixed.value(settings)
        if fixed.name not in rest:
            faults.append(f"{fixed.name} is missing")
        elif found[fixed.name].shape != value.shape or not torch.equal(found[fixed.name].float(), value):
            faults.append(f"{fixed.name} has other values than the one at which it does nothing: it has no place here")
        rest.discard(fixed.name)
    for name in sorted(rest):
        constant = next((c for c in table.constants if _matches(c.name, name)), None)
        if constant is None:
            faults.append(f"{name} is unexpected")
        elif not torch.equal(found[name].float(), constant.value(tuple(found[name].shape)).float()):
            faults.append(f"{name} is a buffer with other values than this class of models has")
    return faults


def _fixed(table: Table, settings: Any) -> list[Fixed]:
    return [fixed for fixed in table.fixed if CONDITIONS[fixed.when](settings)]


def _current(table: Table, rules: list[Rule], names: Iterable[str]) -> list[str]:
    """Today's full names: old endings replaced, and the prefix put before those of a bare encoder."""
    renamed = []
    for name in names:
        ending = next((old for old in table.older if name.endswith(old)), "")
        renamed.append(name.removesuffix(ending) + table.older.get(ending, ""))
    if any(name.startswith(table.prefix) for name in renamed):
        return renamed
    known = (
        {name for rule in rules for name in rule.theirs}
        | {one.name for one in table.copies}
        | {one.name for one in table.fixed}
    )
    outside = {name for name in known if not name.startswith(table.prefix)}
    buffers = [c.name for c in table.constants if c.name.startswith(table.prefix)]
    return [
        table.prefix + name
        if name not in outside
        and (table.prefix + name in known or any(_matches(buffer, table.prefix + name) for buffer in buffers))
        else name
        for name in renamed
    ]


def _matches(template: str, name: str) -> bool:
    before, layered, after = template.partition("{i}")
    if not layered:
        return name == template
    return name.startswith(before) and name.endswith(after) and name[len(before) : len(name) - len(after)].isdigit()


def _expected(rule: Rule, shapes: Shapes) -> list[tuple[str, tuple[int, ...]]]:
    """Each published name of a rule with the shape that our tensors ask for."""
    mine = [shapes[name] for name in rule.ours if name in shapes]
    if len(mine) < len(rule.ours):
        return []
    shape = (sum(part[0] for part in mine) // len(rule.theirs), *mine[0][1:])
    return [(name, shape[::-1] if rule.transposed else shape) for name in rule.theirs]


def _split(joined: Tensor, pieces: int) -> list[Tensor]:
    return [joined] if pieces == 1 else list(joined.chunk(pieces))


def _raise(faults: list[str], where: str) -> None:
    if faults:
        shown = faults[:12]  # of a wrong file everything is wrong: a dozen names tell as much
        more = f"; and {len(faults) - len(shown)} more" if len(faults) > len(shown) else ""
        raise UserError(f"{where}: {'; '.join(shown)}{more}.")
