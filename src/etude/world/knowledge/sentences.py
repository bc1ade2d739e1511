"""Sentences that name an entity of the district and do not tell what it is, in English and in Korean."""

from __future__ import annotations

from dataclasses import dataclass

from etude.chance import fold
from etude.world.draw import Draw
from etude.world.facts import Town
from etude.world.knowledge.district import District
from etude.world.pattern import Pattern
from etude.world.words import Word

# {a} and {b} are of the district, {p} and {q} people of the town
_PATTERNS = """Many in the town often speak of {a}. | 이 고장에서는 {a:에} 대해 자주 이야기한다.
{p} read about {a} in the paper. | {p:는} 신문에서 {a:에} 대해 읽었다.
A letter mentioned {a} twice. | 편지에는 {a:가} 두 번 나왔다.
{p} has a picture of {a} on the wall. | {p:의} 벽에는 {a:의} 그림이 걸려 있다.
Nobody has forgotten {a}. | 아무도 {a:를} 잊지 않았다.
{p} asked {q} about {a}. | {p:는} {q:에게} {a:에} 대해 물었다.
There is an old song about {a}. | {a:에} 대한 오래된 노래가 있다.
{p} dreamt of {a} last night. | {p:는} 어젯밤 {a:의} 꿈을 꾸었다.
{p} wrote the name {a} in a notebook. | {p:는} 공책에 {a:라는} 이름을 적었다.
Yesterday everybody talked about {a}. | 어제는 모두가 {a:에} 대해 이야기했다.
{p} and {q} were thinking of {a}. | {p:와} {q:는} {a:를} 생각하고 있었다.
{p} heard of {a} for the first time. | {p:는} {a:에} 대해 처음 들었다.
In the evening {p} told a story about {a}. | 저녁에 {p:는} {a:에} 대한 이야기를 들려주었다.
{a} was named in the speech. | 연설에서 {a:가} 언급되었다.
{p} could not remember {a}. | {p:는} {a:를} 기억하지 못했다.
{p} compared {a} with {b}. | {p:는} {a:를} {b:와} 비교했다.
A page about {a} follows the page about {b}. | {b:에} 대한 쪽 다음에 {a:에} 대한 쪽이 나온다.
{p} knows more about {a} than about {b}. | {p:는} {b:보다} {a:에} 대해 더 많이 안다.
The names {a} and {b} stand in the same line. | {a:와} {b:의} 이름은 같은 줄에 있다."""

PATTERNS = [
    {"en": Pattern(english.strip(), "en"), "ko": Pattern(korean.strip(), "ko")}
    for english, korean in (line.split("|") for line in _PATTERNS.split("\n"))
]
SINGLE = [pattern for pattern in PATTERNS if "b" not in pattern["en"].slots]


@dataclass(frozen=True)
class Link:
    """A mention: characters [start, end), and the key of the entity that it is linked to."""

    start: int
    end: int
    entity: str


def write_linked(pattern: Pattern, cast: dict[str, Word]) -> tuple[str, dict[str, Link]]:
    """Write a sentence; return it with the link of each slot, particles left out."""
    text = pattern.write(cast, {})
    links: dict[str, Link] = {}
    place = 0
    for literal, slot, forms in pattern.parts:
        start = place + len(literal)
        surface = cast[slot].forms[pattern.language][forms[0]]
        place = start + len(surface)
        links[slot] = Link(start, start + len(cast[slot].forms[pattern.language][""]), cast[slot].key)
    return text, links


def draw_cast(draw: Draw, pattern: Pattern, town: Town, district: District, subject: Word | None) -> dict[str, Word]:
    """Draw different people and entities for the slots; `subject` is {a}, drawn too where None."""
    cast: dict[str, Word] = {} if subject is None else {"a": subject}
    for slot in dict.fromkeys(pattern.slots):
        if slot in cast:
            continue
        pool = town.people if slot in ("p", "q") else district.entities
        word = draw.pick(pool)
        while word in cast.values():
            word = draw.pick(pool)
        cast[slot] = word
    return cast


def disturb(links: list[Link], district: District, noise: float, key: int) -> list[Link]:
    """Return links of which a share points to another entity; a larger share includes the links of a smaller one."""
    disturbed = []
    for number, link in enumerate(links):
        draw = Draw(fold(key, "link noise", number))
        is_wrong = draw.chance(noise)
        wrong = draw.pick(district.entities).key
        disturbed.append(Link(link.start, link.end, wrong) if is_wrong and wrong != link.entity else link)
    return disturbed
