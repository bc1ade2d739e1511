"""Tables between published tensor names and ours (design decision 5): one table a family, in both directions.

A rule says that some published tensors, stacked along the rows, are some of our tensors, stacked along the rows:

    linear("bert.encoder.layer.{i}.output.dense", "model.feedforward.{i}.down")         one to one
    linear(["...query", "...key", "...value"], "model.attention.{i}.qkv")               three to one
    linear("...mlp.Wi", ["model.feedforward.{i}.gate", "model.feedforward.{i}.up"])     one to two
    linear("h.{i}.attn.c_attn", "model.attention.{i}.qkv", transposed=True)             matrices of (in, out)

`{i}` runs over the layers. Both directions are strict: every tensor is used exactly once; missing, unexpected and
misshapen ones are named. A rule belongs to a `part`; the part "" is always there, any other one (a pooler, a head) is
there as a whole or not at all. `when` names a property of the settings that a rule needs.

A file may also hold a `TiedCopy`, a second name of a tied tensor; a `ConstantBuffer`, which follows from the settings;
a `FixedTensor`, a parameter of the published class that does nothing at one value and is absent here. None of them is
dropped silently: each is compared with the value it must have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from etude.errors import UserError
from etude.models.transformer import Settings

Names = str | list[str]
Shapes = Mapping[str, tuple[int, ...]]

# The properties of settings that a rule's `when` may name.
CONDITIONS: dict[str, Callable[[Settings], bool]] = {
    "": lambda settings: True,
    "segments": lambda settings: settings.segments > 0,
    "narrow": lambda settings: (settings.embedding_width or settings.width) != settings.width,
    "full": lambda settings: (settings.embedding_width or settings.width) == settings.width,
    "bias": lambda settings: settings.bias,
    "norm bias": lambda settings: settings.bias and settings.norm_kind == "layer",
}


@dataclass(frozen=True)
class Rule:
    """Published tensors, stacked, equal our tensors, stacked."""

    published: tuple[str, ...]
    own: tuple[str, ...]
    transposed: bool = False
    part: str = ""
    when: str = ""
    start: int = 0  # the first layer it applies to

    def at(self, layer: int) -> Rule:
        """Return the rule of one layer."""
        return replace(
            self,
            published=tuple(name.replace("{i}", str(layer)) for name in self.published),
            own=tuple(name.replace("{i}", str(layer)) for name in self.own),
        )


@dataclass(frozen=True)
class TiedCopy:
    """A published name that repeats another tensor of the same file."""

    name: str
    source: str
    part: str = ""


@dataclass(frozen=True)
class ConstantBuffer:
    """A published buffer whose content is known: `value(shape)`; not written, checked where it is present.

    `tolerance` is relative, for values that others compute in another order or precision.
    """

    name: str
    value: Callable[[tuple[int, ...]], Tensor]
    tolerance: float = 0.0


@dataclass(frozen=True)
class FixedTensor:
    """A published parameter without a counterpart here: written with this value, refused with any other."""

    name: str
    value: Callable[[Settings], Tensor]
    when: str = ""


@dataclass(frozen=True)
class ResolvedTable:
    """The rules of one model, each for single tensors."""

    prefix: str
    rules: tuple[Rule, ...]
    copies: tuple[TiedCopy, ...] = ()
    constants: tuple[ConstantBuffer, ...] = ()
    fixed: Mapping[str, Tensor] = field(default_factory=dict)
    old_suffixes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """The rules of one family."""

    prefix: str  # of the encoder's tensors, such as "bert."; files of a bare encoder omit it
    rules: tuple[Rule, ...]
    copies: tuple[TiedCopy, ...] = ()
    constants: tuple[ConstantBuffer, ...] = ()
    derive_constants: Callable[[Settings], tuple[ConstantBuffer, ...]] = lambda settings: ()  # those of settings
    fixed: tuple[FixedTensor, ...] = ()
    old_suffixes: Mapping[str, str] = field(default_factory=dict)  # of names in old files -> the current ones

    def resolve(self, settings: Settings) -> ResolvedTable:
        """Return the table of one model: rules of single layers, and nothing that depends on settings."""
        fixed = {entry.name: entry.value(settings) for entry in self.fixed if CONDITIONS[entry.when](settings)}
        rules = tuple(self.expand(settings))
        constants = self.constants + self.derive_constants(settings)
        return ResolvedTable(self.prefix, rules, self.copies, constants, fixed, self.old_suffixes)

    def expand(self, settings: Settings) -> list[Rule]:
        """Return the rules that apply to a model of these settings, one for each layer."""
        layers = 1 if settings.share == "all" else settings.layers
        rules: list[Rule] = []
        for rule in self.rules:
            if CONDITIONS[rule.when](settings):
                is_layered = any("{i}" in name for name in rule.published)
                rules += [rule.at(layer) for layer in range(rule.start, layers)] if is_layered else [rule]
        return rules

    def rename_own(self, prefixes: Mapping[str, str]) -> Table:
        """Return the same table for a model elsewhere among our names; the longest matching prefix is replaced."""

        def rename(name: str) -> str:
            prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
            return prefixes.get(prefix, "") + name[len(prefix) :]

        rules = (replace(rule, own=tuple(rename(name) for name in rule.own)) for rule in self.rules)
        return replace(self, rules=tuple(rules))


# --- rules ------------------------------------------------------------------------------------------


def tensor(published: Names, own: Names, *, part: str = "", when: str = "") -> tuple[Rule, ...]:
    """Map one tensor."""
    return (Rule(_add_suffix(published), _add_suffix(own), part=part, when=when),)


def linear(
    published: Names, own: Names, *, transposed: bool = False, part: str = "", when: str = "", bias: str = "bias"
) -> tuple[Rule, ...]:
    """Map weight and bias of a projection; `bias` is the condition under which it has one."""
    return (
        Rule(_add_suffix(published, ".weight"), _add_suffix(own, ".weight"), transposed, part, when),
        Rule(_add_suffix(published, ".bias"), _add_suffix(own, ".bias"), False, part, when or bias),
    )


def norm(published: str, own: str, *, part: str = "", start: int = 0) -> tuple[Rule, ...]:
    """Map weight and bias of a norm."""
    return (
        Rule((f"{published}.weight",), (f"{own}.weight",), part=part, start=start),
        Rule((f"{published}.bias",), (f"{own}.bias",), part=part, when="norm bias", start=start),
    )


def _add_suffix(names: Names, suffix: str = "") -> tuple[str, ...]:
    return tuple(name + suffix for name in ([names] if isinstance(names, str) else names))


# --- renaming ---------------------------------------------------------------------------------------


def to_own_names(
    table: Table, settings: Settings, tensors: Mapping[str, Tensor], shapes: Shapes, source: str, tied: bool = True
) -> dict[str, Tensor]:
    """Return published tensors under our names.

    `shapes` are those of our tensors; `tied` False says that the file's output layer has a table of its own. `source`
    names the file in errors.
    """
    return rename_to_own(table.resolve(settings), tensors, shapes, source, tied)


def rename_to_own(
    table: ResolvedTable, tensors: Mapping[str, Tensor], shapes: Shapes, source: str, tied: bool = True
) -> dict[str, Tensor]:
    """Return published tensors under our names; as `to_own_names`, by the rules of one model."""
    names = _current_names(table, tensors)
    published = dict(zip(names, tensors.values(), strict=True))
    used, problems = _select_rules(table.rules, published, lambda rule: rule.published)
    problems += [f"{name} is there under two names" for name, count in Counter(names).items() if count > 1]
    problems += _check_unused(table, used, published, tied)
    problems += [
        f"{name} has the shape {tuple(published[name].shape)}, and {shape} is expected"
        for rule in used
        for name, shape in _expected_shapes(rule, shapes)
        if name in published and tuple(published[name].shape) != shape
    ]
    _raise_problems(problems, source)
    own: dict[str, Tensor] = {}
    for rule in used:
        parts = [published[name].t() if rule.transposed else published[name] for name in rule.published]
        stacked = torch.cat(parts) if len(parts) > 1 else parts[0]
        own.update(zip(rule.own, _split(stacked, len(rule.own)), strict=True))
    return own


def to_published_names(
    table: Table, settings: Settings, tensors: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    """Return our tensors under the published names, without second names of tied ones."""
    return rename_to_published(table.resolve(settings), tensors, source)


def rename_to_published(table: ResolvedTable, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return our tensors under the published names; as `to_published_names`, by the rules of one model."""
    used, problems = _select_rules(table.rules, tensors, lambda rule: rule.own)
    known = {name for rule in used for name in rule.own}
    problems += [f"{name} has no place in the published form" for name in tensors if name not in known]
    _raise_problems(problems, source)
    published: dict[str, Tensor] = {}
    for rule in used:
        parts = [tensors[name] for name in rule.own]
        stacked = torch.cat(parts) if len(parts) > 1 else parts[0]
        pieces = _split(stacked, len(rule.published))
        published.update(zip(rule.published, [p.t() if rule.transposed else p for p in pieces], strict=True))
    published.update(table.fixed)
    return {name: piece.contiguous() for name, piece in published.items()}


