"""Adjectives. Those of praise and blame come by what they can be said of: a soup is bland, a chair is not."""

from __future__ import annotations

from etude.world.words import Word, table

_NEUTRAL: dict[str, str] = {
    "colour": """red 빨갛다/ㅎ, blue 파랗다/ㅎ, white 하얗다/ㅎ, black 까맣다/ㅎ, yellow 노랗다/ㅎ, green 푸르다,
        brown 갈색이다/이, grey 회색이다/이, purple 보라색이다/이, pink 분홍색이다/이, golden 금색이다/이,
        silver 은색이다/이""",
    "size": """small 작다, big 크다, long 길다, round 둥글다, heavy 무겁다/ㅂ, light 가볍다/ㅂ, thin 얇다,
        thick 두껍다/ㅂ, narrow 좁다, wide 넓다, flat 납작하다, square 네모나다""",
    "character": """quiet 조용하다, clever 영리하다, curious 호기심이 많다, brave 용감하다, shy 수줍음이 많다,
        cheerful 쾌활하다, patient 참을성이 많다, lively 활발하다, calm 차분하다, proud 자존심이 강하다,
        playful 장난기가 많다, gentle 온순하다""",
    "weather": """sunny 화창하다, cold 춥다/ㅂ, warm 따뜻하다, windy 바람이 세다, clear 맑다, cloudy 흐리다,
        hot 덥다/ㅂ, foggy 안개가 짙다, mild 포근하다, humid 습하다, chilly 쌀쌀하다, dry 건조하다, sultry 무덥다/ㅂ,
        gloomy 우중충하다""",
}

# praise / blame, by what it is said of
_MOODS: dict[str, tuple[str, str]] = {
    "food": (
        """delicious 맛있다, fresh 신선하다, tasty 맛깔스럽다/ㅂ, fragrant 향긋하다, savoury 구수하다,
        tender 부드럽다/ㅂ, crispy 바삭하다, juicy 촉촉하다, rich 진하다, appetising 먹음직스럽다/ㅂ,
        flavourful 풍미가 깊다, refreshing 상큼하다, filling 든든하다, nutty 고소하다, hearty 푸짐하다""",
        """bland 싱겁다/ㅂ, salty 짜다, stale 눅눅하다, bitter 쓰다, greasy 느끼하다, chalky 텁텁하다,
        soggy 질척하다, sour 시큼하다, nasty 역겹다/ㅂ, tough 질기다, watery 묽다, tasteless 맛없다,
        lukewarm 미지근하다, dry 퍽퍽하다, smelly 고약하다""",
    ),
    "thing": (
        """sturdy 튼튼하다, beautiful 아름답다/ㅂ, useful 유용하다, comfortable 편안하다, elegant 우아하다,
        handy 편리하다, pretty 예쁘다, durable 견고하다, splendid 근사하다, neat 깔끔하다, stylish 세련되다,
        cosy 아늑하다, solid 단단하다, precise 정교하다, charming 매력적이다/이""",
        """flimsy 허술하다, ugly 흉하다, useless 쓸모없다, uncomfortable 불편하다, shabby 초라하다, crooked 삐딱하다,
        dirty 더럽다/ㅂ, fragile 약하다, rough 거칠다, faulty 불량하다, tacky 조잡하다, worthless 가치가 없다,
        clumsy 투박하다, worn 낡다, noisy 시끄럽다/ㅂ""",
    ),
    "event": (
        """wonderful 훌륭하다, exciting 흥미진진하다, joyful 즐겁다/ㅂ, brilliant 눈부시다, moving 감동적이다/이,
        impressive 인상적이다/이, unforgettable 잊을 수 없다, magical 환상적이다/이, perfect 완벽하다,
        lovely 사랑스럽다/ㅂ, graceful 품위 있다, superb 탁월하다, amusing 재미있다, inspiring 고무적이다/이,
        dazzling 화려하다""",
        """boring 지루하다, awful 끔찍하다, dull 따분하다, chaotic 혼란스럽다/ㅂ, tedious 지겹다/ㅂ,
        disappointing 실망스럽다/ㅂ, tiresome 피곤하다, dreadful 형편없다, messy 어수선하다, gloomy 우울하다,
        endless 끝이 없다, sloppy 엉성하다, unpleasant 불쾌하다, embarrassing 민망하다, miserable 비참하다""",
    ),
    "person": (
        """kind 친절하다, polite 공손하다, helpful 자상하다, honest 정직하다, friendly 다정하다, skilful 능숙하다,
        diligent 부지런하다, generous 너그럽다/ㅂ, thoughtful 사려 깊다, warm-hearted 마음이 따뜻하다,
        attentive 세심하다, considerate 배려심이 많다, reliable 믿음직하다, gracious 상냥하다, respectful 예의 바르다""",
        """rude 무례하다, careless 부주의하다, lazy 게으르다/르, dishonest 정직하지 않다, grumpy 퉁명스럽다/ㅂ,
        impatient 성급하다, stingy 인색하다, arrogant 거만하다, unfriendly 불친절하다, mean 심술궂다,
        cold-hearted 냉정하다, forgetful 건망증이 심하다, bossy 독선적이다/이, selfish 이기적이다/이,
        hostile 적대적이다/이""",
    ),
}

# what one feels afterwards
_FEELINGS = (
    """happy 행복하다, glad 기쁘다, satisfied 만족스럽다/ㅂ, delighted 흐뭇하다, cheerful 유쾌하다,
        grateful 고맙다/ㅂ, pleased 흡족하다, content 뿌듯하다, thrilled 황홀하다, proud 자랑스럽다/ㅂ""",
    """sad 슬프다, angry 화가 나다, annoyed 짜증스럽다/ㅂ, upset 속상하다, bitter 씁쓸하다, sorry 아쉽다/ㅂ,
        displeased 언짢다, gloomy 침울하다, frustrated 답답하다, miserable 괴롭다/ㅂ""",
)


def _moods() -> dict[str, tuple[list[Word], list[Word]]]:
    moods = {}
    for domain, (praise, blame) in (*_MOODS.items(), ("feeling", _FEELINGS)):
        pair = (table(praise, domain, "ADJ"), table(blame, domain, "ADJ"))
        for words, mood in zip(pair, (1, -1), strict=True):
            for word in words:
                word.mood = mood
        moods[domain] = pair
    return moods


QUALITIES = {category: table(text, category, "ADJ") for category, text in _NEUTRAL.items()}
MOODS = _moods()
