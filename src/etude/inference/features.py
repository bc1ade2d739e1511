"""Hidden states of texts as arrays, and sentence vectors by pooling (`etude features`).

Texts are framed as in pre-training. A vector pools the hidden states of a text: mean, max, start (the first), last.
The .npz file holds `vectors` (texts, layers, width), or with pooling "none" one array (layers, tokens, width) a
text, named by its number, and `layers`, the numbers of the layers.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from etude.errors import UserError, explain_write_failure
from etude.inference.model import LoadedModel, load
from etude.inference.text_vectors import Pool, check_pool
from etude.models.layer_features import chosen_layers
from etude.models.transfer_settings import Layers
from etude.tasks import classify
from etude.tasks.base import by_length
from etude.tasks.data.decoding import advise_encoding, recode
from etude.tasks.data.examples import MissingColumnError, Record, check_columns, checked_text
from etude.tasks.data.records import COMPRESSED, open_file, records
from etude.text.line_ends import has_return_ends
from etude.text.prepare.decompression import DECOMPRESSION_ERRORS

log = logging.getLogger("etude")
COLUMN_ADVICE = "--text NAME names the column of the text."
SKIP_ADVICE = "With --skip-bad its row is NaN."


def extract(
    model: LoadedModel, texts: Sequence[str], layers: Layers = "last", pool: Pool = "mean", skip_bad: bool = False
) -> list[np.ndarray]:
    """Return one array a text, in order: (layers, width), or (layers, tokens, width) without pooling.

    A text without tokens is refused, or with `skip_bad` its vector is NaN.
    """
    check_pool(pool)
    chosen = chosen_layers(layers, model.model.base.state_count)
    encoded = model.tokenizer.encode_ids(texts)
    ids = [model.frame(tokens) for tokens in encoded]
    markers = len(model.objective.frame(np.zeros(0, np.int64), None))
    cut = sum(len(framed) < len(tokens) + markers for framed, tokens in zip(ids, encoded, strict=True))
    if cut:
        log.warning("%d of %d texts are longer than %s tokens and were cut.", cut, len(texts), model.model.context)
    arrays: list[np.ndarray | None] = [None] * len(texts)
    reduce = {
        "mean": lambda states: states.mean(1),
        "max": lambda states: states.max(1),
        "start": lambda states: states[:, 0],
        "last": lambda states: states[:, -1],
        "none": lambda states: states,
    }[pool]
    for group in by_length([len(sequence) for sequence in ids]):
        for number, states in zip(group, model.states([ids[n] for n in group]), strict=True):
            if states.shape[1]:
                arrays[number] = np.ascontiguousarray(reduce(states[chosen]))
            elif skip_bad:
                arrays[number] = _blank_array(len(chosen), states.shape[2], pool)
            else:
                raise UserError(f"text {number + 1}: the tokenizer leaves nothing of it. Remove it.")
    return [array for array in arrays if array is not None]


def _blank_array(layers: int, width: int, pool: Pool) -> np.ndarray:
    """What stands in the place of a text that is none: NaN, or without pooling no token."""
    if pool == "none":
        return np.zeros((layers, 0, width), np.float32)
    return np.full((layers, width), np.nan, np.float32)


def extract_file(
    run: str | Path,
    file: str | Path | None,
    out: str | Path,
    layers: str = "last",
    pool: Pool = "mean",
    text: str | None = None,
    skip_bad: bool = False,
    force: bool = False,
) -> str:
    """Write the .npz file and return a one-line summary of it; UserError where there is one, unless `force` is given.

    One that is replaced stays until the new one is complete. `file`: None reads lines of standard input. `skip_bad`: a
    bad line has a row all the same, of NaN.
    """
    out, wanted = Path(out), parse_layers(layers)
    if out.suffix != ".npz" or not out.parent.is_dir():
        raise UserError(f"{out}: the arrays are written as .npz, in a folder that is there. Name the file so.")
    if out.exists() and not force:
        raise UserError(f"{out} exists already. Replace it with --force, or name another with -o.")
    rows = read_rows(None if file is None else Path(file), text, skip_bad)
    model = load(run)
    numbers = chosen_layers(wanted, model.model.base.state_count)
    chosen = np.array(numbers)
    arrays = extract(model, [row for row in rows if row is not None], numbers, pool, skip_bad)
    vectors, blank = iter(arrays), _blank_array(len(numbers), arrays[0].shape[-1], pool)
    features = [blank if row is None else next(vectors) for row in rows]
    if pool == "none":
        members = {str(number): array for number, array in enumerate(features)}
        summary = (
            f"{len(features):,} texts, {sum(a.shape[1] for a in features):,} tokens x {features[0].shape[0]} layers"
        )
    else:
        members = {"vectors": np.stack(features)}
        summary = f"vectors {members['vectors'].shape} (texts, layers, width)"
    aside = out.with_name(f".{out.name}.writing")
    try:
        with explain_write_failure(out):
            with zipfile.ZipFile(aside, "w") as archive:  # as numpy writes it, one array in memory at a time
                for name, array in [*members.items(), ("layers", chosen)]:
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
            os.replace(aside, out)
    finally:
        aside.unlink(missing_ok=True)
    return summary


def parse_layers(words: str) -> Layers:
    """Parse "last", "last4", "all" or comma-separated layer numbers."""
    if words in ("last", "last4", "all"):
        return words  # type: ignore[return-value]
    try:
        return [int(word) for word in words.split(",")]
    except (AttributeError, ValueError):  # in Python also a number or a list
        raise UserError(f"--layers {words}: write last, last4, all, or numbers such as 0,-1.") from None


def read_texts(file: Path, column: str | None, skip_empty: bool = False) -> list[str]:
    """Read a text file, one text a line, or the text column of a file of examples; either may be packed.

    An empty line is refused, or left out with `skip_empty`.
    """
    try:
        return [text for text in read_rows(file, column, skip_empty) if text is not None]
    except UserError as error:
        raise UserError(error.message, error.advice if error.advice == COLUMN_ADVICE else "") from None


def read_rows(file: Path | None, column: str | None, skip_bad: bool = False) -> list[str | None]:
    """Read the same with one entry a line or record: with `skip_bad` None stands for an empty line or a bad record.

    None for a file reads the lines of standard input.
    """
    plain = file.with_suffix("") if file is not None and file.suffix.lower() in COMPRESSED else file
    is_table = plain is not None and plain.suffix.lower() not in (".txt", "")
    named = file or "standard input"
    bad: list[UserError] = []
    rows: list[str | None] = []
    for text in _read_table(file, column) if is_table and file is not None else _read_lines(file):
        if isinstance(text, UserError):
            if not skip_bad:
                raise text
            bad.append(text)
        rows.append(None if isinstance(text, UserError) else text)
    if len(bad) == len(rows):
        first = f", only bad ones; the first: {bad[0].message}" if bad else "."
        raise UserError(f"{named} holds no {'examples' if is_table else 'lines'}{first}")
    if bad:
        log.warning("%d of %d lines have no vector, and the first is %s", len(bad), len(rows), bad[0].message)
    return rows


def _read_table(file: Path, column: str | None) -> Iterator[str | UserError]:
    """Yield the text of each record, or what is wrong with it."""
    columns = {} if column is None else {"text": column}

    def parse(record: Record, where: str) -> str:
        text: str = classify.parse(record, columns, where, False).texts[0]
        return text

    try:
        for where, record in check_columns(records(file), parse):
            try:
                yield record if isinstance(record, UserError) else parse(record, where)
            except MissingColumnError as error:
                yield UserError(error.message, COLUMN_ADVICE)
            except UserError as error:
                yield UserError(error.message, SKIP_ADVICE)
    except MissingColumnError as error:  # its advice names options that a verb over labelled examples has
        raise UserError(error.message, COLUMN_ADVICE) from None


def _read_lines(file: Path | None) -> Iterator[str | UserError]:
    """Yield the lines of a text file or of standard input, without their ends; an empty one is an error."""
    named = file or Path("standard input")
    try:
        with open_file(file) if file is not None else recode(named, io.BytesIO(sys.stdin.buffer.read())) as content:
            data = content.read()
        text = data.decode("utf-8-sig")  # without the byte order mark of a spreadsheet
        lines = text.split("\r" if has_return_ends(data) else "\n")
    except FileNotFoundError:
        raise UserError(f"There is no file {file}.") from None
    except DECOMPRESSION_ERRORS as problem:
        raise UserError(f"{file} is damaged and cannot be unpacked: {problem}.") from None
    except UnicodeDecodeError as problem:
        raise UserError(f"{named}: not UTF-8 at byte {problem.start}.{advise_encoding(named)}") from None
    if lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        where = f"{named}:{number}"
        try:
            if not line.strip():
                raise UserError(f"{where}: this line is empty, and every line is a text of its own. Take it out.")
            yield checked_text(line.removesuffix("\r"), "text", where)
        except UserError as error:
            yield UserError(error.message, SKIP_ADVICE)
