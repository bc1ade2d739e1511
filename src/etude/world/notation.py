"""The notation stories are written in.

    dinner: a=person b=other d=dish        a script, its name and its cast
    * {@a} made {d:a} for {b}.             a step: English,
      {@a:는} {b:를} 위해 {d:를} 만들었다.       Korean,
      ? d: What did {a} make? = {a:는} 무엇을 만들었나?      and a question whose answer is the word in slot d
    / {b} ate {d:a} that {a} had made.     another way to say the step
      {b:는} {a:가} 만든 {d:를} 먹었다.
    *0.5 They were full.                   a step that is told half the time
      그들은 배가 불렀다.

A script may be followed by settings in brackets: `portrait [weight=5 intro=no]: a=person`.
"""

from __future__ import annotations

import re

from etude.world.script import Frame, Script, Step

_HEAD = re.compile(r"^([a-z][a-z ]*?)(?: \[([^\]]*)\])?:(.*)$")
_STEP = re.compile(r"^\*([0-9.]*) (.+)$")


def read_scripts(text: str, topic: str) -> tuple[Script, ...]:
    """All scripts of a story file."""
    scripts: list[Script] = []
    head: tuple[str, dict[str, str], str] | None = None
    steps: list[Step] = []
    lines = [line for line in text.splitlines() if line.strip()]
    place = 0
    while place < len(lines):
        line = lines[place]
        if match := _HEAD.match(line):
            if head is not None:
                scripts.append(_script(head, topic, steps))
            settings = dict(entry.split("=") for entry in (match.group(2) or "").split())
            head, steps = (match.group(1), settings, match.group(3).strip()), []
            place += 1
        elif match := _STEP.match(line):
            frame, place = _frame(match.group(2), lines, place + 1)
            steps.append(Step((frame,), float(match.group(1) or 1.0)))
        elif line.startswith("/ "):
            frame, place = _frame(line[2:], lines, place + 1)
            steps[-1] = Step((*steps[-1].frames, frame), steps[-1].chance)
        else:
            raise ValueError(f"story '{topic}': cannot read the line {line!r}")
    if head is None:
        raise ValueError(f"story '{topic}' has no script")
    scripts.append(_script(head, topic, steps))
    return tuple(scripts)


def _frame(english: str, lines: list[str], place: int) -> tuple[Frame, int]:
    """A frame from its English line, the Korean line below it and the questions below that."""
    korean = lines[place].strip()
    place += 1
    questions = []
    while place < len(lines) and lines[place].lstrip().startswith("? "):
        slot, _, both = lines[place].strip()[2:].partition(": ")
        question, _, korean_question = both.partition(" = ")
        questions.append((slot, question, korean_question))
        place += 1
    return Frame(english.strip(), korean, *questions), place


def _script(head: tuple[str, dict[str, str], str], topic: str, steps: list[Step]) -> Script:
    name, settings, cast = head
    return Script(
        name,
        settings.get("topic", topic),
        cast,
        tuple(steps),
        weight=float(settings.get("weight", 1.0)),
        intro=settings.get("intro", "yes") == "yes",
        sense=settings.get("sense", ""),
        language=settings.get("lang", ""),
    )
