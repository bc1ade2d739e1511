"""Examples that files of one task have in common: what is reported on would be learnt from, or chosen on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from etude.errors import UserError
from etude.tasks.data.examples import Record
from etude.tasks.data.records import Records, dump_record

NUMBERING = ("id", "guid", "qid", "idx")  # fields that number an example and say nothing of it
PARTS = (("dev", "train"), ("test", "train"), ("test", "dev"))  # what is reported on, and what came before it
log = logging.getLogger("etude")


def content_of(record: Record) -> str:
    """Return an example as a text, without what numbers it."""
    return dump_record({key: value for key, value in record.items() if key not in NUMBERING}, sort_keys=True)


def contents_of(records: Records | Iterable[tuple[str, Record | UserError]]) -> list[int]:
    """Return a hash of the content of each record of a file; bad ones are left to the reader."""
    return [hash(content_of(record)) for _, record in records if not isinstance(record, UserError)]


def warn_of_shared(contents: Mapping[str, Sequence[str] | Sequence[int]], files: Mapping[str, str | Path]) -> None:
    """Log how many examples of dev and test are in an earlier part, too; contents and files by part."""
    for part, earlier in PARTS:
        if part not in contents or earlier not in contents:
            continue
        known = set(contents[earlier])
        shared = sum(content in known for content in contents[part])
        if shared:
            log.warning(
                "%s: %d of %d examples of %s are in %s too, so scores on them say little about new ones. "
                "Take them out of one of the two.",
                files[part], shared, len(contents[part]), part, earlier,
            )  # fmt: skip
