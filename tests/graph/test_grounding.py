"""Lemmas, and the concepts of questions and answers."""

from __future__ import annotations

import unicodedata

import pytest

from etude.graph.concept_graph import ConceptGraph, build_concept_graph
from etude.graph.graph import Graph
from etude.graph.grounding import Grounder
from etude.graph.lemmas import Lemmatizer, pluralize

WORDS = "make run hope hop study cat fly stop play guitar child box die use saw see dance write big tie glass"
LEXICON = WORDS.split()


@pytest.mark.parametrize(
    ("word", "lemma"),
    [
        ("making", "make"), ("running", "run"), ("hoping", "hope"), ("hopping", "hop"), ("studies", "study"),
        ("studied", "study"), ("cats", "cat"), ("stopped", "stop"), ("children", "child"), ("boxes", "box"),
        ("dying", "die"), ("used", "use"), ("went", "go"), ("wrote", "write"), ("dancing", "dance"),
        ("string", "string"),        ("glass", "glass"), ("ties", "tie"), ("flies", "fly"),
        # no word of the lexicon: by spelling alone
        ("baking", "bake"), ("walked", "walk"), ("churches", "church"), ("planning", "plan"), ("calling", "call"),
    ],
)  # fmt: skip
def test_lemmas(word: str, lemma: str) -> None:
    assert Lemmatizer(LEXICON).lemma(word) == lemma


@pytest.mark.parametrize(
    ("phrase", "plural"),
    [("cat", "cats"), ("toy", "toys"), ("city", "cities"), ("bus", "buses"), ("box", "boxes"), ("church", "churches"),
     ("man", "men"), ("fast horse", "fast horses"), ("analysis", "analyses"), ("news", None), ("b2", None)],
)  # fmt: skip
def test_plurals(phrase: str, plural: str | None) -> None:
    assert pluralize(phrase) == plural


def test_a_word_may_have_two_lemmas() -> None:
    assert set(Lemmatizer(LEXICON).lemmas("saw")) == {"saw", "see"}
    assert Lemmatizer(["고양이"]).lemmas("고양이가") == ("고양이", "고양이가")


def concepts(*names: str) -> ConceptGraph:
    return build_concept_graph(
        Graph.from_triples([(0, 0, n) for n in range(1, len(names))], list(names), ["IsA"]), "conceptnet"
    )


def ground(graph: ConceptGraph, question: str, answer: str) -> tuple[set[str], set[str]]:
    grounding = Grounder(graph).ground(question, answer)
    return {graph.names[n] for n in grounding.question}, {graph.names[n] for n in grounding.answer}


def test_of_many_concepts_of_one_span_the_three_shortest_count() -> None:
    """Unless one is its lemma form: then that alone."""
    forms = ["ran race", "runs race", "runs races", "running races"]
    assert ground(concepts("car", *forms), "Why running race?", "a car")[0] == {"ran_race", "runs_race", "runs_races"}
    assert ground(concepts("car", "run race", *forms), "Why running race?", "a car")[0] == {"run_race"}


def test_all_ngrams_count_also_where_they_overlap() -> None:
    graph = concepts("play", "play guitar", "guitar", "music", "stage")
    assert ground(graph, "Why was she playing guitars?", "the music on stage") == (
        {"play", "play_guitar", "guitar"}, {"music", "stage"},
    )  # fmt: skip


def test_the_lemma_form_is_preferred_and_else_the_three_shortest() -> None:
    graph = concepts("dance", "dancing", "dances", "sings", "singing", "singed things", "tango")
    assert ground(graph, "They were dancing", "tango")[0] == {"dance"}
    assert ground(graph, "They sing", "tango")[0] == {"sings", "singing"}


def test_a_span_with_a_word_of_the_answer_is_no_question_concept() -> None:
    graph = concepts("jewelry box", "jewelry", "box", "neck")
    assert ground(graph, "A box for jewelry: a jewelry box?", "jewelry box") == (
        set(),
        {"jewelry_box", "jewelry", "box"},
    )


def test_near_duplicates_and_vague_words_go() -> None:
    graph = concepts("teach", "teacher", "breath", "breathe", "school", "air")
    assert ground(graph, "The teacher would teach people to breathe a breath", "school") == (
        {"teach", "breath"}, {"school"},
    )  # fmt: skip


def test_concepts_that_say_nothing_of_a_text_count_only_where_there_is_no_other() -> None:
    """The grounding's own list in the released code, which is another than that of the graph."""
    graph = concepts("something", "want", "want to", "someone", "likely", "bakery", "bread", "one")
    assert ground(graph, "Where would someone likely want to buy bread?", "one bakery") == ({"bread"}, {"bakery"})
    assert ground(graph, "What does someone want?", "something") == ({"someone", "want"}, {"something"})
    assert ground(plain_concepts("something", "bread"), "Is bread there?", "something")[1] == {"something"}


def test_labels_and_aliases_of_a_graph_of_ones_own() -> None:
    graph = build_concept_graph(
        Graph.from_triples(
            [(0, 0, 1)], ["q1", "q2"], ["lives in"], labels=["Mina Park", "서울"], aliases=[["the Baker"], ["Seoul"]]
        )
    )
    assert ground(graph, "Where does the baker live?", "in Seoul") == ({"mina_park"}, {"서울"})
    assert ground(graph, "Mina Park?", "서울에서") == ({"mina_park"}, {"서울"})


@pytest.mark.parametrize("word", ["책을", "개가", "물은", "집에서"])
def test_korean_nouns_of_one_syllable_lose_their_particle(word: str) -> None:
    assert Lemmatizer(["책", "개", "물", "집"]).lemma(word) == word[0]


def plain_concepts(*labels: str) -> ConceptGraph:
    return build_concept_graph(
        Graph.from_triples([(0, 0, n) for n in range(1, len(labels))], list(labels), ["near"]), "none"
    )


def test_names_with_punctuation_are_found_as_a_text_writes_them() -> None:
    graph = plain_concepts("St. Mary's", "O'Neil (doctor)", "harbour")
    question, answer = ground(graph, "Did O'Neil, doctor, walk to St. Mary's?", "the harbour")
    assert question == {"st._mary's", "o'neil_(doctor)"}
    assert answer == {"harbour"}


def test_decomposed_hangul_is_the_same_text() -> None:
    graph = plain_concepts("고양이", unicodedata.normalize("NFD", "항구"))
    question, answer = ground(graph, unicodedata.normalize("NFD", "고양이가 어디에 있나?"), "항구")
    assert (question, {unicodedata.normalize("NFC", name) for name in answer}) == ({"고양이"}, {"항구"})
