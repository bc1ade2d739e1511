"""ConceptNet merged to concepts and relation classes."""

from __future__ import annotations

import numpy as np
import pytest

from etude.errors import UserError
from etude.graph import concept_graph
from etude.graph.concept_graph import CLASSES, build_concept_graph, choose_merge, normalize_concept
from etude.graph.graph import Graph


def conceptnet(triples: list[tuple[str, str, str]]) -> Graph:
    entities = list(dict.fromkeys(name for head, _, tail in triples for name in (head, tail)))
    relations = list(dict.fromkeys(relation for _, relation, _ in triples))
    numbers = [(entities.index(head), relations.index(name), entities.index(tail)) for head, name, tail in triples]
    return Graph.from_triples(numbers, entities, relations)


def test_seventeen_classes() -> None:
    merged = [name for members in CLASSES.values() for name in members.split()]
    assert len(CLASSES) == 17 and len(set(merged)) == len(merged)
    assert f"{len(merged)} relations become {len(CLASSES)} classes" in str(concept_graph.__doc__)


@pytest.mark.parametrize(
    ("name", "concept"),
    [
        ("/c/en/Hot_Dog/n", "hot_dog"),
        ("/c/en/run/v/wn/motion", "run"),
        ("eat breakfast", "eat_breakfast"),
        ("t-shirt", "t-shirt"),
        ("/c/fr/chien", None),
        ("9 planet", None),
        ("person", None),
        ("go to bed", None),
        ("would", None),
        ("now", None),
        ("further away", None),
        # function words, but none of NLTK's stop words, which are what the released code leaves out
        ("outside", "outside"),
        ("gold mine", "gold_mine"),
        ("half hour", "half_hour"),
        ("nothing", "nothing"),
    ],
)
def test_names_of_concepts(name: str, concept: str | None) -> None:
    assert normalize_concept(name) == concept


def test_korean_names_are_read_in_their_language() -> None:
    assert normalize_concept("/c/ko/고양이", "ko") == "고양이" and normalize_concept("/c/ko/고양이") is None
    assert normalize_concept("/c/ko/그것", "ko") is None


def test_relations_are_merged_swapped_and_reversed() -> None:
    graph = build_concept_graph(
        conceptnet(
            [
                ("/c/en/cat", "/r/HasA", "/c/en/tail"),  # exchanged: tail partof cat
                ("/c/en/cat/n", "/r/InstanceOf", "/c/en/animal"),
                ("/c/en/cat", "/r/RelatedTo", "/c/en/animal"),
                ("/c/en/cat", "/r/HasContext", "/c/en/zoology"),
                ("/c/en/cat", "/r/RelatedTo", "/c/en/cat/n"),  # a self loop once merged
                ("/c/en/cat", "/r/ExternalURL", "/c/en/page"),
            ]
        )
    )
    assert graph.merge == "conceptnet"
    number = graph.numbers
    classes = list(CLASSES)

    def relation(head: str, tail: str) -> int:
        hop = int(graph.find_hops(np.array(number[head]), np.array(number[tail])))
        return -1 if hop < 0 else int(graph.hop_relations[hop])

    assert relation("tail", "cat") == classes.index("partof")
    assert relation("cat", "tail") == classes.index("partof") + 17
    assert relation("cat", "animal") == classes.index("isa")  # before relatedto
    assert relation("animal", "cat") == classes.index("isa") + 17
    assert relation("cat", "zoology") == -1 and relation("cat", "cat") == -1 and relation("cat", "page") == -1
    assert graph.name_relation(classes.index("isa") + 17) == ("isa", True)
    assert (graph.triple_hops >= 0).all(1).tolist() == [True, True, True, False, False, False]


def test_other_graphs_are_taken_as_they_are() -> None:
    graph = Graph.from_triples(
        [(0, 0, 1), (1, 1, 2)], ["q1", "q2", "q3"], ["lives in", "part of it"], labels=["Mina", "the town", ""],
        aliases=[["Miss Mina"], [], []],
    )  # fmt: skip
    concepts = build_concept_graph(graph)
    assert concepts.merge == "none" and concepts.names == ["mina", "the_town", "q3"]
    assert concepts.aliases == [(0, "miss_mina")] and concepts.relations == ("lives in", "part of it")
    assert choose_merge(["/r/IsA", "/r/AtLocation", "color"]) == "conceptnet"


def test_a_graph_without_concepts_is_one_message() -> None:
    with pytest.raises(UserError, match="No triple of the graph is left"):
        build_concept_graph(conceptnet([("1", "IsA", "2")]))


def test_hop_scores_are_the_best_of_their_triples() -> None:
    graph = conceptnet([("cat", "IsA", "animal"), ("cat", "AtLocation", "animal"), ("dog", "Antonym", "cat")])
    concepts = build_concept_graph(graph)
    vectors = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 4.0]])  # cat, animal, dog
    relations = np.array([[0.0, 2.0], [1.0, 1.0], [3.0, 4.0]])
    scores = concepts.score_hops(vectors, relations, graph.triples())
    cat, animal, dog = (concepts.numbers[name] for name in ("cat", "animal", "dog"))
    for head, tail, value in ((cat, animal, (1 + 0.5**0.5) / 2), (animal, cat, (1 + 0.5**0.5) / 2), (dog, cat, 1.0)):
        hop = int(concepts.find_hops(np.array(head), np.array(tail)))
        assert scores[hop] == pytest.approx(value)  # of two relations the better; antonyms both ways round


def test_more_relations_than_a_hop_can_number_are_refused() -> None:
    relations = [f"r{number}" for number in range(17_000)]
    triples = [(0, number, 1) for number in range(17_000)]
    with pytest.raises(UserError, match=r"17,000 relations; paths have room for 16,383"):
        build_concept_graph(Graph.from_triples(triples, ["a", "b"], relations), "none")