def find_parts(table: Table, settings: Settings, tensors: Iterable[str]) -> set[str]:
    """Return the parts to which some of the published names belong."""
    resolved = table.resolve(settings)
    names = set(_current_names(resolved, tensors))
    return {rule.part for rule in resolved.rules if rule.part and names.intersection(rule.published)}


def _select_rules(
    rules: tuple[Rule, ...], tensors: Mapping[str, Tensor], side: Callable[[Rule], tuple[str, ...]]
) -> tuple[list[Rule], list[str]]:
    """Return the rules whose parts are present, and the tensors that these rules miss."""
    parts = {""} | {rule.part for rule in rules if any(name in tensors for name in side(rule))}
    used = [rule for rule in rules if rule.part in parts]
    return used, [f"{name} is missing" for rule in used for name in side(rule) if name not in tensors]


def _check_unused(table: ResolvedTable, used: list[Rule], published: Mapping[str, Tensor], tied: bool) -> list[str]:
    """Return the problems of the tensors that no rule uses."""
    problems = []
    parts = {rule.part for rule in used}
    rest = set(published) - {name for rule in used for name in rule.published}
    for copy in table.copies:
        if copy.name in rest and copy.source in published:
            rest.discard(copy.name)
            if not torch.equal(published[copy.name], published[copy.source]):
                problems.append(f"{copy.name} differs from {copy.source}: an output layer must be tied to it here")
        elif not tied and copy.part in parts and copy.name not in published:
            problems.append(f"{copy.name} is missing, and config.json says that it is not tied to {copy.source}")
    for name, value in table.fixed.items():
        if name not in rest:
            problems.append(f"{name} is missing")
        elif published[name].shape != value.shape or not torch.equal(published[name].float(), value):
            problems.append(f"{name} has other values than those at which it does nothing: it has no place here")
        rest.discard(name)
    for name in sorted(rest):
        constant = next((c for c in table.constants if _matches(c.name, name)), None)
        if constant is None:
            problems.append(f"{name} is unexpected")
        elif not _is_constant(published[name].float(), constant):
            problems.append(f"{name} is a buffer with other values than this class of models has")
    return problems


