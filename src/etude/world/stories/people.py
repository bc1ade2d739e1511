"""People: the facts of one person, each with its ways to be told and asked; portraits tell several in a settled
order, quizzes ask and answer, and other stories open with one."""

from __future__ import annotations

from etude.world.notation import read_scripts
from etude.world.script import Frame, Script, Step

_FACTS = read_scripts(
    """
birth: a=person
* {@a} was born in {a.village}.
  {@a:는} {a.village:에서} 태어났다.
  ? a.village: Where was {a} born? = {a:는} 어디에서 태어났는가?
/ {@a} comes from the village of {a.village}.
  {@a:는} {a.village:이라는} 마을 출신이다.
  ? a.village: Which village does {a} come from? = {a:는} 어느 마을 출신인가?

home: a=person
* {@a} lives on {a.home}.
  {@a:는} {a.home:에} 산다.
  ? a.home: Where does {a} live? = {a:는} 어디에 사는가?
/ The house of {a} stands on {a.home}.
  {a:의} 집은 {a.home:에} 있다.
  ? a.home: Where does the house of {a} stand? = {a:의} 집은 어디에 있는가?

near: a=person
*0.5 {a.home} is near the {a.home.near}.
  {a.home:은} {a.home.near} 근처에 있다.
  ? a.home.near: What is {a.home} near? = {a.home:은} 무엇의 근처에 있는가?

trade: a=person
* {@a} works as {a.trade:a}.
  {@a:는} {a.trade:로} 일한다.
  ? a.trade: What does {a} work as? = {a:는} 무슨 일을 하는가?
/ {@a} is {a.trade:a} by trade.
  {@a:의} 직업은 {a.trade:이다}.
  ? a.trade: What is {a} by trade? = {a:의} 직업은 무엇인가?

skill: a=person
* Every day {@a} {a.trade.does:s} {a.trade.makes:s} at {a.firm}.
  {@a:는} 날마다 {a.firm:에서} {a.trade.makes:를} {a.trade.does:다}.
  ? a.firm: Where does {a} work every day? = {a:는} 날마다 어디에서 일하는가?
/ At {a.firm} {@a} {a.trade.does:s} {a.trade.makes:s} with {a.trade.tool:a}.
  {a.firm:에서} {@a:는} {a.trade.tool:로} {a.trade.makes:를} {a.trade.does:다}.
  ? a.firm: Where does {a} use {a.trade.tool:a}? = {a:는} 어디에서 {a.trade.tool:를} 쓰는가?

firm: a=person
* {a.firm} stands on {a.firm.street}, and its owner is {a.firm.owner}.
  {a.firm:은} {a.firm.street:에} 있고 주인은 {a.firm.owner:이다}.
  ? a.firm.street: Where does {a.firm} stand? = {a.firm:은} 어디에 있는가?
  ? a.firm.owner: Who is the owner of {a.firm}? = {a.firm:의} 주인은 누구인가?

spouse: a=person
* {@a} is married to {a.spouse}.
  {@a:는} {a.spouse:와} 결혼했다.
  ? a.spouse: Who is {a} married to? = {a:는} 누구와 결혼했는가?
/ The parents of {a} are {a.mother} and {a.father}.
  {a:의} 부모는 {a.mother:와} {a.father:이다}.
  ? a.mother: Who is the mother of {a}? = {a:의} 어머니는 누구인가?
  ? a.father: Who is the father of {a}? = {a:의} 아버지는 누구인가?

kin: a=person
* {@a} has a daughter, {a.daughter}, and a son, {a.son}.
  {@a:에게는} 딸 {a.daughter:와} 아들 {a.son:이} 있다.
  ? a.daughter: Who is the daughter of {a}? = {a:의} 딸은 누구인가?
  ? a.son: Who is the son of {a}? = {a:의} 아들은 누구인가?
/ The brother of {a} is {a.brother}.
  {a:의} 남자 형제는 {a.brother:이다}.
  ? a.brother: Who is the brother of {a}? = {a:의} 남자 형제는 누구인가?
/ The sister of {a} is {a.sister}.
  {a:의} 여자 형제는 {a.sister:이다}.
  ? a.sister: Who is the sister of {a}? = {a:의} 여자 형제는 누구인가?

friend: a=person
* {@a} often meets {a.friend}, a close/ADJ friend.
  {@a:는} 친한 친구인 {a.friend:를} 자주 만난다.
  ? a.friend: Who does {a} often meet? = {a:는} 누구를 자주 만나는가?
/ The best friend of {a} is {a.friend}.
  {a:의} 가장 친한 친구는 {a.friend:이다}.
  ? a.friend: Who is the best friend of {a}? = {a:의} 가장 친한 친구는 누구인가?

pet: a=person
* {@a} has {a.pet.kind:a} called {a.pet}.
  {@a:에게는} {a.pet:이라는} {a.pet.kind:가} 있다.
  ? a.pet: What is the {a.pet.kind} of {a} called? = {a:의} {a.pet.kind:는} 이름이 무엇인가?
  ? a.pet.kind: What kind of animal does {a} have? = {a:에게는} 어떤 동물이 있는가?
/ {@a} keeps {a.pet.kind:a}, and its name is {a.pet}.
  {@a:는} {a.pet.kind:를} 기르는데 이름은 {a.pet:이다}.
  ? a.pet.kind: What kind of animal does {a} keep? = {a:는} 어떤 동물을 기르는가?
  ? a.pet: What is the name of the {a.pet.kind} of {a}? = {a:의} {a.pet.kind} 이름은 무엇인가?

treasure: a=person
* {@a} keeps {a.treasure:a} in the {a.spot}.
  {@a:는} {a.treasure:를} {a.spot:에} 보관한다.
  ? a.spot: Where does {a} keep the {a.treasure}? = {a:는} {a.treasure:를} 어디에 보관하는가?
  ? a.treasure: What does {a} keep in the {a.spot}? = {a:는} {a.spot:에} 무엇을 보관하는가?
/ In the {a.spot} of {a} lies {a.treasure:a}.
  {a:의} {a.spot:에는} {a.treasure:가} 있다.
  ? a.treasure: What lies in the {a.spot} of {a}? = {a:의} {a.spot:에는} 무엇이 있는가?

food: a=person
* {@a} likes {a.food:s} more/ADJ than any other dish.
  {@a:는} 어떤 음식보다 {a.food:를} 좋아한다.
  ? a.food: Which dish does {a} like most? = {a:는} 어떤 음식을 가장 좋아하는가?
/ The favourite dish of {a} is {a.food:one}.
  {a:가} 가장 좋아하는 음식은 {a.food:이다}.
  ? a.food: What is the favourite dish of {a}? = {a:가} 가장 좋아하는 음식은 무엇인가?

hobby: a=person
* In the evening {@a} plays the {a.instrument}.
  저녁이면 {@a:는} {a.instrument:를} 연주한다.
  ? a.instrument: What does {a} play in the evening? = {a:는} 저녁에 무엇을 연주하는가?
/ {@a} plays the {a.instrument} and grows {a.flower:s}.
  {@a:는} {a.instrument:를} 연주하고 {a.flower:를} 가꾼다.
  ? a.flower: What does {a} grow? = {a:는} 무엇을 가꾸는가?
  ? a.instrument: What does {a} play? = {a:는} 무엇을 연주하는가?
""",
    "",
)
FACTS: dict[str, Step] = {script.name: script.steps[0] for script in _FACTS}

