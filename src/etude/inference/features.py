"""Hidden states of texts as arrays, and sentence vectors by pooling (`etude features`).

Texts are framed as in pre-training. A vector pools the hidden states of a text: mean, max, start (the first), last.
The .npz file holds `vectors` (texts, layers, width), or with pooling "none" one array (layers, tokens, width) a
text, named by its number, and `layers`, the numbers of the layers.
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from etude.errors import UserError, explain_write_failure
from etude.inference.model import LoadedModel, load
from etude.inference.text_vectors import Pool, check_pool
from etude.models.layer_features import chosen_layers
from etude.models.transfer_settings import Layers
from etude.tasks import classify
from etude.tasks.base import by_length
from etude.tasks.data.examples import MissingColumnError, checked_text
from etude.tasks.data.records import COMPRESSED, open_file
from etude.text.encodings import suggest_encoding
from etude.text.line_ends import has_return_ends
from etude.text.prepare.decompression import DECOMPRESSION_ERRORS

log = logging.getLogger("etude")


def extract(model: LoadedModel, texts: Sequence[str], layers: Layers = "last", pool: Pool = "mean") -> list[np.ndarray]:
    """Return one array a text, in order: (layers, width), or (layers, tokens, width) without pooling."""
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
            if not states.shape[1]:
                raise UserError(f"text {number + 1}: the tokenizer leaves nothing of it. Remove it.")
            arrays[number] = np.ascontiguousarray(reduce(states[chosen]))
    return [array for array in arrays if array is not None]


def extract_file(
    run: str | Path,
    file: str | Path,
    out: str | Path,
    layers: str = "last",
    pool: Pool = "mean",
    text: str | None = None,
) -> str:
    """Write the .npz file and return a one-line summary of it; a file that was there stays until it is complete."""
    out, wanted = Path(out), parse_layers(layers)
    if out.suffix != ".npz" or not out.parent.is_dir():
        raise UserError(f"{out}: the arrays are written as .npz, in a folder that is there. Name the file so.")
    texts = read_texts(Path(file), text)
    model = load(run)
    numbers = chosen_layers(wanted, model.model.base.state_count)
    features, chosen = extract(model, texts, numbers, pool), np.array(numbers)
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

    An empty line of a text file is refused, or left out with `skip_empty`.
    """
    plain = file.with_suffix("") if file.suffix.lower() in COMPRESSED else file
    if plain.suffix.lower() not in (".txt", ""):
        columns = {} if column is None else {"text": column}
        try:
            return [item.texts[0] for item in classify.read(file, columns, labelled=False)]
        except UserError as error:  # its advice names options that a verb over labelled examples has
            advice = "--text NAME names the column of the text." if isinstance(error, MissingColumnError) else ""
            raise UserError(error.message, advice) from None
    try:
        with open_file(file) as content:
            data = content.read()
        text = data.decode("utf-8-sig")  # without the byte order mark of a spreadsheet
        lines = text.split("\r" if has_return_ends(data) else "\n")
    except FileNotFoundError:
        raise UserError(f"There is no file {file}.") from None
    except DECOMPRESSION_ERRORS as problem:
        raise UserError(f"{file} is damaged and cannot be unpacked: {problem}.") from None
    except UnicodeDecodeError as problem:
        raise UserError(
            f"{file}: not UTF-8 at byte {problem.start}. Convert the file.{suggest_encoding(file)}"
        ) from None
    if lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{file} holds no lines.")
    texts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            texts.append(checked_text(line.removesuffix("\r"), "text", f"{file}:{number}"))
        elif not skip_empty:
            raise UserError(f"{file}:{number}: this line is empty, and every line is a text of its own. Remove it.")
    return texts
