"""Portraits: the facts of one person, told in a settled order; and the sentences that introduce a person elsewhere."""

from __future__ import annotations

from etude.world.script import Frame, Script, step

INTROS = (
    Frame("{@a} is {a.trade:a} and lives on {a.home}.", "{@a:는} {a.trade:이며} {a.home:에} 산다.",
          ("a.home", "Where does {a} live?", "{a:는} 어디에 사나?"), ("a.trade", "What is the trade of {a}?", "{a:의} 직업은 무엇인가?")),
    Frame("{@a} works as {a.trade:a} at {a.firm}.", "{@a:는} {a.firm:에서} {a.trade:로} 일한다.",
          ("a.firm", "Where does {a} work?", "{a:는} 어디에서 일하나?"), ("a.trade", "What does {a} work as?", "{a:는} 무슨 일을 하나?")),
    Frame("{@a} was born in {a.village} and lives on {a.home}.", "{@a:는} {a.village:에서} 태어났고 {a.home:에} 산다.",
          ("a.village", "Where was {a} born?", "{a:는} 어디에서 태어났나?"), ("a.home", "Where does {a} live?", "{a:는} 어디에 사나?")),
)  # fmt: skip

HOME = step(
    ("{@a} lives on {a.home}.", "{@a:는} {a.home:에} 산다.", ("a.home", "Where does {a} live?", "{a:는} 어디에 사나?")),
    ("The house of {a} stands on {a.home}.", "{a:의} 집은 {a.home:에} 있다.",
     ("a.home", "Where does the house of {a} stand?", "{a:의} 집은 어디에 있나?")),
)  # fmt: skip
NEAR = step(("{a.home} is near the {a.home.near}.", "{a.home:은} {a.home.near} 근처에 있다.",
             ("a.home.near", "What is {a.home} near?", "{a.home:은} 무엇의 근처에 있나?")), chance=0.5)  # fmt: skip
