from itertools import islice

from etude.world import World


def test_a_document_alone_is_the_document_in_the_stream():
    world = World(seed=3)
    stream = [document.text for document in islice(world.documents(start=5), 20)]
    assert stream == [World(seed=3).document(number).text for number in range(5, 25)]


def test_languages_tell_the_same_story():
    english, korean = World(0, "en").document(11), World(0, "ko").document(11)
    assert english.topic == korean.topic
    assert len(english.sentences) == len(korean.sentences)
    assert english.text != korean.text
