import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.world.korean import attach, conjugate, last_sound, particle

syllables = st.integers(0xAC00, 0xD7A3).map(chr)
closed = st.integers(0xAC00, 0xD7A3).filter(lambda code: (code - 0xAC00) % 28 != 0).map(chr)
opened = st.integers(0xAC00, 0xD7A3).filter(lambda code: (code - 0xAC00) % 28 == 0).map(chr)
RIEUL = 8  # the number of ㄹ among the finals


@given(st.text(syllables, max_size=3), closed)
def test_after_a_consonant(head, last):
    word = head + last
    assert [particle(word, name) for name in ("은", "이", "을", "과", "이다")] == ["은", "이", "을", "과", "이다"]
    rieul = (ord(last) - 0xAC00) % 28 == RIEUL
    assert particle(word, "으로") == ("로" if rieul else "으로")


@given(st.text(syllables, max_size=3), opened)
def test_after_a_vowel(head, last):
    word = head + last
    assert [particle(word, name) for name in ("은", "이", "을", "과", "으로")] == ["는", "가", "를", "와", "로"]


@given(syllables, st.sampled_from(["은", "이", "을", "과", "으로", "이라는", "이나"]))
def test_either_shape_names_a_particle_and_the_result_is_composed(last, name):
    from etude.world.korean import PARTICLES

    first, second = PARTICLES[name]
    assert attach(last, first) == attach(last, second)
    assert unicodedata.normalize("NFC", attach(last, name)) == attach(last, name)


@given(syllables, st.sampled_from(["에서", "의", "에게", "도", "까지", "만"]))
def test_particles_of_one_shape_stay(last, name):
    assert attach(last, name) == last + name


@given(syllables, st.sampled_from([")", '"', "』", "!", "..."]))
def test_a_mark_at_the_end_is_not_heard(last, mark):
    assert last_sound(last + mark) == last_sound(last)


@given(st.integers(0, 10**13))
def test_numbers_sound_as_they_are_read(number):
    readings = {0: "영", 1: "일", 2: "이", 3: "삼", 4: "사", 5: "오", 6: "육", 7: "칠", 8: "팔", 9: "구"}
    text = str(number)
    zeros = len(text) - len(text.rstrip("0"))
    if number == 0 or zeros == 0:
        spoken = readings[number % 10]
    elif zeros < 4:
        spoken = {1: "십", 2: "백", 3: "천"}[zeros]
    else:
        spoken = {1: "만", 2: "억", 3: "조"}[zeros // 4]
    for name in ("은", "이", "을", "으로"):
        assert particle(text, name) == particle(spoken, name)


@given(st.text("bcdfgjkopqstuvwxyz", min_size=1, max_size=4), st.sampled_from("aeiou"))
def test_latin_words_that_end_in_a_vowel(head, last):
    assert attach(head + last, "은").endswith("는")


@pytest.mark.parametrize(
    ("word", "expected"),
    [("Tom", "Tom은"), ("Paul", "Paul은"), ("book", "book은"), ("desk", "desk는"), ("FM", "FM은"), ("TV", "TV는")],
)
def test_latin_words_by_their_sound(word, expected):
    assert attach(word, "는") == expected


def test_rieul_before_ro():
    assert [attach(word, "로") for word in ("연필", "책", "나무", "Paul", "서울 1")] == [
        "연필로",
        "책으로",
        "나무로",
        "Paul로",
        "서울 1로",
    ]


@pytest.mark.parametrize(
    ("entry", "adjective", "forms"),
    [
        ("굽다/ㅂ", False, "굽는다 구웠다 구워서 구운 굽는 구우러 굽고"),
        ("돕다/ㅂ", False, "돕는다 도왔다 도와서 도운 돕는 도우러 돕고"),
        ("만들다", False, "만든다 만들었다 만들어서 만든 만드는 만들러 만들고"),
        ("듣다/ㄷ", False, "듣는다 들었다 들어서 들은 듣는 들으러 듣고"),
        ("짓다/ㅅ", False, "짓는다 지었다 지어서 지은 짓는 지으러 짓고"),
        ("자르다/르", False, "자른다 잘랐다 잘라서 자른 자르는 자르러 자르고"),
        ("담그다", False, "담근다 담갔다 담가서 담근 담그는 담그러 담그고"),
        ("가르치다", False, "가르친다 가르쳤다 가르쳐서 가르친 가르치는 가르치러 가르치고"),
        ("세다", False, "센다 셌다 세서 센 세는 세러 세고"),
        ("오다", False, "온다 왔다 와서 온 오는 오러 오고"),
        ("치료하다", False, "치료한다 치료했다 치료해서 치료한 치료하는 치료하러 치료하고"),
    ],
)
def test_verbs(entry, adjective, forms):
    endings = ("다", "었다", "어서", "은", "는", "으러", "고")
    assert [conjugate(entry, ending, adjective) for ending in endings] == forms.split()


@pytest.mark.parametrize(
    ("entry", "forms"),
    [
        ("맛있다", "맛있다 맛있었다 맛있는 맛있어 맛있다고"),
        ("싱겁다/ㅂ", "싱겁다 싱거웠다 싱거운 싱거워 싱겁다고"),
        ("아름답다/ㅂ", "아름답다 아름다웠다 아름다운 아름다워 아름답다고"),
        ("예쁘다", "예쁘다 예뻤다 예쁜 예뻐 예쁘다고"),
        ("하얗다/ㅎ", "하얗다 하얬다 하얀 하얘 하얗다고"),
        ("빨갛다/ㅎ", "빨갛다 빨갰다 빨간 빨개 빨갛다고"),
        ("길다", "길다 길었다 긴 길어 길다고"),
        ("감동적이다/이", "감동적이다 감동적이었다 감동적인 감동적이어 감동적이라고"),
        ("갈색이다/이", "갈색이다 갈색이었다 갈색 갈색이어 갈색이라고"),
        ("게으르다/르", "게으르다 게을렀다 게으른 게을러 게으르다고"),
    ],
)
def test_adjectives(entry, forms):
    endings = ("다", "었다", "은", "어", "다고")
    assert [conjugate(entry, ending, True) for ending in endings] == forms.split()


def test_a_word_that_is_no_dictionary_form_is_refused():
    with pytest.raises(ValueError, match="다"):
        conjugate("빨리", "었다")
