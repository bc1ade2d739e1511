"""Multiple choice that needs two facts: where does the owner of Biscuit live? Neither "Biscuit is Anna's" nor
"Anna lives on Mill Lane" answers it alone, and the own home of whoever is named in the question is often
among the wrong choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from etude.chance import fold
from etude.world.draw import Draw
from etude.world.facts import Town
from etude.world.pattern import Pattern
from etude.world.tasks.sampling import Candidate, balanced
from etude.world.words import Word

CHOICES = 5  # as in CommonsenseQA
_NEAR_MISS = 0.5  # how often the answer to the same question about the named person is options, where there is one

# whom the question names | the first fact | the second fact | English | Korean
_PATHS = """people | friend | home | Where does the best friend of {a} live? | {a:의} 가장 친한 친구는 어디에 사는가?
people | friend | trade | What is the trade of the best friend of {a}? | {a:의} 가장 친한 친구의 직업은 무엇인가?
people | friend | food | Which dish does the best friend of {a} like? | {a:의} 가장 친한 친구는 무슨 음식을 좋아하는가?
people | friend | instrument | What does the best friend of {a} play? | {a:의} 가장 친한 친구는 무엇을 연주하는가?
people | friend | village | Where was the best friend of {a} born? | {a:의} 가장 친한 친구는 어디에서 태어났는가?
people | mother | home | Where does the mother of {a} live? | {a:의} 어머니는 어디에 사는가?
people | mother | trade | What is the trade of the mother of {a}? | {a:의} 어머니의 직업은 무엇인가?
people | mother | instrument | What does the mother of {a} play? | {a:의} 어머니는 무엇을 연주하는가?
people | father | trade | What is the trade of the father of {a}? | {a:의} 아버지의 직업은 무엇인가?
people | father | village | Where was the father of {a} born? | {a:의} 아버지는 어디에서 태어났는가?
people | father | food | What is the favourite dish of the father of {a}? | {a:의} 아버지가 좋아하는 음식은 무엇인가?
people | sister | home | Where does the sister of {a} live? | {a:의} 여자 형제는 어디에 사는가?
people | sister | trade | What is the trade of the sister of {a}? | {a:의} 여자 형제의 직업은 무엇인가?
people | brother | home | Where does the brother of {a} live? | {a:의} 남자 형제는 어디에 사는가?
people | brother | trade | What is the trade of the brother of {a}? | {a:의} 남자 형제의 직업은 무엇인가?
people | spouse | trade | What is the trade of the person {a} is married to? | {a:와} 결혼한 사람의 직업은 무엇인가?
people | spouse | instrument | What does the person {a} is married to play? | {a:와} 결혼한 사람은 무엇을 연주하는가?
people | spouse | village | Where was the person {a} is married to born? | {a:와} 결혼한 사람은 어디에서 태어났는가?
people | daughter | home | Where does the daughter of {a} live? | {a:의} 딸은 어디에 사는가?
people | son | trade | What is the trade of the son of {a}? | {a:의} 아들의 직업은 무엇인가?
people | firm | street | On which street does {a} work? | {a:가} 일하는 곳은 어느 거리에 있는가?
people | firm | owner | Who owns the place where {a} works? | {a:가} 일하는 곳의 주인은 누구인가?
people | home | near | What is near the home of {a}? | {a:의} 집 근처에는 무엇이 있는가?
people | village | famous | What is the place where {a} was born famous for? | {a:가} 태어난 마을은 무엇으로 유명한가?
people | trade | tool | Which tool does {a} need for work? | {a:는} 일할 때 어떤 도구가 필요한가?
pets | owner | home | Where does the owner of {a} live? | {a:의} 주인은 어디에 사는가?
pets | owner | trade | What is the trade of the owner of {a}? | {a:의} 주인은 무슨 일을 하는가?
pets | owner | treasure | What does the owner of {a} keep? | {a:의} 주인은 무엇을 보관하는가?
pets | owner | instrument | What does the owner of {a} play? | {a:의} 주인은 무엇을 연주하는가?
pets | owner | firm | Where does the owner of {a} work? | {a:의} 주인은 어디에서 일하는가?
pets | kind | eats | What does {a} eat? | {a:는} 무엇을 먹는가?
pets | kind | habitat | Where does {a} sleep? | {a:는} 어디에서 자는가?
firms | owner | home | Where does the owner of {a} live? | {a:의} 주인은 어디에 사는가?
firms | owner | village | Where was the owner of {a} born? | {a:의} 주인은 어디에서 태어났는가?
firms | owner | food | What is the favourite dish of the owner of {a}? | {a:의} 주인이 좋아하는 음식은 무엇인가?"""


@dataclass(frozen=True)
class Path:
    named: str
    first: str
    second: str
    patterns: dict[str, Pattern]


def _paths() -> tuple[Path, ...]:
    paths = []
    for line in _PATHS.split("\n"):
        named, first, second, english, korean = (cell.strip() for cell in line.split("|"))
        paths.append(Path(named, first, second, {"en": Pattern(english, "en"), "ko": Pattern(korean, "ko")}))
    return tuple(paths)


PATHS = _paths()


def _follow(word: Word, path: Path) -> tuple[Word, Word] | None:
    middle = word.links.get(path.first)
    end = middle.links.get(path.second) if middle is not None else None
    return None if middle is None or end is None else (middle, end)


def choices(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, place: int) -> Candidate:
        path = draw.pick(PATHS)
        named: list[Word] = getattr(town, path.named)
        start = draw.pick(named)
        ends = _follow(start, path)
        if ends is None:
            return None
        middle, answer = ends
        if answer is start:
            return None
        options = _draw_wrong(draw, path, named, start, answer)
        if options is None:
            return None
        options.insert(place, answer)
        question = path.patterns[language].write({"a": start}, {})
        return question, {
            "id": f"{fold(town.seed, language, question, *(word.key for word in options)):016x}",
            "concept": start.forms[language][""],
            "question": question,
            "choices": [_write_choice(word, language) for word in options],
            "answer": place,
            "facts": [[start.key, path.first, middle.key], [middle.key, path.second, answer.key]],
        }

    return balanced(tuple(range(CHOICES)), make, fold(town.seed, "choices", language), split)


def _draw_wrong(draw: Draw, path: Path, named: list[Word], start: Word, answer: Word) -> list[Word] | None:
    """Wrong choices are right answers to the same question about others, so no choice is likelier by itself."""
    wrong: list[Word] = []
    own = start.links.get(path.second)
    if own is not None and own is not answer and draw.chance(_NEAR_MISS):
        wrong.append(own)
    for _ in range(200):
        wrong_ends = _follow(draw.pick(named), path)
        if wrong_ends is not None and wrong_ends[1] is not answer and wrong_ends[1] not in wrong:
            wrong.append(wrong_ends[1])
        if len(wrong) == CHOICES - 1:
            return draw.shuffled(wrong)
    return None


def _write_choice(word: Word, language: str) -> str:
    return word.forms[language][""]
