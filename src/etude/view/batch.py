"""A batch of training as text: sequences with marks, lines of what is read and predicted, or lists.

Tokens stand as the tokenizer writes them; those of a byte-level one as the letters that their bytes are, with ▁ for a
space, and bytes that are a part of a letter by their numbers. A marked token is written ‹read→target›, so that a page
without colours says the same: [MASK] is masked, the same token kept, another one random or replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from etude.objectives.batch_view import MARKS, BatchView, SequenceView, TokenView
from etude.text.tokenizer.tokenizer import Tokenizer

STYLES = {"masked": "bold magenta", "random": "bold red", "kept": "bold green", "replaced": "bold red", "same": "green"}
TARGET, SPECIAL, NOTE = "cyan", "dim", "dim"
SPACE = "▁"
LIST_SHARE = 6  # an item takes a line: so many fewer of them than of tokens


@dataclass(frozen=True)
class Names:
    """What the numbers of a view are called."""

    token: Callable[[int], str]
    special: frozenset[int] = frozenset()
    relations: Sequence[str] = ()
    entities: Sequence[str] | None = None  # that tokens are mentions of


def name_tokens(tokenizer: Tokenizer, entities: Sequence[str] | None = None) -> Names:
    """The names of a tokenizer's tokens."""
    special = frozenset(tokenizer.special.ids())
    letters = _byte_letters() if tokenizer.kind == "bytebpe" else None

    def name(token: int) -> str:
        if token >= tokenizer.vocab:  # model.vocab may be larger, and random tokens are any of it
            return f"#{token}"
        text = tokenizer.token(token)
        if letters is None or token in special or any(letter not in letters for letter in text):
            return text.replace(" ", SPACE)
        return _decode_bytes(bytes(letters[letter] for letter in text))

    return Names(name, special, entities=entities)


