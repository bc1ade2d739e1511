"""Function words of English and Korean: articles, pronouns, prepositions, conjunctions and the like.

Augmentation that replaces words of a text leaves these closed classes alone.
"""

from __future__ import annotations

ENGLISH = """
    a an the this that these those such same other another each every either neither some any no none all both half
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
    we us our ours ourselves they them their theirs themselves one ones who whom whose which what
    someone somebody something anyone anybody anything everyone everybody everything nobody nothing
    about above across after against along among around as at before behind below beneath beside besides between
    beyond but by despite down during except for from in inside into like near of off on onto out outside over past
    per since than through throughout till to toward towards under underneath until up upon via with within without
    and or nor so yet if unless because although though while whereas whether when whenever where wherever why how
    am is are was were be been being have has had having do does did doing done will would shall should can could may
    might must ought not never only own just too very also then there here again once more most much many few less
    t s d ll m re ve don doesn didn isn aren wasn weren haven hasn hadn won wouldn shan shouldn couldn mustn
"""

KOREAN = """
    이 그 저 이것 그것 저것 여기 거기 저기 나 내 너 네 우리 저희 너희 그녀 그들 누구 무엇 뭐 어디 언제 왜 어떻게
    어느 어떤 무슨 그리고 그러나 하지만 그런데 그래서 그러므로 따라서 또 또는 또한 혹은 및 즉 만약 만일 비록
    것 수 등 때 때문 더 덜 안 못 않다 아니 이다 아니다 있다 없다 하다 되다 은 는 가 을 를 에 의 도 만 와 과 로 으로
"""

FUNCTION_WORDS = frozenset([*ENGLISH.split(), *KOREAN.split()])
