"""`etude verify`: what was checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.cli.adapter import Call, Command
from etude.cli.printing import echo
from etude.verbs import verify as verbs

if TYPE_CHECKING:
    from etude.verbs.verify import Verified


def present_verify(call: Call[Verified]) -> None:
    result = call()
    article = "an" if result.kind[0] in "aeiou" else "a"
    echo(f"{result.folder}: {article} {result.kind}; {result.files:,} files agree with their hashes")
    for note in result.notes:
        echo(f"! {note}")


COMMANDS = (Command(verbs.verify, present_verify),)
