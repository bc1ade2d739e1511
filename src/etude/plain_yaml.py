"""YAML as every file of Etude has it: plain words, numbers, lists and groups, with the line of each value.

No tags, no aliases, no key twice, no deep nesting: what cannot be read is one message with its line.
"""

from __future__ import annotations

import re
from copy import deepcopy
from functools import lru_cache
from typing import Any

import yaml

from etude.errors import UserError

MAX_DEPTH = 50
REMEMBERED_LENGTH = 20_000  # characters
PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))

Path = tuple[str, ...]


class Reader(yaml.SafeLoader):
    """Safe YAML whose plain words mean what they look like: 3e-4 is a number, `no` and `on` are words."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark
        if self.check_event(yaml.AliasEvent):  # an alias can loop or explode; `extends` is the way to share
            raise yaml.MarkedYAMLError(problem="aliases are not allowed here", problem_mark=mark)
        if self.depth == MAX_DEPTH:  # each level is a level of Python's stack here and wherever the values go
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels", problem_mark=mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class Writer(yaml.SafeDumper):
    """Quotes every text that this or a standard YAML reader would take for something else."""

    yaml_implicit_resolvers = dict(yaml.SafeDumper.yaml_implicit_resolvers)


def _text(writer: Writer, text: str) -> yaml.ScalarNode:
    """YAML folds three more line ends than \\n: a text of them would read back as a space. Quotes escape them."""
    style = '"' if any(end in text for end in "\x85\u2028\u2029") else None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Writer.add_representer(str, _text)
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|\.inf|\.nan)$")
_NUMBER_STARTS = list("-+0123456789.")
Reader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:~|null|)$"), ["~", "n", ""])
Reader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)$"), ["t", "f"])
Reader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), _NUMBER_STARTS)
Reader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, _NUMBER_STARTS)
Writer.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, _NUMBER_STARTS)


def read_yaml(text: str, where: str) -> tuple[Any, dict[Path, str]]:
    """Return the values of a YAML text, and for each path in it the place to name in a message.

    `where` names the text. PyYAML needs 20 ms for a recipe, and the plan of a study reads the same few hundreds of
    times: short texts are remembered. What is returned may be changed, so it is a copy.
    """
    values, places = (_read_once if len(text) <= REMEMBERED_LENGTH else _read)(text, where)
    return deepcopy(values), dict(places)


def _read(text: str, where: str) -> tuple[Any, dict[Path, str]]:
    try:
        reader = Reader(text)
    except yaml.reader.ReaderError as error:
        number, character = text.count("\n", 0, error.position) + 1, f"U+{error.character:04X}"
        raise UserError(
            f"{where}, line {number}: not valid YAML: it holds the control character {character}."
        ) from None
    places: dict[Path, str] = {}

    def build(node: Any, path: Path) -> Any:
        place = places[path] = f"{where}, line {node.start_mark.line + 1}"
        if node.tag not in PLAIN_TAGS:
            raise UserError(f"{place}: not valid YAML here: the tag {node.tag!r}. Write plain words and numbers.")
        if isinstance(node, yaml.SequenceNode):
            return [build(item, (*path, str(number))) for number, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            try:
                return reader.construct_object(node, deep=True)
            except (ValueError, KeyError, IndexError, OverflowError):  # 5,000 digits, or `!!int word`
                excerpt = node.value if len(node.value) <= 40 else f"{node.value[:40]}…"
                raise UserError(f"{place}: {excerpt!r} is no number that can be read.") from None
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in PLAIN_TAGS:
                raise UserError(f"{where}, line {line}: a key must be a plain word.")
            if key in values:
                raise UserError(f"{where}, line {line}: '{key}' stands here a second time. Keep one of the two.")
            values[key] = build(value_node, (*path, key))
            places[(*path, key)] = f"{where}, line {line}"
        return values

    try:
        root = reader.get_single_node()
        values = build(root, ()) if root is not None else {}
        places.setdefault((), where)  # of an empty file
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line}: not valid YAML: {getattr(error, 'problem', None) or error}.") from None
    except (ValueError, IndexError, OverflowError):  # PyYAML itself, at an escape such as "\\UFFFFFFFF"
        raise UserError(f"{where}, line {reader.line + 1}: not valid YAML.") from None
    finally:
        reader.dispose()
    return values, places


_read_once = lru_cache(maxsize=512)(_read)