_INTROS = read_scripts(
    """
intro: a=person
* {@a} is {a.trade:a} and lives on {a.home}.
  {@a:는} {a.trade:이며} {a.home:에} 산다.
  ? a.home: Where does {a} live? = {a:는} 어디에 사는가?
  ? a.trade: What is the trade of {a}? = {a:의} 직업은 무엇인가?
/ {@a} works as {a.trade:a} at {a.firm}.
  {@a:는} {a.firm:에서} {a.trade:로} 일한다.
  ? a.firm: Where does {a} work? = {a:는} 어디에서 일하는가?
  ? a.trade: What does {a} work as? = {a:는} 무슨 일을 하는가?
/ {@a} was born in {a.village} and lives on {a.home}.
  {@a:는} {a.village:에서} 태어났고 {a.home:에} 산다.
  ? a.village: Where was {a} born? = {a:는} 어디에서 태어났는가?
  ? a.home: Where does {a} live? = {a:는} 어디에 사는가?
""",
    "",
)
INTROS: tuple[Frame, ...] = _INTROS[0].steps[0].frames

# a question nobody can answer is asked too, so that not every question is followed by a fact
_QUIZZES = read_scripts(
    """
quiz about a home [intro=no weight=2]: a=person u=luggage
* Where does {a} live?
  {a:는} 어디에 사는가?
* {a} lives on {a.home}.
  {a:는} {a.home:에} 산다.
* What is {a.home} near?
  {a.home:은} 무엇의 근처에 있는가?
* It is near the {a.home.near}.
  {a.home.near} 근처에 있다.
* Where did {a} buy {u:a}?
  {a:는} {u:를} 어디에서 샀는가?
* Nobody knows where {a} bought it.
  {a:가} 그것을 어디에서 샀는지는 아무도 모른다.

quiz about a trade [intro=no weight=2]: a=person n=number
* What does {a} work/VERB as?
  {a:는} 무슨 일을 하는가?
* {a} is {a.trade:a}.
  {a:는} {a.trade:이다}.
* Where does {a:he} work/VERB?
  {a:그는} 어디에서 일하는가?
* {a:he} works at {a.firm}.
  {a:그는} {a.firm:에서} 일한다.
* Who is the owner of {a.firm}?
  {a.firm:의} 주인은 누구인가?
* The owner is {a.firm.owner}.
  주인은 {a.firm.owner:이다}.
* How many coins does {a} have?
  {a:는} 동전을 몇 닢 가지고 있는가?
* That/DET question has no answer.
  그 물음에는 답이 없다.

quiz about a treasure [intro=no weight=2]: a=person
* What does {a} keep in the {a.spot}?
  {a:는} {a.spot:에} 무엇을 보관하는가?
* In the {a.spot} lies {a.treasure:a}.
  {a.spot:에는} {a.treasure:가} 있다.
* Who is the best friend of {a}?
  {a:의} 가장 친한 친구는 누구인가?
* The best friend of {a} is {a.friend}.
  {a:의} 가장 친한 친구는 {a.friend:이다}.
* And where does {a.friend} live?
  그러면 {a.friend:는} 어디에 사는가?
* {a.friend} lives on {a.friend.home}.
  {a.friend:는} {a.friend.home:에} 산다.
""",
    "",
)


def _portrait(name: str, order: str) -> Script:
    return Script(name, "", "a=person", tuple(FACTS[fact] for fact in order.split()), weight=8.0, intro=False)


SCRIPTS = (
    _portrait("portrait", "birth home near trade skill firm spouse kin pet food hobby"),
    _portrait("household", "home spouse kin friend pet treasure"),
    _portrait("acquaintance", "trade skill firm friend food hobby treasure"),
    *_QUIZZES,
)
