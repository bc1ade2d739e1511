"""The stories as written: every pattern can be filled, tagged and asked about, in both languages."""

import re

import pytest

from etude.chance import fold
from etude.world.analysis import analyse
from etude.world.draw import Draw
from etude.world.facts import town
from etude.world.lexicon.nouns import ANIMALS, NOUNS
from etude.world.notation import read_scripts
from etude.world.script import perform
from etude.world.stories import INTROS, SCRIPTS, STORIES
from etude.world.tasks.events import EVENTS

UPOS = {
    "ADJ",
    "ADP",
    "ADV",
    "AUX",
    "CCONJ",
    "DET",
    "INTJ",
    "NOUN",
    "NUM",
    "PART",
    "PRON",
    "PROPN",
    "PUNCT",
    "SCONJ",
    "VERB",
}


def frames():
    for script in (*SCRIPTS, *EVENTS):
        for step in script.steps:
            for frame in step.frames:
                yield script, frame


def test_every_slot_is_in_the_cast():
    for script, frame in frames():
        if "company" in script.name:
            continue
        cast = {slot for slot, _ in script.sources}
        for pattern in [*frame.patterns.values(), *(p for q in frame.questions for p in q.patterns.values())]:
            assert {slot.split(".")[0] for slot in pattern.slots} <= cast, (script.name, pattern.source)


def test_both_sides_speak_of_the_same():
    """Only a person may stand in one language alone: Korean drops a subject that is plain."""
    for script, frame in frames():
        english, korean = (set(frame.patterns[language].slots) for language in ("en", "ko"))
        assert english ^ korean <= {"a", "b", "c"}, (script.name, frame)


def test_a_question_asks_for_a_word_of_its_sentence():
    for script, frame in frames():
        for question in frame.questions:
            slots, slot = frame.patterns["en"].slots, question.slot.partition(">")[0]
            assert slot == "ab" or slot in {each.split(".")[0] if script in EVENTS else each for each in slots}, (
                script.name,
                question.patterns["en"].source,
            )
            if script not in EVENTS:
                assert slot not in question.patterns["en"].slots, "the question gives its answer away"


def test_korean_patterns_leave_no_particle_outside_a_slot():
    for script, frame in frames():
        source = frame.patterns["ko"].source
        assert not re.search(r"\}[가-힣]", source), (script.name, source)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_sentence_can_be_analysed(language):
    place, used, total = town(0), set(), set()
    for script in SCRIPTS:
        for step in script.steps:
            total.update(id(frame) for frame in step.frames)
        for number in range(25):
            for sentence in perform(script, place, Draw(fold(number, script.name)), INTROS).sentences:
                analysis = analyse(sentence, language)
                used.add(id(sentence.frame))
                assert len(analysis.tokens) == len(analysis.upos) == len(analysis.ner) == len(analysis.starts)
                assert set(analysis.upos) <= UPOS
                for token, start in zip(analysis.tokens, analysis.starts, strict=True):
                    assert analysis.text[start : start + len(token)] == token
                assert "".join(analysis.tokens) == re.sub(r"\s", "", analysis.text)
                for before, tag in zip(["O", *analysis.ner], analysis.ner, strict=False):
                    assert not tag.startswith("I-") or before[2:] == tag[2:]
    assert len(used & total) > 0.97 * len(total)


def test_tags_by_hand():
    place = town(0)
    tagged = {}
    for script in STORIES:
        for number in range(12):
            for sentence in perform(script, place, Draw(fold(number, script.name)), INTROS).sentences:
                for language in ("en", "ko"):
                    analysis = analyse(sentence, language)
                    tagged[analysis.text] = list(zip(analysis.tokens, analysis.upos, analysis.ner, strict=True))
    intro = next(
        tags for text, tags in tagged.items() if re.fullmatch(r"\w+ \w+ works as a \w+ at the \w+ \w+\.", text)
    )
    assert " ".join(tag for _, tag, _ in intro) == "PROPN PROPN VERB ADP DET NOUN ADP DET PROPN PROPN PUNCT"
    assert [ner for *_, ner in intro] == ["B-PER", "I-PER", "O", "O", "O", "O", "O", "O", "B-ORG", "I-ORG", "O"]
    korean = next(
        tags for text, tags in tagged.items() if re.fullmatch(r"\w+ \w+[은는] \w+에서 태어났고 \w+길에 산다\.", text)
    )
    assert [tag for _, tag, _ in korean] == ["PROPN", "PROPN", "PROPN", "VERB", "PROPN", "VERB", "PUNCT"]
    assert [ner for *_, ner in korean] == ["B-PER", "I-PER", "B-LOC", "O", "B-LOC", "O", "O"]
    flat = [(token, tag) for tags in tagged.values() for token, tag, _ in tags]
    assert {tag for token, tag in flat if token == "had"} == {"AUX", "VERB"}
    assert {tag for token, tag in flat if token == "to"} == {"PART", "ADP"}
    assert {tag for token, tag in flat if token == "있었다"} == {"AUX", "ADJ"}


def test_every_animal_has_its_food_and_its_place():
    for category in ANIMALS:
        for animal in NOUNS[category]:
            assert {"eats", "habitat"} <= set(animal.links), animal


def test_notation_refuses_what_it_cannot_read():
    with pytest.raises(ValueError, match="cannot read"):
        read_scripts("dinner: a=person\nA line that is no step.\n", "food")
    with pytest.raises(ValueError, match="no script"):
        read_scripts("\n", "food")