def _is_constant(found: Tensor, constant: ConstantBuffer) -> bool:
    """Whether a buffer, read as float32, has the expected values; a file in half precision has them rounded."""
    expected = constant.value(tuple(found.shape)).float()
    precisions = (torch.float32, torch.float16, torch.bfloat16)
    if found.shape != expected.shape or not constant.tolerance:
        return any(torch.equal(found, expected.to(precision).float()) for precision in precisions)
    return any(
        torch.equal(found, found.to(precision).float())  # it may have been rounded to this one, up or down
        and torch.allclose(found, expected, constant.tolerance + torch.finfo(precision).eps, 0.0)
        for precision in precisions
    )


def _current_names(table: ResolvedTable, names: Iterable[str]) -> list[str]:
    """Return the current full names: old suffixes replaced, and the prefix added to those of a bare encoder."""
    renamed = []
    for name in names:
        suffix = next((old for old in table.old_suffixes if name.endswith(old)), "")
        renamed.append(name.removesuffix(suffix) + table.old_suffixes.get(suffix, ""))
    if any(name.startswith(table.prefix) for name in renamed):
        return renamed
    known = {name for rule in table.rules for name in rule.published}
    known |= {copy.name for copy in table.copies} | set(table.fixed)
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
    before, placeholder, after = template.partition("{i}")
    if not placeholder:
        return name == template
    return name.startswith(before) and name.endswith(after) and name[len(before) : len(name) - len(after)].isdigit()


def _expected_shapes(rule: Rule, shapes: Shapes) -> list[tuple[str, tuple[int, ...]]]:
    """Return each published name of a rule with the shape that our tensors require."""
    own = [shapes[name] for name in rule.own if name in shapes]
    if len(own) < len(rule.own):
        return []
    shape = (sum(part[0] for part in own) // len(rule.published), *own[0][1:])
    return [(name, shape[::-1] if rule.transposed else shape) for name in rule.published]


def _split(stacked: Tensor, pieces: int) -> list[Tensor]:
    return [stacked] if pieces == 1 else list(stacked.chunk(pieces))


def _raise_problems(problems: list[str], source: str) -> None:
    """Raise one error with the first dozen problems: in a wrong file everything is wrong."""
    if problems:
        first = problems[:12]
        more = f"; and {len(problems) - len(first)} more" if len(problems) > len(first) else ""
        raise UserError(f"{source}: {'; '.join(first)}{more}.")
