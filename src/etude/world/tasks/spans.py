"""Questions about a document, as in SQuAD 2.0: half have their answer in the text, half only seem to.

An unanswerable question is about somebody or something of the same document that the text leaves open: another
way the same story might have been told, or a fact of a person who is merely mentioned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etude.chance import fold
from etude.world.analysis import analyse
from etude.world.document import perform_document
from etude.world.draw import Draw
from etude.world.facts import Town
from etude.world.script import Performance, Question, resolve
from etude.world.stories import FACTS
from etude.world.tasks.sampling import Candidate, balanced
from etude.world.words import Word


def questions(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, impossible: bool) -> Candidate:
        show = perform_document(town, draw)
        draw_question = _unanswerable_question if impossible else _answerable_question
        question_and_answer = draw_question(show, draw, language)
        if question_and_answer is None:
            return None
        question, answers = question_and_answer
        context = " ".join(sentence.write(language) for sentence in show.sentences)
        people = [word for word in show.cast.values() if word.sex and word.forms[language][""] in context]
        example = {
            "id": f"{fold(town.seed, language, context, question):016x}",
            "title": people[0].forms[language]["~"] if people else show.script.name,
            "context": context,
            "question": question,
            "answers": answers,
            "is_impossible": impossible,
        }
        return context, example

    return balanced((False, True), make, fold(town.seed, "questions", language), split)


def _answerable_question(show: Performance, draw: Draw, language: str) -> tuple[str, list[dict[str, Any]]] | None:
    """A question of one sentence, and where its answer stands in the whole text."""
    place = draw.below(len(show.sentences))
    sentence = show.sentences[place]
    if not sentence.frame.questions:
        return None
    question = draw.pick(sentence.frame.questions)
    analysis = analyse(sentence, language)
    if question.slot not in analysis.slots:  # the answer is there only as a pronoun
        return None
    words = _with_facts(show.cast, question)
    if words is None:
        return None
    before = sum(len(each.write(language)) + 1 for each in show.sentences[:place])
    start, end = analysis.slots[question.slot]
    answer = {"text": analysis.text[start:end], "answer_start": before + start}
    return question.patterns[language].write(words, {}), [answer]


def _unanswerable_question(show: Performance, draw: Draw, language: str) -> tuple[str, list[dict[str, Any]]] | None:
    context = " ".join(sentence.write(language) for sentence in show.sentences)
    used_frames = {id(sentence.frame) for sentence in show.sentences}
    elsewhere = [frame for each in show.script.steps for frame in each.frames if id(frame) not in used_frames]
    mentioned = [word for word in show.cast.values() if word.sex and word.forms[language][""] in context]
    candidates = [(show.cast, question) for frame in elsewhere for question in frame.questions]
    if mentioned and draw.chance(0.6):
        facts = [question for fact in FACTS.values() for frame in fact.frames for question in frame.questions]
        candidates = [({"a": draw.pick(mentioned)}, question) for question in facts]
    for cast, question in draw.shuffled(candidates):
        words = _with_facts(cast, question)
        answer = resolve(cast, question.slot)
        if words is None or answer is None or _told(answer, context, language):
            continue
        if all(word.forms[language][""] in context for slot, word in words.items() if _asks(question, slot, word)):
            return question.patterns[language].write(words, {}), []
    return None


def _asks(question: Question, slot: str, word: Word) -> bool:
    """Whether a question speaks of this person, who then has to be in the text."""
    return bool(word.sex) and any(slot in pattern.slots for pattern in question.patterns.values())


def _told(word: Word, context: str, language: str) -> bool:
    """Whether the text has the word in any form that an answer could be taken from."""
    forms = ("은", "었다", "고", "어", "다고") if word.tag == "ADJ" and language == "ko" else ("",)
    return any(word.forms[language][form].lower() in context.lower() for form in forms)


def _with_facts(cast: dict[str, Word], question: Question) -> dict[str, Word] | None:
    words = dict(cast)
    for path in question.facts:
        word = resolve(cast, path)
        if word is None:
            return None
        words[path] = word
    return words