BIRTH = step(
    ("{@a} was born in {a.village}.", "{@a:는} {a.village:에서} 태어났다.", ("a.village", "Where was {a} born?", "{a:는} 어디에서 태어났나?")),
    ("{@a} comes from the village of {a.village}.", "{@a:는} {a.village}라는 마을 출신이다.",
     ("a.village", "Which village does {a} come from?", "{a:는} 어느 마을 출신인가?")),
)  # fmt: skip
TRADE = step(
    ("{@a} works as {a.trade:a}.", "{@a:는} {a.trade:로} 일한다.", ("a.trade", "What does {a} work as?", "{a:는} 무슨 일을 하나?")),
    ("{@a} is {a.trade:a} by trade.", "{@a:의} 직업은 {a.trade:이다}.", ("a.trade", "What is {a} by trade?", "{a:의} 직업은 무엇인가?")),
)  # fmt: skip
SKILL = step(
    ("Every day {@a} {a.trade.does:s} {a.trade.makes:s} at {a.firm}.", "{@a:는} 날마다 {a.firm:에서} {a.trade.makes:를} {a.trade.does:다}.",
     ("a.firm", "Where does {a} work every day?", "{a:는} 날마다 어디에서 일하나?")),
    ("At {a.firm} {@a} {a.trade.does:s} {a.trade.makes:s} with {a.trade.tool:a}.",
     "{a.firm:에서} {@a:는} {a.trade.tool:로} {a.trade.makes:를} {a.trade.does:다}.",
     ("a.firm", "Where does {a} use {a.trade.tool:a}?", "{a:는} 어디에서 {a.trade.tool:를} 쓰나?")),
)  # fmt: skip
SPOUSE = step(
    ("{@a} is married to {a.spouse}.", "{@a:는} {a.spouse:와} 결혼했다.", ("a.spouse", "Who is {a} married to?", "{a:는} 누구와 결혼했나?")),
    ("{@a} lives with {a.mother} and {a.father}, the mother and the father.", "{@a:는} 어머니 {a.mother:와} 아버지 {a.father:와} 가깝게 지낸다.",
     ("a.mother", "Who is the mother of {a}?", "{a:의} 어머니는 누구인가?")),
)  # fmt: skip
KIN = step(
    ("{@a} has a daughter, {a.daughter}, and a son, {a.son}.", "{@a:에게는} 딸 {a.daughter:와} 아들 {a.son:이} 있다.",
     ("a.daughter", "Who is the daughter of {a}?", "{a:의} 딸은 누구인가?"), ("a.son", "Who is the son of {a}?", "{a:의} 아들은 누구인가?")),
    ("The brother of {a} is {a.brother}.", "{a:의} 남자 형제는 {a.brother:이다}.",
     ("a.brother", "Who is the brother of {a}?", "{a:의} 남자 형제는 누구인가?")),
    ("The sister of {a} is {a.sister}.", "{a:의} 여자 형제는 {a.sister:이다}.",
     ("a.sister", "Who is the sister of {a}?", "{a:의} 여자 형제는 누구인가?")),
)  # fmt: skip
FRIEND = step(
    ("{@a} often meets {a.friend}, a close friend.", "{@a:는} 친한 친구인 {a.friend:를} 자주 만난다.",
     ("a.friend", "Who does {a} often meet?", "{a:는} 누구를 자주 만나나?")),
    ("The best friend of {a} is {a.friend}.", "{a:의} 가장 친한 친구는 {a.friend:이다}.",
     ("a.friend", "Who is the best friend of {a}?", "{a:의} 가장 친한 친구는 누구인가?")),
)  # fmt: skip
PET = step(
    ("{@a} has {a.pet.kind:a} called {a.pet}.", "{@a:에게는} {a.pet:이라는} {a.pet.kind:가} 있다.",
     ("a.pet", "What is the {a.pet.kind} of {a} called?", "{a:의} {a.pet.kind:는} 이름이 무엇인가?"),
     ("a.pet.kind", "What kind of animal does {a} have?", "{a:에게는} 어떤 동물이 있나?")),
    ("{@a} keeps {a.pet.kind:a}, and its name is {a.pet}.", "{@a:는} {a.pet.kind:를} 기르는데 이름은 {a.pet:이다}.",
     ("a.pet.kind", "What kind of animal does {a} keep?", "{a:는} 어떤 동물을 기르나?")),
)  # fmt: skip
TREASURE = step(
    ("{@a} keeps {a.treasure:a} in the {a.spot}.", "{@a:는} {a.treasure:를} {a.spot:에} 보관한다.",
     ("a.spot", "Where does {a} keep the {a.treasure}?", "{a:는} {a.treasure:를} 어디에 보관하나?"),
     ("a.treasure", "What does {a} keep in the {a.spot}?", "{a:는} {a.spot:에} 무엇을 보관하나?")),
    ("In the {a.spot} of {a} lies {a.treasure:a}.", "{a:의} {a.spot:에는} {a.treasure:가} 있다.",
     ("a.treasure", "What lies in the {a.spot} of {a}?", "{a:의} {a.spot:에는} 무엇이 있나?")),
)  # fmt: skip
FOOD = step(
    ("{@a} likes {a.food:s} more than any other dish.", "{@a:는} 어떤 음식보다 {a.food:를} 좋아한다.",
     ("a.food", "Which dish does {a} like most?", "{a:는} 어떤 음식을 가장 좋아하나?")),
    ("The favourite dish of {a} {a.food:are} {a.food:s}.", "{a:가} 가장 좋아하는 음식은 {a.food:이다}.",
     ("a.food", "What is the favourite dish of {a}?", "{a:가} 가장 좋아하는 음식은 무엇인가?")),
)  # fmt: skip
HOBBY = step(
    ("In the evening {@a} plays the {a.instrument}.", "저녁이면 {@a:는} {a.instrument:를} 연주한다.",
     ("a.instrument", "What does {a} play in the evening?", "{a:는} 저녁에 무엇을 연주하나?")),
    ("{@a} plays the {a.instrument} and grows {a.flower:s}.", "{@a:는} {a.instrument:를} 연주하고 {a.flower:를} 가꾼다.",
     ("a.flower", "What does {a} grow?", "{a:는} 무엇을 가꾸나?"), ("a.instrument", "What does {a} play?", "{a:는} 무엇을 연주하나?")),
)  # fmt: skip

SCRIPTS = (
    Script(
        "portrait",
        "",
        "a=person",
        (BIRTH, HOME, NEAR, TRADE, SKILL, SPOUSE, KIN, PET, FOOD, HOBBY),
        weight=5.0,
        intro=False,
    ),
    Script("household", "", "a=person", (HOME, SPOUSE, KIN, FRIEND, PET, TREASURE), weight=3.0, intro=False),
    Script("acquaintance", "", "a=person", (TRADE, SKILL, FRIEND, FOOD, HOBBY, TREASURE), weight=3.0, intro=False),
)
