"""Multiple choice over the district: two facts of the graph answer it, and no text tells either of them.

Some wrong choices lie as near to the one who is named: they end another path of one or two facts. So it is the
relations along a path that decide, together with the question, and not that there is a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from etude.chance import fold
from etude.world.draw import Draw
from etude.world.facts import Triple
from etude.world.knowledge.district import District
from etude.world.pattern import Pattern
from etude.world.tasks.sampling import Candidate, balanced
from etude.world.words import Word

CHOICES = 5  # as in CommonsenseQA
_NEAR = 2  # wrong choices at the end of another path, at most

# who is named | first fact | second fact | English | Korean
_QUESTIONS = """person | works_for | based_in | Where is the employer of {a} based? | {a:가} 일하는 곳은 어디에 있는가?
person | friend_of | lives_in | Where does the friend of {a} live? | {a:의} 친구는 어디에 사는가?
person | works_for | led_by | Who leads the employer of {a}? | {a:가} 일하는 곳은 누가 이끄는가?
person | friend_of | works_for | Who employs the friend of {a}? | {a:의} 친구는 어디에서 일하는가?
person | lives_in | near | What is near the home of {a}? | {a:의} 집 근처에는 무엇이 있는가?
animal | owner | lives_in | Where does the owner of {a} live? | {a:의} 주인은 어디에 사는가?
animal | owner | works_for | Who employs the owner of {a}? | {a:의} 주인은 어디에서 일하는가?
animal | owner | friend_of | Who is the friend of the owner of {a}? | {a:의} 주인의 친구는 누구인가?
animal | born_in | in_region | In which region was {a} born? | {a:는} 어느 지역에서 태어났는가?
animal | owner | citizen_of | Of which region is the owner of {a}? | {a:의} 주인은 어느 지역 사람인가?
organization | led_by | lives_in | Where does the leader of {a} live? | {a:의} 대표는 어디에 사는가?
organization | led_by | friend_of | Who is the friend of the leader of {a}? | {a:의} 대표의 친구는 누구인가?
organization | based_in | near | What is near the base of {a}? | {a:가} 있는 곳 근처에는 무엇이 있는가?"""


@dataclass(frozen=True)
class Question:
    """A kind of question: whom it names, and the two facts that answer it."""

    named: str
    first: str
    second: str
    patterns: dict[str, Pattern]

    def follow(self, start: Word) -> tuple[Word, Word]:
        """Return the word in the middle and the answer."""
        middle = start.links[self.first]
        return middle, middle.links[self.second]


def _read_questions() -> tuple[Question, ...]:
    questions = []
    for line in _QUESTIONS.split("\n"):
        named, first, second, english, korean = (cell.strip() for cell in line.split("|"))
        questions.append(Question(named, first, second, {"en": Pattern(english, "en"), "ko": Pattern(korean, "ko")}))
    return tuple(questions)


QUESTIONS = _read_questions()


def make_paths(district: District, held_out: frozenset[Triple], language: str, split: str) -> Iterator[dict[str, Any]]:
    """Yield questions whose two facts are in the graph; who is named is in one split only."""

    def make(draw: Draw, place: int) -> Candidate:
        question = draw.pick(QUESTIONS)
        start = draw.pick(district.members[question.named])
        middle, answer = question.follow(start)
        facts = [Triple(start.key, question.first, middle.key), Triple(middle.key, question.second, answer.key)]
        if answer is start or held_out & set(facts):
            return None
        options = _draw_wrong(draw, district, question, start, answer)
        options.insert(place, answer)
        text = question.patterns[language].write({"a": start}, {})
        return start.key, {
            "id": f"{fold(district.seed, language, text, *(word.key for word in options)):016x}",
            "concept": start.forms[language][""],
            "question": text,
            "choices": [word.forms[language][""] for word in options],
            "answer": place,
            "facts": [list(fact) for fact in facts],
        }

    return balanced(tuple(range(CHOICES)), make, fold(district.seed, "paths", language), split)


def _draw_wrong(draw: Draw, district: District, question: Question, start: Word, answer: Word) -> list[Word]:
    """Some ends of other paths from the one who is named, then right answers to the question about others."""
    ends = {middle.key: middle for middle in start.links.values()}
    ends |= {end.key: end for middle in start.links.values() for end in middle.links.values()}
    kind = _kind_of(answer)
    near = [end for end in ends.values() if end not in (answer, start) and _kind_of(end) == kind]
    wrong = draw.shuffled(near)[:_NEAR]
    while len(wrong) < CHOICES - 1:
        end = question.follow(draw.pick(district.members[question.named]))[1]
        if end is not answer and end is not start and end not in wrong:
            wrong.append(end)
    return draw.shuffled(wrong)


def _kind_of(word: Word) -> str:
    """Return the fine type of an entity; of a region and of a type, what it is."""
    kind = word.links.get("instance_of")
    return word.category if kind is None else kind.english
