"""Reads the code blocks of a page, and the `etude` lines in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "generator" not in page.parts)

_FENCE = re.compile(r"^( *)(```+|~~~+) *([\w-]*)(.*)$")
_END = {"|", "||", "&&", ";", "<", ">", ">>", "2>", "&"}  # of a command, in a line of a shell
_LATER_LANGUAGES = {"python", "yaml", "json", "toml", "text", "html"}


@dataclass(frozen=True)
class Block:
    language: str  # of the fence; empty where there is none
    title: str  # the name of a file that the block is
    text: str
    line: int


def read_blocks(page: str) -> Iterator[Block]:
    """Fenced blocks, and blocks indented by four spaces behind an empty line."""
    lines = page.splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence:
            end = number + 1
            while end < len(lines) and lines[end].strip() != fence[2]:
                end += 1
            body = [line.removeprefix(fence[1]) for line in lines[number + 1 : end]]
            title = re.search(r'title="([^"]+)"', fence[4])
            yield Block(fence[3], title[1] if title else "", "\n".join(body) + "\n", number + 1)
            number = end
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block("", "", "\n".join(line[4:] for line in lines[number:end]) + "\n", number + 1)
            number = end - 1
        number += 1


def etude_lines(block: Block) -> Iterator[str]:
    """The command lines of a block that call etude, whole; those with an ellipsis are no commands."""
    if block.language in _LATER_LANGUAGES:
        return
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        line = re.sub(r"^\$ ", "", line.strip())
        if line.startswith("etude ") and "…" not in line and "..." not in line:
            yield line


def split_command(line: str) -> list[list[str]]:
    """The words of every etude command of a line, without comments, redirections and what is piped on."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    reading = True
    for word in lexer:
        if set(word) <= set("|&;<>"):
            reading = word in ("&&", ";")
            if reading:
                commands.append([])
        elif reading:
            commands[-1].append(word)
    return [words for words in commands if words and words[0] == "etude"]
