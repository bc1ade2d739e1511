import re
import unicodedata
from collections import Counter
from itertools import islice, pairwise

import pytest

from etude.errors import UserError
from etude.world import World
from etude.world.stories import TOPICS


@pytest.fixture(scope="module", params=["en", "ko"])
def world(request):
    return World(seed=0, language=request.param)


def sample(world, count=400):
    return list(islice(world.documents(), count))


def test_a_document_alone_is_the_document_in_the_stream(world):
    stream = [document.text for document in islice(world.documents(start=5), 30)]
    assert stream == [World(0, world.language).document(number).text for number in range(5, 35)]


def test_worlds_do_not_disturb_each_other(world):
    before = [document.text for document in sample(world, 50)]
    facts = world.facts()
    second_world = World(seed=1, language=world.language)
    assert [document.text for document in sample(second_world, 50)] != before
    assert second_world.facts() != facts
    assert [document.text for document in sample(world, 50)] == before
    assert world.facts() == facts


def test_both_languages_tell_the_same():
    english, korean = World(2, "en"), World(2, "ko")
    for number in range(100):
        first, second = english.document(number), korean.document(number)
        assert len(first.sentences) == len(second.sentences)
        assert (first.topic, first.mood) == (second.topic, second.mood)
        for one, other in zip(first.analyses, second.analyses, strict=True):  # sentence by sentence, the same things
            things = [{m.entity for m in side.mentions if m.kind != "person"} for side in (one, other)]
            assert things[0] == things[1]


def test_text_is_clean(world):
    for document in sample(world):
        assert unicodedata.normalize("NFC", document.text) == document.text
        assert not re.search(r"[{}@/*~_]|  | [.,?]", document.text), document.text
        for sentence in document.sentences:
            assert re.search(r'[.?]"?$', sentence)
            if world.language == "en":
                assert sentence.isascii() and (sentence[0].isupper() or sentence[0] == '"')
            else:
                assert not re.search(r"[A-Za-z]", sentence), sentence


def test_english_articles_fit():
    for document in sample(World(0, "en")):
        assert not re.search(r"\ba (?=[aeio])|\ban (?=[^aeiouhAEIOU])", document.text), document.text


def test_a_pronoun_has_one_meaning(world):
    """He or she is somebody named just before, and nobody else of that sex is."""
    seen = 0
    for document in sample(world):
        sentences = document.show.sentences
        for before, sentence in pairwise(sentences):
            for slot, mode in sentence.modes.items():
                if mode == 2:
                    seen += 1
                    assert slot in before.frame.people
                    rivals = [other for other in before.frame.people if other != slot]
                    assert all(sentence.cast[other].sex != sentence.cast[slot].sex for other in rivals)
        assert all(mode != 2 for mode in sentences[0].modes.values())
    assert seen > 100


def test_what_is_told_of_homes_is_true():
    world = World(3, "en")
    homes = {fact.head: fact.tail for fact in world.facts() if fact.relation == "home"}
    mention_counts = Counter()
    for document in sample(world, 1500):
        for name, street in re.findall(
            r"([A-Z][a-z]+)(?: [A-Z][a-z]+)? lives on ([A-Z][a-z]+ [A-Z][a-z]+)", document.text
        ):
            if name not in ("He", "She"):
                assert homes[f"person:{name}"] == f"street:{street}"
            mention_counts[name] += 1
    assert len(mention_counts) > 60 and max(mention_counts.values()) >= 5  # facts come back, so that they can be learnt


def test_words_are_many_and_their_use_is_uneven():
    words = Counter(word for text in World(0, "en").text(1.0) for word in re.findall(r"[A-Za-z]+", text.lower()))
    assert len(words) > 2000
    ranked = [count for _, count in words.most_common()]
    assert ranked[0] > 20 * ranked[100] > 40 * ranked[1000]


def test_topics_and_moods_occur(world):
    documents = sample(world)
    assert {document.topic for document in documents} == {*TOPICS, ""}
    assert {document.mood for document in documents} == {1, 0, -1}


def test_text_reaches_its_size(world):
    texts = list(world.text(0.05))
    size = sum(len(text.encode()) + 2 for text in texts)
    assert 50_000 <= size < 53_000


def test_written_files_are_read_back(tmp_path, world, monkeypatch):
    import json

    from etude.world import world as module

    monkeypatch.setattr(module, "COUNTS", {"train": 6, "valid": 4, "test": 4})
    folder = world.write(tmp_path / "town", megabytes=0.02)
    documents = (folder / "text.txt").read_text(encoding="utf-8").strip("\n").split("\n\n")
    assert documents == list(world.text(0.02))
    lines = (folder / "tasks" / "topic.train.jsonl").read_bytes().split(b"\n")
    assert lines[-1] == b"" and len(lines) == 7
    assert [json.loads(line) for line in lines[:-1]] == world.task("topic", "train", 6)
    if world.language == "ko":
        assert "\\u" not in (folder / "tasks" / "topic.train.jsonl").read_text(encoding="utf-8")
    facts = [tuple(line.split("\t")) for line in (folder / "knowledge" / "facts.tsv").read_text().splitlines()]
    assert facts == [tuple(fact) for fact in world.facts()]


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch):
    from etude.world import world as module

    monkeypatch.setattr(module, "_EXHAUSTED", 0)
    (tmp_path / "pairs.tsv").write_text("kept")
    with pytest.raises(UserError, match="no 100,000 different sentences"):
        World(0).write_pairs(tmp_path / "pairs.tsv", 100_000)
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]
    assert (tmp_path / "pairs.tsv").read_text() == "kept"
    with pytest.raises(UserError, match="never end"):
        next(World(0).text(float("inf")))


def test_wrong_names_are_told():
    with pytest.raises(UserError, match="en and ko"):
        World(0, "de")
    with pytest.raises(UserError, match="Did you mean 'topic'"):
        World(0).task("topics", "train", 1)
    with pytest.raises(UserError, match="split"):
        World(0).task("topic", "dev", 1)


def test_facts_fit_together():
    world = World(4)
    facts = world.facts()
    assert len(set(facts)) == len(facts)
    links = {(fact.head, fact.relation): fact.tail for fact in facts}
    assert len(links) == len(facts)  # one tail a relation
    for (head, relation), tail in links.items():
        if relation in ("friend", "spouse"):
            assert links[tail, relation] == head
        if relation == "spouse":
            assert links[head, "home"] == links[tail, "home"]
        if relation == "pet":
            assert links[tail, "owner"] == head
        if relation == "brother":
            assert links[tail, "sister"] == head and links[head, "mother"] == links[tail, "mother"]
        if relation == "owner" and head.startswith("firm:"):
            assert links[tail, "firm"] == head
    known = {entity.key for entity in world.entities()}
    assert known == {fact.head for fact in facts} | {fact.tail for fact in facts}
