"""Animals: a pet that runs away, a sick animal, a walk in the forest, a day on the farm."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
runaway: a=person p=a.pet k=a.pet.kind e=k.eats h=k.habitat b=other l=landmark
* {@a} has {k:a} called {p}.
  {@a:에게는} {p:라는} {k:가} 있다.
  ? p: What is the {k} of {a} called? = {a:의} {k:는} 이름이 무엇인가?
  ? k: What kind of animal is {p}? = {p:는} 어떤 동물인가?
/ {p} is the {k} of {a}.
  {p:는} {a:의} {k:다}.
  ? k: What kind of animal is {p}? = {p:는} 어떤 동물인가?
  ? a: Who owns {p}? = {p:의} 주인은 누구인가?
* One day {p} was not in the {h}.
  어느 날 {p:가} {h:에} 없었다.
  ? h: Where was {p} missing one day? = 어느 날 {p:는} 어디에 없었는가?
/ One morning the {h} of {p} was empty.
  어느 날 아침 {p:의} {h:가} 비어 있었다.
* {@a} looked for the {k} in the garden and on the street.
  {@a:는} 마당과 길에서 {k:를} 찾아다녔다.
/ {@a} called the name of the {k} again and again.
  {@a:는} {k:의} 이름을 부르고 또 불렀다.
* Then {b} came and said that {k:a} was sitting near the {l}.
  그때 {b:가} 와서 {l} 근처에 {k} 한 마리가 앉아 있다고 말했다.
  ? l: Where was the {k} sitting? = {k:는} 어디 근처에 앉아 있었는가?
  ? b: Who told {a} about the {k}? = 누가 {a:에게} {k} 이야기를 해 주었는가?
/ At the {l}, {b} had seen the animal.
  {l:에서} {b:가} 그 동물을 보았다고 했다.
* {@a} took {e:a} along, because {k:s} like {e:s}.
  {k:는} {e:를} 좋아하기 때문에 {@a:는} {e:를} 가지고 갔다.
  ? e: What did {a} take along? = {a:는} 무엇을 가지고 갔는가?
/ {@a} held out {e:a} and waited.
  {@a:는} {e:를} 내밀고 기다렸다.
* {p} smelled the food and came back at once.
  {p:는} 먹이 냄새를 맡고 바로 돌아왔다.
/ Soon {p} was eating from the hand of {a}.
  곧 {p:는} {a:의} 손에서 먹이를 받아먹었다.
*0.5 Since/ADP then {@a} always closes the gate.
  그 뒤로 {@a:는} 언제나 문을 닫아 둔다.

vet: a=person p=a.pet k=a.pet.kind e=k.eats b=other q=weekday
* {p}, the {k} of {a}, did not want to eat {e:s}.
  {a:의} {k} {p:가} {e:를} 먹으려고 하지 않았다.
  ? e: What did {p} not want to eat? = {p:는} 무엇을 먹으려고 하지 않았는가?
/ On {q} {p} was sick and lay still.
  {q:에} {p:는} 아파서 가만히 누워 있었다.
  ? q: When was {p} sick? = {p:는} 언제 아팠는가?
* {@a} wrapped the {k} in a blanket.
  {@a:는} {k:를} 담요로 감쌌다.
/ {@a} was worried about the little {k}.
  {@a:는} 어린 {k:가} 걱정되었다.
* {@a} carried {p} to {b}, who knew a lot about animals.
  {@a:는} {p:를} 동물을 잘 아는 {b:에게} 데려갔다.
  ? b: Who did {a} carry {p} to? = {a:는} {p:를} 누구에게 데려갔는가?
* {b} looked into the mouth of the {k} and felt its belly.
  {b:는} {k:의} 입안을 들여다보고 배를 만져 보았다.
/ {b} listened to the heart of the {k}.
  {b:는} {k:의} 심장 소리를 들었다.
* {b} gave the {k} a bitter medicine and told {a} to wait.
  {b:는} {k:에게} 쓴 약을 먹이고 {a:에게} 기다리라고 했다.
/ {b} found a thorn in a foot and pulled it out.
  {b:는} 발에서 가시를 찾아 뽑아냈다.
* The next day {p} ate {e:s} again.
  다음 날 {p:는} 다시 {e:를} 먹었다.
/ Three days later the {k} was healthy and played again.
  사흘 뒤 {k:는} 건강해져서 다시 놀았다.

forest: a=person b=other k=wild_animal y=wild_animal t=tree z=insect c=character
* {@a} and {b} walked through the forest to watch animals.
  {@a:와} {b:는} 동물을 보러 숲속을 걸었다.
/ {@a} wanted to see {k:a} and went into the forest with {b}.
  {@a:는} {k:를} 보고 싶어서 {b:와} 숲으로 들어갔다.
  ? k: What did {a} want to see? = {a:는} 무엇을 보고 싶어 했는가?
* They hid behind {t:a} and kept quiet.
  그들은 {t} 뒤에 숨어서 조용히 있었다.
  ? t: What did they hide behind? = 그들은 무엇 뒤에 숨었는가?
/ On {t:a} they saw {z:a} first.
  그들은 먼저 {t:에서} {z:를} 보았다.
* After a while {k:a} came out of the bushes.
  잠시 뒤 {k} 한 마리가 덤불에서 나왔다.
  ? k: What came out of the bushes? = 덤불에서 무엇이 나왔는가?
/ Suddenly {k:a} stood in front of them.
  갑자기 {k} 한 마리가 그들 앞에 나타났다.
  ? k: What stood in front of them? = 그들 앞에 무엇이 나타났는가?
* The {k} was hunting, because {k:s} eat {k.eats:s}.
  {k:는} {k.eats:를} 먹기 때문에 사냥을 하고 있었다.
  ? k.eats: What do {k:s} eat? = {k:는} 무엇을 먹는가?
/ The {k} looked {c} and sniffed at the ground.
  {k:는} {c:어} 보였고 땅 냄새를 맡았다.
/ The {k} sniffed at the ground and raised its head.
  {k:는} 땅 냄새를 맡고 고개를 들었다.
* Then {y:a} made a noise and the {k} ran away.
  그때 {y:가} 소리를 내자 {k:는} 달아났다.
  ? y: What made a noise? = 무엇이 소리를 냈는가?
/ When {b} moved, the {k} ran off to the {k.habitat}.
  {b:가} 움직이자 {k:는} {k.habitat} 쪽으로 달아났다.
/ When {b} sneezed, the {k} ran off.
  {b:가} 재채기를 하자 {k:는} 달아났다.
* {@a} drew the animal in a notebook.
  {@a:는} 공책에 그 동물을 그렸다.
/ On the way back {@a} talked only about the {k}.
  돌아오는 길에 {@a:는} {k} 이야기만 했다.

farm: a=person b=other k=farm_animal y=farm_animal n=number w=weather
* {@a} helped {b} on the farm for one day.
  {@a:는} 하루 동안 농장에서 {b:를} 도왔다.
  ? b: Who did {a} help? = {a:는} 누구를 도왔는가?
/ On {w:a} day {@a} visited the farm of {b}.
  {w:은} 날에 {@a:는} {b:의} 농장을 찾아갔다.
  ? b: Whose farm did {a} visit? = {a:는} 누구의 농장을 찾아갔는가?
* In the morning {@a} fed {n} {k:s}.
  아침에 {@a:는} {k} {n} 마리에게 먹이를 주었다.
  ? k: Which animals did {a} feed? = {a:는} 어떤 동물에게 먹이를 주었는가?
  ? n: How many {k:s} did {a} feed? = {a:는} {k} 몇 마리에게 먹이를 주었는가?
/ At dawn {@a} led the {k:s} out to the field.
  새벽에 {@a:는} {k:를} 들판으로 몰고 나갔다.
* Then {@a} brushed {y:a} that/PRON was dirty.
  그다음 {@a:는} 더러워진 {y:를} 솔질해 주었다.
  ? y: Which animal did {a} brush? = {a:는} 어떤 동물을 솔질해 주었는가?
/ At noon {@a} brought fresh water to the {y:s}.
  정오에 {@a:는} {y:에게} 깨끗한 물을 가져다주었다.
*0.7 One {k} broke through the fence and ran across the field.
  {k} 한 마리가 울타리를 뚫고 들판을 가로질러 달아났다.
/ The {y} did not want to move and stood still.
  {y:는} 움직이려고 하지 않고 가만히 서 있었다.
*0.8 Together {a} and {b} drove the animals back.
  {a:와} {b:는} 함께 동물들을 몰아왔다.
* In the evening the {k:s} slept, and {a} was tired.
  저녁이 되자 {k:는} 잠들었고 {a:는} 피곤했다.
/ In the evening {b} gave {a} a jug of milk for the work.
  저녁에 {b:는} 일해 준 {a:에게} 우유 한 통을 주었다.
lake: a=person b=other k=water_animal y=water_animal n=number w=weather
* On {w:a} morning {@a} and {b} rowed out to watch {k:s}.
  {w:은} 아침에 {@a:와} {b:는} {k:를} 보러 배를 저어 나갔다.
  ? k: What did they want to watch? = 그들은 무엇을 보러 나갔는가?
/ {@a} told {b} that {k:s} live in the {k.habitat}, and they went to look.
  {@a:는} {b:에게} {k:가} {k.habitat:에} 산다고 말했고 그들은 보러 갔다.
  ? k.habitat: Where do {k:s} live? = {k:는} 어디에 사는가?
* The water was calm, and they kept quiet.
  물은 잔잔했고 그들은 조용히 있었다.
/ First they saw only {n} {y:s} far away.
  처음에는 멀리 {y} {n} 마리만 보였다.
  ? y: What did they see first? = 처음에는 무엇이 보였는가?
* Then {k:a} came up and shook the water off.
  그때 {k} 한 마리가 나타나 물을 털었다.
  ? k: What came up? = 무엇이 나타났는가?
* It was looking for {k.eats:s}, because {k:s} eat {k.eats:s}.
  {k:는} {k.eats:를} 먹기 때문에 {k.eats:를} 찾고 있었다.
  ? k.eats: What was the {k} looking for? = {k:는} 무엇을 찾고 있었는가?
* {b} pointed at the animal and whispered its name.
  {b:는} 그 동물을 가리키며 이름을 속삭였다.
/ {b} counted {n} {k:s} in all.
  {b:는} {k:를} 모두 {n} 마리 세었다.
  ? n: How many {k:s} did {b} count? = {b:는} {k:를} 몇 마리 세었는가?
* When the {k} was gone, they rowed back.
  {k:가} 사라지자 그들은 배를 저어 돌아왔다.
/ At last the {k} dived, and {a} turned the boat around.
  마침내 {k:가} 물속으로 들어가자 {a:는} 배를 돌렸다.
""",
    "animals",
)
