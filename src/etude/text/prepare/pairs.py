"""Parallel text: pairs of a source and its translation, as documents of exactly two sentences.

A corpus of pairs is a corpus like any other: document i is pair i, its first sentence the source and its second the
target, under one tokenizer that both languages share or under one each. So splits by hash, duplicates, memory maps and
resumption are those of every corpus. Pairs come from records with two fields (.jsonl, .csv, .tsv, .parquet, hub), or
from two text files whose names end in the names of the sides, train.en and train.ko, line by line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from etude.errors import UserError
from etude.text.prepare.sources import COMPRESSIONS, SOURCE_SIDE, TARGET_SIDE, Source, SourceFile, find_file
from etude.text.tokenizer.batch_encoder import BatchEncoder, EncodedBatch
from etude.text.tokenizer.text_batch import TextBatch

LINE_BREAK = re.compile(r"[\n\r]")
BETWEEN = "\n"  # source and target in the text of a pair
RATIO = 9.0  # longer side to shorter, in characters, above which a pair is hardly one (Moses' clean-corpus-n)
SHORTEST = 20  # characters of the longer side from which on that is judged
LONGEST = 1 << 20  # bytes of a pair: what is longer is no pair of sentences or paragraphs


def parse_pairs(names: str) -> tuple[str, str]:
    """Return the names of source and target from `en,ko`."""
    sides = tuple(name.strip() for name in names.split(","))
    if len(sides) != 2 or not all(sides) or sides[0] == sides[1]:
        raise UserError(f"pairs names two fields, source and target, as in 'en,ko', not '{names}'.")
    return sides[0], sides[1]


def join_pair(sides: list[str], names: tuple[str, str], place: str) -> str:
    """Return source and target as one text of two lines; UserError where a side is empty or too long."""
    for side, name in zip(sides, names, strict=True):
        if not side.strip():
            raise UserError(f"{place}: '{name}' is empty, and the other side is not. Write its text, or drop the line.")
    # one expression for a break with the white space around it would try every run of spaces from each of them
    lines = ([line.strip() for line in LINE_BREAK.split(side)] for side in sides)
    text = BETWEEN.join(" ".join(filter(None, side)) for side in lines)
    if len(text.encode()) > LONGEST:
        raise UserError(f"{place}: the pair has more than {LONGEST >> 20} MB. Are line ends missing?")
    return text


def is_uneven(text: str) -> bool:
    """Whether one side is so much longer than the other that it is hardly its translation."""
    source, target = text.split(BETWEEN)
    longer, shorter = max(len(source), len(target)), min(len(source), len(target))
    return longer >= SHORTEST and longer > RATIO * shorter


def match_sides(sources: list[Source], names: tuple[str, str]) -> list[Source]:
    """Return the sources with their text files matched: train.en with train.ko; given both, either is named once."""
    given = {file.path for source in sources for file in source.files}
    matched = [(source, _match_files(source, given, names)) for source in sources]
    return [replace(source, files=tuple(files)) for source, files in matched if files]


def _match_files(source: Source, given: set[str], names: tuple[str, str]) -> list[SourceFile]:
    files: list[SourceFile] = []
    for file in source.files:
        if file.format != "text":
            files.append(file)
            continue
        stem, side, packed = _split_name(file.path)
        if side not in names:
            raise UserError(
                f"{file.path} is plain text, and pairs come from two files whose names end in .{names[0]} and "
                f".{names[1]} (or from .tsv, .csv or .jsonl with fields of these names)."
            )
        if side == names[1]:
            if f"{stem}.{names[0]}{packed}" not in given:
                raise UserError(f"{file.path} has no source side: name {stem}.{names[0]}{packed}, too.")
            continue  # its source side brings it along
        target = find_file(f"{stem}.{names[1]}{packed}")
        if target is None:
            raise UserError(f"{file.path} has no target side: there is no file {stem}.{names[1]}{packed}.")
        target_side = replace(target, format=TARGET_SIDE)
        files += [replace(file, format=SOURCE_SIDE, target_side=target_side), target_side]
    return files


def _split_name(path: str) -> tuple[str, str, str]:
    """Return the name before the side, the side, and the suffix of a compression: train, en, .gz."""
    suffix = Path(path).suffix
    packed = suffix if suffix.lower() in COMPRESSIONS else ""
    stem, _, side = path.removesuffix(packed).rpartition(".")
    return stem, side, packed


def encode_pairs(
    encoder: BatchEncoder, texts: Sequence[str], find_place: Callable[[int], tuple[str, int]],
    target_encoder: BatchEncoder | None = None,
) -> EncodedBatch:  # fmt: skip
    """Encode pairs: the two sides apart from each other, so that neither sees the break between them.

    find_place: returns file and line of a pair, for messages.
    """
    sides = [side for text in texts for side in text.split(BETWEEN)]
    if target_encoder is None:
        encoded = _encode_sides(encoder, sides)
    else:
        batches = [_encode_sides(each, sides[place::2]) for place, each in enumerate((encoder, target_encoder))]
        encoded = _interleave(batches[0], batches[1])
    if len(encoded.nonempty) < len(sides):
        number = int(np.setdiff1d(np.arange(len(sides)), encoded.nonempty)[0])
        file, line = find_place(number // 2)
        raise UserError(
            f"{file}, line {line}: the {'target' if number % 2 else 'source'} {sides[number][:40]!r} has no token "
            "under this tokenizer. Drop the line, or take a tokenizer that knows its characters."
        )
    return replace(
        encoded, count=len(texts), nonempty=np.arange(len(texts)), documents=encoded.documents[::2],
        sentences=encoded.documents,
    )  # fmt: skip


def _encode_sides(encoder: BatchEncoder, sides: Sequence[str]) -> EncodedBatch:
    """Encode texts of one sentence each."""
    batch = TextBatch(sides)
    return encoder.encode(batch, batch.bounds[:-1])


def _interleave(sources: EncodedBatch, targets: EncodedBatch) -> EncodedBatch:
    """Put each target behind its source; letters of words are not kept."""
    batches = sources, targets
    numbers = np.concatenate([2 * batch.nonempty + place for place, batch in enumerate(batches)])
    order = np.argsort(numbers)
    lengths = np.concatenate([np.diff(np.append(batch.documents, len(batch.ids))) for batch in batches])[order]
    starts = np.concatenate([sources.documents, targets.documents + len(sources.ids)])[order]
    firsts = np.cumsum(lengths) - lengths
    places = np.repeat(starts - firsts, lengths) + np.arange(lengths.sum())
    ids, word_starts = (
        np.concatenate(parts)[places]
        for parts in ([batch.ids for batch in batches], [batch.word_starts for batch in batches])
    )
    return EncodedBatch(
        count=sources.count + targets.count, nonempty=numbers[order], ids=ids, word_starts=word_starts,
        documents=firsts, sentences=firsts, surfaces=b"", letters=np.zeros(0, np.int64),
        spans=np.zeros((0, 2), np.int64),
    )  # fmt: skip
