"""Lore: what is true of every dog, every baker, of a street or a village. Told in the plural and in the present."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
about a pet [topic=animals intro=no]: k=pet c=character a=k<pet.kind
* {k:s} are animals that/PRON many people keep.
  {k:는} 많은 사람이 기르는 동물이다.
/ Many families in the town have {k:a}.
  마을의 많은 집에서 {k:를} 기른다.
* {k:s} eat {k.eats:s}.
  {k:는} {k.eats:를} 먹는다.
  ? k.eats: What do {k:s} eat? = {k:는} 무엇을 먹는가?
/ {k:s} like {k.eats:s} most.
  {k:는} {k.eats:를} 가장 좋아한다.
  ? k.eats: What do {k:s} like most? = {k:는} 무엇을 가장 좋아하는가?
* {k:a} sleeps in the {k.habitat}.
  {k:는} {k.habitat:에서} 잔다.
  ? k.habitat: Where does {k:a} sleep? = {k:는} 어디에서 자는가?
/ The home/NOUN of {k:a} is the {k.habitat}.
  {k:의} 보금자리는 {k.habitat:이다}.
  ? k.habitat: What is the home of {k:a}? = {k:의} 보금자리는 무엇인가?
* For example, {a} has {k:a} called {a.pet}.
  예를 들어 {a:에게는} {a.pet:이라는} {k:가} 있다.
  ? a.pet: What is the {k} of {a} called? = {a:의} {k:는} 이름이 무엇인가?
*0.6 {a.pet} is {c}.
  {a.pet:은} {c:다}.
  ? c: What is {a.pet} like? = {a.pet:은} 어떠한가?

about a wild animal [topic=animals intro=no]: k=wild_animal
* {k:s} are wild animals.
  {k:는} 야생 동물이다.
/ Nobody keeps {k:s} at home/NOUN, because they are wild.
  {k:는} 야생 동물이라서 아무도 집에서 기르지 않는다.
* {k:s} eat {k.eats:s}.
  {k:는} {k.eats:를} 먹는다.
  ? k.eats: What do {k:s} eat? = {k:는} 무엇을 먹는가?
* They live in the {k.habitat}.
  그들은 {k.habitat:에} 산다.
  ? k.habitat: Where do {k:s} live? = {k:는} 어디에 사는가?
/ You can find {k:s} in the {k.habitat}.
  {k:는} {k.habitat:에서} 볼 수 있다.
  ? k.habitat: Where can you find {k:s}? = {k:는} 어디에서 볼 수 있는가?
*0.6 {k:s} are afraid of people and run away.
  {k:는} 사람을 무서워해서 달아난다.
/ {k:s} raise their young/NOUN in summer.
  {k:는} 여름에 새끼를 기른다.

about a farm animal [topic=animals intro=no weight=0.7]: k=farm_animal n=number
* {k:s} live on the farm.
  {k:는} 농장에 산다.
/ On the farms around the town there/PRON are many {k:s}.
  마을 둘레의 농장에는 {k:가} 많다.
* {k:s} eat {k.eats:s}.
  {k:는} {k.eats:를} 먹는다.
  ? k.eats: What do {k:s} eat? = {k:는} 무엇을 먹는가?
* At night the {k:s} sleep in the {k.habitat}.
  밤이면 {k:는} {k.habitat:에서} 잔다.
  ? k.habitat: Where do the {k:s} sleep at night? = {k:는} 밤에 어디에서 자는가?
* A farmer with {n} {k:s} gets up early.
  {k:를} {n} 마리 기르는 농부는 일찍 일어난다.
/ Every morning somebody has to feed the {k:s}.
  아침마다 누군가 {k:에게} 먹이를 주어야 한다.

about a trade [topic=work intro=no weight=2]: t=trade a=t<trade
* {t:a} {t.does:s} {t.makes:s}.
  {t:는} {t.makes:를} {t.does:다}.
  ? t.makes: What does {t:a} work on? = {t:는} 무엇을 다루는가?
/ {t:s} {t.does} {t.makes:s}.
  {t:는} {t.makes:를} {t.does:는} 사람이다.
* {t:s} work/VERB at the {t.place}.
  {t:는} {t.place:에서} 일한다.
  ? t.place: Where do {t:s} work? = {t:는} 어디에서 일하는가?
/ The place of work of {t:a} is the {t.place}.
  {t:의} 일터는 {t.place:이다}.
  ? t.place: What is the place of work of {t:a}? = {t:의} 일터는 무엇인가?
* {t:a} cannot work/VERB without {t.tool:a}.
  {t:는} {t.tool} 없이는 일할 수 없다.
  ? t.tool: What can {t:a} not work without? = {t:는} 무엇이 없이는 일할 수 없는가?
/ The most important tool of {t:a} is the {t.tool}.
  {t:의} 가장 중요한 도구는 {t.tool:이다}.
  ? t.tool: What is the most important tool of {t:a}? = {t:의} 가장 중요한 도구는 무엇인가?
* In this town {a} is {t:a}.
  이 마을에서는 {a:가} {t:이다}.
  ? a: Who is {t:a} in this town? = 이 마을에서 누가 {t:인가}?
*0.6 {@a} works at {a.firm}.
  {@a:는} {a.firm:에서} 일한다.
  ? a.firm: Where does {a} work? = {a:는} 어디에서 일하는가?

about a street [intro=no weight=1.5]: r=street a=r<home
* {r} is a street near the {r.near}.
  {r:은} {r.near} 근처에 있는 거리이다.
  ? r.near: What is {r} near? = {r:은} 무엇의 근처에 있는가?
/ You reach {r} from the {r.near}.
  {r.near:에서} {r:으로} 갈 수 있다.
  ? r.near: From where do you reach {r}? = 어디에서 {r:으로} 갈 수 있는가?
* {a} lives there.
  그곳에는 {a:가} 산다.
  ? a: Who lives on {r}? = {r:에는} 누가 사는가?
/ In one of its houses lives {a}.
  그 거리의 한 집에는 {a:가} 산다.
* {@a} works as {a.trade:a}.
  {@a:는} {a.trade:로} 일한다.
  ? a.trade: What does {a} work as? = {a:는} 무슨 일을 하는가?
*0.6 Every morning {@a} walks from {r} to {a.firm}.
  아침마다 {@a:는} {r:에서} {a.firm:까지} 걸어간다.
  ? a.firm: Where does {a} walk every morning? = {a:는} 아침마다 어디까지 걸어가는가?

about a village [topic=travel intro=no]: h=village a=h<village v=public_vehicle
* {h} is a village not far from the town.
  {h:는} 마을에서 멀지 않은 곳에 있다.
/ Travellers like to go to {h}.
  여행자들은 {h:에} 가는 것을 좋아한다.
* {h} is famous for its {h.famous}.
  {h:는} {h.famous:로} 유명하다.
  ? h.famous: What is {h} famous for? = {h:는} 무엇으로 유명한가?
/ Everybody who visits {h} wants to see the {h.famous}.
  {h:를} 찾는 사람은 누구나 {h.famous:를} 보고 싶어 한다.
  ? h.famous: What does everybody want to see in {h}? = 사람들은 {h:에서} 무엇을 보고 싶어 하는가?
* {a} was born in {h}.
  {a:는} {h:에서} 태어났다.
  ? a: Who was born in {h}? = 누가 {h:에서} 태어났는가?
* {@a} sometimes goes there by {v}.
  {@a:는} 가끔 {v:를} 타고 그곳에 간다.
  ? v: How does {a} go there? = {a:는} 무엇을 타고 그곳에 가는가?
""",
    "",
)
