"""N-Triples, a line-based form of RDF: `<subject> <predicate> <object> .`

Entities and relations are IRIs without their angle brackets, and blank nodes (`_:b0`). An object in quotation marks is
no entity: one of the predicates that name or describe things becomes a label, an alias or a description; others are
left out and counted. Escapes (`\\u00E9`, `\\n`) are resolved. Of literals with a language tag, those of the wanted
language are read ("en" takes "en-GB" too), and those without a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from etude.errors import UserError
from etude.graph.readers.base import EntityRow, ReadSettings, SkipCounts, TripleBlock, check_name
from etude.graph.readers.lines import FileWatch, read_lines
from etude.text.prepare.sources import SourceFile

_IRI = r"<([^\x00-\x20<>\"{}|^`]*)>"
_BLANK = r"(_:[^\s<>\"]+?)"
_LINE = re.compile(
    rf"\s*(?:{_IRI}|{_BLANK})\s*{_IRI}\s*"
    rf"(?:{_IRI}|{_BLANK}|\"((?:[^\"\\\n\r]|\\.)*)\"(?:@([A-Za-z]+(?:-[A-Za-z0-9]+)*)|\^\^{_IRI})?)\s*\.\s*(?:\#.*)?"
)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f", '"': '"', "'": "'", "\\": "\\"}

LABELS = {
    "http://www.w3.org/2000/01/rdf-schema#label", "http://www.w3.org/2004/02/skos/core#prefLabel",
    "http://schema.org/name", "http://xmlns.com/foaf/0.1/name",
}  # fmt: skip
ALIASES = {"http://www.w3.org/2004/02/skos/core#altLabel", "http://schema.org/alternateName"}
DESCRIPTIONS = {
    "http://schema.org/description", "http://www.w3.org/2000/01/rdf-schema#comment",
    "http://purl.org/dc/terms/description",
}  # fmt: skip


def read_ntriples(
    file: SourceFile, settings: ReadSettings, counts: SkipCounts, watch: FileWatch | None = None
) -> Iterator[TripleBlock]:
    """Yield the triples of entities of an .nt file, and what its literals say of them."""
    for first, texts in read_lines(file, watch):
        block = TripleBlock()
        for line, text in enumerate(texts, first):
            match = _LINE.fullmatch(text)
            if match is None:
                if not text or text.isspace() or text.lstrip().startswith("#"):
                    continue
                raise UserError(f"{file.path}:{line}: not a triple of N-Triples: {text.strip()[:60]!r}.")
            subject, blank, predicate, target, target_blank, literal, tag, _ = match.groups()
            head = _name(file.path, line, "head", subject, blank)
            relation = _name(file.path, line, "relation", predicate, None)
            if literal is None:
                block.heads.append(head)
                block.relations.append(relation)
                block.tails.append(_name(file.path, line, "tail", target, target_blank))
                block.lines.append(line)
            elif tag and settings.language and tag.lower().partition("-")[0] != settings.language.lower():
                counts["literals of another language"] += 1
            elif row := _describe(file.path, line, head, relation, literal):
                block.rows.append(row)
            else:
                counts["literals"] += 1
        yield block


def _name(path: str, line: int, role: str, iri: str | None, blank: str | None) -> str:
    name = blank if iri is None else iri
    assert name is not None
    return check_name(path, line, role, _unescape(path, line, name) if "\\" in name else name)


def _describe(path: str, line: int, head: str, relation: str, literal: str) -> EntityRow | None:
    text = " ".join((_unescape(path, line, literal) if "\\" in literal else literal).split())
    if relation in LABELS:
        return EntityRow(head, label=text, line=line)
    if relation in ALIASES:
        return EntityRow(head, aliases=[text] if text else [], line=line)
    if relation in DESCRIPTIONS:
        return EntityRow(head, description=text, line=line)
    return None


def _unescape(path: str, line: int, text: str) -> str:
    def resolve(match: re.Match[str]) -> str:
        code = match.group(1)
        if code[0] in "uU" and len(code) > 1:
            number = int(code[1:], 16)
            if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                raise UserError(f"{path}:{line}: \\{code} is no character.")
            return chr(number)
        if code not in _LETTERS:
            raise UserError(f"{path}:{line}: \\{code} is no escape of N-Triples.")
        return _LETTERS[code]

    return _ESCAPE.sub(resolve, text)
