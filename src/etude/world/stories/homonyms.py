"""Homonyms in company: one spelling, several things, and only another thing of the same kind to tell which.

The same few frames serve all senses, so no fixed neighbour gives one away: what settles the sense is the kind of
the other thing ("the bank and the canoe", "the bank and the diamond"). The telling stories are in
`homonyms_en` and `homonyms_ko`.
"""

from __future__ import annotations

from dataclasses import replace

from etude.world.notation import read_scripts
from etude.world.script import Script
from etude.world.stories import homonyms_en, homonyms_ko

_FRAMES = read_scripts(
    """
company: a=person
* {@a} talked about the {s} and the {x}.
  {@a:는} {s:와} {x} 이야기를 했다.
/ {@a} thought of the {x} and then of the {s}.
  {@a:는} {x:를} 생각하다가 {s:를} 떠올렸다.
/ In the story of {b} there/PRON is the {s} and the {x}.
  {b:의} 이야기에는 {s:와} {x:가} 나온다.
/ First {b} asked about the {s}, and then about the {x}.
  먼저 {b:는} {s:에} 대해 묻고 그다음 {x:에} 대해 물었다.
/ {@a} wrote something about the {x} and the {s}.
  {@a:는} {x:와} {s:에} 대한 글을 썼다.
""",
    "",
)[0]

# language | sense | the word in English and Korean | the kind of thing beside it
_SENSES = """en | bank.river | bank/강둑 | boat
en | bank.money | bank/은행 | jewel
en | bat.animal | bat/박쥐 | insect
en | bat.club | bat/방망이 | sports_gear
en | spring.season | spring/봄 | flower
en | spring.water | spring/샘 | vessel
en | crane.bird | crane/두루미 | small_prey
en | crane.machine | crane/기중기 | cargo
en | bark.sound | bark/짖는_소리 | stranger
en | bark.tree | bark/나무껍질 | tree
en | seal.animal | seal/바다표범 | sea_food
en | seal.stamp | seal/도장 | document
en | letter.mail | letter/편지 | post
en | letter.sign | letter/글자 | school_thing
en | match.fire | match/성냥 | light
en | match.game | match/시합 | sports_gear
en | ring.jewel | ring/반지 | jewel
en | ring.sound | ring/울리는_소리 | sounding
ko | 배.과일 | pear/배 | fruit
ko | 배.탈것 | ship/배 | cargo
ko | 배.몸 | belly/배 | body
ko | 눈.몸 | eye/눈 | face
ko | 눈.날씨 | snow/눈 | winter_thing
ko | 말.동물 | horse/말 | farm_animal
ko | 말.언어 | speech/말 | talk
ko | 밤.시간 | night/밤 | night_thing
ko | 밤.열매 | chestnut/밤 | fruit
ko | 다리.건물 | bridge/다리 | landmark
ko | 다리.몸 | leg/다리 | body
ko | 사과.과일 | apple/사과 | fruit
ko | 사과.말 | apology/사과 | talk
ko | 벌.동물 | bee/벌 | insect
ko | 벌.처벌 | punishment/벌 | court
ko | 차.음료 | tea/차 | cup
ko | 차.탈것 | car/차 | road_vehicle
ko | 풀.식물 | grass/풀 | flower
ko | 풀.도구 | glue/풀 | school_thing
ko | 병.그릇 | bottle/병 | cup
ko | 병.몸 | illness/병 | sickness"""


def _company() -> tuple[Script, ...]:
    scripts = []
    for line in _SENSES.split("\n"):
        language, sense, word, kind = (cell.strip() for cell in line.split("|"))
        cast = f"a=person b=other s={word} x={kind}"
        script = Script(
            f"{sense} in company", "", cast, _FRAMES.steps, weight=0.1, intro=False, sense=sense, language=language
        )
        scripts.append(script)
    return tuple(scripts)


COMPANY = _company()
TOLD = tuple(replace(script, weight=0.25) for script in (*homonyms_en.SCRIPTS, *homonyms_ko.SCRIPTS))
SCRIPTS = (*TOLD, *COMPANY)