def _byte_letters() -> dict[str, int]:
    """The letter that a byte-level vocabulary writes for each byte: printable ones themselves, others from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _decode_bytes(content: bytes) -> str:
    """Letters, and the bytes that are a part of one as <EA>."""
    text = content.decode("utf-8", "surrogateescape")
    text = "".join(f"<{ord(letter) - 0xDC00:02X}>" if 0xDC80 <= ord(letter) <= 0xDCFF else letter for letter in text)
    return text.replace(" ", SPACE).replace("\n", "\\n")


def format_view(view: BatchView, names: Names, *, width: int = 100, tokens: int = 120) -> Iterator[Text]:
    """Lines of a terminal of this width; `tokens`: of each sequence at most."""
    yield Text(f"Asked: {view.asks[0]}.")
    for mark in view.marks:
        yield Text.assemble(("  ‹…› ", STYLES[mark]), (mark, STYLES[mark]), f": {MARKS[mark][0]}")
    for name, shape in view.fields.items():
        yield Text(f"  {name}: {shape}", style=NOTE)
    for number, sequence in enumerate(view.sequences, 1):
        yield Text()
        yield _heading(sequence, number)
        most = tokens if sequence.form != "list" else max(1, tokens // LIST_SHARE)
        first = sequence.tokens[:most]
        if sequence.form == "text":
            yield _wrap([_format_token(token, names) for token in first], width)
        elif sequence.form == "aligned":
            yield from _format_lines(sequence, first, names, width)
        else:
            yield from (_format_item(token, sequence, names) for token in first)
        if len(sequence.tokens) > most:
            yield Text(f"… {len(sequence.tokens) - most:,} more", style=NOTE)


def _heading(sequence: SequenceView, number: int) -> Text:
    size, what = len(sequence.tokens), "items" if sequence.form == "list" else "tokens"
    name = f", {sequence.name}" if sequence.name else ""
    predicted = sum(bool(token.mark) for token in sequence.tokens)
    marked = f", {predicted} predicted" if predicted else ""
    return Text.assemble(
        (f"[{number}{name}] {size} {what}{marked}", "bold"),
        (f"  {sequence.note[0]}" if sequence.note[0] else "", TARGET),
    )


def _name_target(target: int | None, names: Names) -> str:
    return "" if target is None else names.token(target)


def _format_token(token: TokenView, names: Names) -> Text:
    text = names.token(token.token)
    if not token.mark:
        formatted = Text(text, style=SPECIAL if token.token in names.special else "")
    else:
        style = STYLES[token.mark]
        targets = " ".join(_name_target(target, names) for target in token.targets)
        formatted = Text.assemble(("‹", style), (text, style), ("→", style), (targets, TARGET), ("›", style))
    if token.entity is not None:
        name = str(token.entity) if names.entities is None else names.entities[token.entity]
        formatted.append(f"{{{name}}}", style=TARGET)
    return formatted


def _wrap(parts: Sequence[Text], width: int) -> Text:
    """Parts with a space between them, in lines of this width."""
    lines, used = Text(), 0
    for part in parts:
        size = cell_len(part.plain)
        if used and used + 1 + size > width:
            lines.append("\n")
            used = 0
        elif used:
            lines.append(" ")
            used += 1
        lines.append_text(part)
        used += size
    return lines


def _format_lines(sequence: SequenceView, tokens: Sequence[TokenView], names: Names, width: int) -> Iterator[Text]:
    """What is read, and under each token what is asked there, in as many blocks as the width needs."""
    heads = [line[0] for line in sequence.lines]
    margin = max(map(len, heads)) + 2
    columns = [
        (token, [names.token(token.token), *(_name_target(target, names) for target in token.targets)])
        for token in tokens
    ]
    while columns:
        used, count = margin, 0
        for _, cells in columns:
            used += max(map(cell_len, cells)) + 1
            if used > width and count:
                break
            count += 1
        block, columns = columns[:count], columns[count:]
        for place, head in enumerate(heads):
            line = Text(head.ljust(margin), style=NOTE)
            for token, cells in block:
                style = TARGET if place else SPECIAL if token.token in names.special else ""
                line.append(cells[place], style=style)
                line.append(" " * (max(map(cell_len, cells)) + 1 - cell_len(cells[place])))
            yield line
        if columns:
            yield Text()


def _format_item(token: TokenView, sequence: SequenceView, names: Names) -> Text:
    first = names.token(token.token)
    targets = [_name_target(target, names) for target in token.targets]
    if token.relation is not None:
        known, relation = (first, "bold"), (f" —{names.relations[token.relation]}→ ", NOTE)
        target = (f"‹?→{targets[0]}›", STYLES["masked"])
        parts = [target, relation, known] if token.note == "head" else [known, relation, target]
        return Text.assemble("  ", *parts, (f"   not {', '.join(targets[1:])}", NOTE))
    joint = f" {sequence.joint[0]} " if targets else ""
    note = f"   {token.note}" if token.note else ""
    return Text.assemble("  ", (first, "bold"), (joint, NOTE), (" ".join(targets), TARGET), (note, NOTE))


def view_json(view: BatchView, names: Names) -> dict[str, object]:
    """Everything by name, for a program."""

    def item(token: TokenView) -> dict[str, object]:
        values: dict[str, object] = {"token": names.token(token.token)}
        if token.mark:
            values["mark"] = token.mark
        if token.targets:
            values["targets"] = [None if target is None else names.token(target) for target in token.targets]
        if token.relation is not None:
            values["relation"] = names.relations[token.relation]
        if token.entity is not None:
            values["entity"] = token.entity if names.entities is None else names.entities[token.entity]
        if token.note:
            values["note"] = token.note
        return values

    sequences = [
        {
            "name": sequence.name,
            "form": sequence.form,
            "note": sequence.note[0],
            "tokens": list(map(item, sequence.tokens)),
        }
        for sequence in view.sequences
    ]
    return {"asks": view.asks[0], "fields": dict(view.fields), "sequences": sequences}
