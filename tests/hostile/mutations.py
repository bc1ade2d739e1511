"""Mutations of files: bytes, and the values of JSON and YAML; each a function of a generator's draws alone."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

TOKENS = [
    b"\0", b"\xff\xfe", b"\x1b[2J\x1b]0;x\x07", b"[red]x[/red]", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n\n",
    b'"', b"'",
    b"{", b"}", b"[" * 200, b"]", b"{" * 500, b":", b",", b"\t", b"-", b"9" * 5000, b"1e999", b"-1", b"NaN", b"null",
    b"true", b"&a", b"*a", b"!!python/object:os.system", b"../../etc/passwd", b"%s%n{0}", b"\\u0000", b"\\ud800",
    "가".encode(), "\u202e".encode(), b"\x80", b"18446744073709551616", b"<" * 100, b"a" * 3000,
    b"[" * 2000, b'{"a":' * 2000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.5, -0.5, 1e308, "", "x", "0",
    "../..",
    "/etc/passwd", "..", "\x1b[31m", "\ud800", "[red]", "a" * 5000, [], {}, [[]], [1, 2, 3], {"a": 1}, [None], ["x"],
    {"type": "Sequence"}, "null", float("1e999"),
]  # fmt: skip


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    """One to four changes: a flipped bit, a slice removed, doubled or moved, a token put in, an end cut off."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        place = draw.randrange(len(data) + 1)
        length = draw.choice((1, 2, 7, 64, max(1, len(data) // 3)))
        kind = draw.randrange(7)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[place : place + length]
        elif kind == 2:
            data[place:place] = data[place : place + length]
        elif kind == 3:
            data[place : place + draw.choice((0, 1, length))] = draw.choice(TOKENS)
        elif kind == 4:
            del data[place:]
        elif kind == 5:
            data[place : place + length] = draw.randbytes(min(length, 64))
        else:
            other = draw.randrange(len(data) + 1)
            data[place:place] = data[other : other + length]
    return bytes(data)


def mutate_values(values: Any, draw: random.Random) -> Any:
    """One or two changes of a tree of values: a node replaced, removed, doubled, or moved elsewhere."""
    tree = {"": copy.deepcopy(values)}
    for _ in range(draw.choice((1, 1, 2))):
        nodes = list(_nodes(tree))
        container, key = draw.choice(nodes)
        kind = draw.randrange(6)
        if kind < 3:
            container[key] = copy.deepcopy(draw.choice(VALUES))
        elif kind == 3 and container is not tree:
            del container[key]
        elif kind == 4:
            other, place = draw.choice(nodes)
            container[key] = copy.deepcopy(other[place])
        elif isinstance(container, dict) and container is not tree:
            container[draw.choice(("x", "", "../x", "\x1b", "format", "a" * 300))] = container.pop(key)
    return tree[""]


def _nodes(container: Any) -> Any:
    keys = list(container) if isinstance(container, dict) else range(len(container))
    for key in keys:
        yield container, key
        if isinstance(container[key], dict | list):
            yield from _nodes(container[key])


def mutate_json(content: bytes, draw: random.Random) -> bytes:
    """Half of the changes are of values, half of bytes."""
    if draw.random() < 0.4:
        return mutate_bytes(content, draw)
    values = mutate_values(json.loads(content), draw)
    return json.dumps(values, ensure_ascii=True).encode()
