"""Small events for sentence pairs. Each has several ways to be told (paraphrases of each other), and hypotheses
that follow from it. The slot before a hypothesis decides it: put another word there in the telling, and the
hypothesis is false. `ab` decides by who does it to whom; `x>vegetable` puts a vegetable in place of x. Events of
one topic may bear on each other; those of two topics never do."""

from __future__ import annotations

from etude.world.notation import read_scripts

EVENTS = read_scripts(
    """
travel [topic=travel]: a=person b=other h=village v=public_vehicle q=weekday
* On {q} {a} went to {h} by {v}.
  {q:에} {a:는} {v:를} 타고 {h:으로} 갔다.
  ? h: {a} travelled to {h}. = {a:는} {h:으로} 여행했다.
  ? q: {a} left on {q}. = {a:는} {q:에} 떠났다.
  ? v: {a} used {v:a}. = {a:는} {v:를} 이용했다.
/ {a} took {v:a} to {h} on {q}.
  {a:는} {q:에} {h:으로} 가는 {v:를} 탔다.

sale [topic=having]: a=person b=other g=furniture n=number
* {a} sold {b} {g:a} for {n} coins.
  {a:는} {b:에게} {g:를} 동전 {n} 닢에 팔았다.
  ? ab: {b} bought {g:a}. = {b:는} {g:를} 샀다.
  ? n: The {g} cost {n} coins. = {g} 값은 동전 {n} 닢이었다.
  ? ab: {a} got money from {b}. = {a:는} {b:에게서} 돈을 받았다.
/ {b} paid {a} {n} coins for {g:a}.
  {b:는} {a:에게} 동전 {n} 닢을 주고 {g:를} 샀다.

putting [topic=having]: a=person b=other t=treasure s=spot
* {a} put the {t} into the {s}, and there it stays.
  {a:는} {t:를} {s:에} 넣었고 그것은 그대로 있다.
  ? s: The {t} of {a} is in the {s}. = {a:의} {t:는} {s:에} 있다.
  ? t: There is {t:a} in the {s}. = {s:에는} {t:가} 있다.
/ In the {s} of {a} there is now only {t:a}.
  이제 {a:의} {s:에는} {t:만} 있다.

painting [topic=having]: a=person b=other g=furniture o=colour
* {a} painted the {g} {o} for {b}.
  {a:는} {b:를} 위해 {g:를} {o:게} 칠했다.
  ? o: The {g} is {o} now. = 이제 {g:는} {o:다}.
  ? g: {a} put paint on the {g}. = {a:는} {g:에} 칠을 했다.
/ For {b}, {a} gave the {g} {o:a} coat of paint.
  {b:를} 위해 {a:는} {o:은} 페인트로 {g:를} 칠했다.

cooking [topic=having]: a=person b=other d=dish
* For dinner {a} made nothing but {d:one} for {b}.
  저녁으로 {a:는} {b:에게} {d:만} 만들어 주었다.
  ? d: In the evening {b} ate {d:one}. = 저녁에 {b:는} {d:를} 먹었다.
  ? ab: {a} cooked for {b}. = {a:는} {b:에게} 요리를 해 주었다.
/ In the evening {b} got only {d:one} from {a}.
  저녁에 {b:는} {a:에게서} {d:만} 얻어먹었다.

contest [topic=contest]: a=person b=other j=game q=weekday
* On {q} {a} won the {j} match against {b}.
  {q:에} {a:는} {b:와} 벌인 {j} 시합에서 이겼다.
  ? ab: {b} lost the {j} match. = {b:는} {j} 시합에서 졌다.
  ? q: The match was on {q}. = 시합은 {q:에} 있었다.
  ? j: {a} and {b} played {j}. = {a:와} {b:는} {j:를} 했다.
/ {b} lost to {a} in {j:a} match on {q}.
  {b:는} {q:에} {j} 시합에서 {a:에게} 졌다.

teaching [topic=teaching]: a=person b=other i=instrument
* {a} taught {b} the {i}.
  {a:는} {b:에게} {i:를} 가르쳤다.
  ? ab: {b} learned something from {a}. = {b:는} {a:에게서} 무언가를 배웠다.
  ? i: {b} can play the {i}. = {b:는} {i:를} 연주할 수 있다.
  ? ab: {a} was the teacher of {b}. = {a:는} {b:의} 선생님이었다.
/ {b} took {i} lessons with {a}.
  {b:는} {a:에게서} {i} 수업을 받았다.

giving [topic=having]: a=person b=other t=treasure
* {a} gave {b} {t:a} as a present.
  {a:는} {b:에게} {t:를} 선물했다.
  ? ab: {b} received a present from {a}. = {b:는} {a:에게서} 선물을 받았다.
  ? t: Now {b} has {t:a}. = 이제 {b:에게는} {t:가} 있다.
/ {b} got {t:a} from {a} as a present.
  {b:는} {a:에게서} {t:를} 선물로 받았다.

ages [topic=ages]: a=person b=other
* {a} is older than {b}.
  {a:는} {b:보다} 나이가 많다.
  ? ab: {b} is younger than {a}. = {b:는} {a:보다} 어리다.
  ? ab: {a} was born before {b}. = {a:는} {b:보다} 먼저 태어났다.
/ {b} is not as old as {a}.
  {b:는} {a:만큼} 나이가 많지 않다.

herds [topic=herds]: a=person b=other k=farm_animal n=few m=many
* {a} has {n} {k:s}, and {b} has {m}.
  {a:에게는} {k:가} {n} 마리 있고 {b:에게는} {m} 마리 있다.
  ? ab: {b} has more {k:s} than {a}. = {b:에게는} {a:보다} {k:가} 더 많다.
  ? n: {a} owns {n} animals. = {a:는} 동물 {n} 마리를 기른다.
/ There are {n} {k:s} on the farm of {a} and {m} on the farm of {b}.
  {a:의} 농장에는 {k:가} {n} 마리, {b:의} 농장에는 {m} 마리 있다.

praise [topic=opinion]: a=person b=other d=dish w=food+
* {a} ate the {d} of {b} and called it {w}.
  {a:는} {b:가} 만든 {d:를} 먹고 {w:다고} 했다.
  ? w>food-: {a} liked the {d}. = {a:는} {d:를} 마음에 들어 했다.
  ? w>food-: The {d} of {b} was good. = {b:가} 만든 {d:는} 훌륭했다.
/ The {d} that {b} made was {w}, said {a}.
  {b:가} 만든 {d:가} {w:다고} {a:는} 말했다.

blame [topic=opinion]: a=person b=other d=dish w=food-
* {a} ate the {d} of {b} and called it {w}.
  {a:는} {b:가} 만든 {d:를} 먹고 {w:다고} 했다.
  ? w>food+: {a} did not like the {d}. = {a:는} {d:를} 마음에 들어 하지 않았다.
  ? w>food+: The {d} of {b} was bad. = {b:가} 만든 {d:는} 형편없었다.
/ The {d} that {b} made was {w}, said {a}.
  {b:가} 만든 {d:가} {w:다고} {a:는} 말했다.

kindness [topic=opinion]: a=person b=other w=person+
* {b} thinks that {a} is {w}.
  {b:는} {a:가} {w:다고} 생각한다.
  ? w>person-: {b} likes {a}. = {b:는} {a:를} 좋게 본다.
  ? w>person-: {b} praises {a}. = {b:는} {a:를} 칭찬한다.
/ In the eyes of {b}, {a} is {w}.
  {b:가} 보기에 {a:는} {w:다}.

rudeness [topic=opinion]: a=person b=other w=person-
* {b} thinks that {a} is {w}.
  {b:는} {a:가} {w:다고} 생각한다.
  ? w>person+: {b} dislikes {a}. = {b:는} {a:를} 나쁘게 본다.
  ? w>person+: {b} complains about {a}. = {b:는} {a:에} 대해 불평한다.
/ In the eyes of {b}, {a} is {w}.
  {b:가} 보기에 {a:는} {w:다}.

calling [topic=calling]: a=person b=other t=trade
* Every day {a} {t.does:s} {t.makes:s}, and {b} helps.
  {a:는} 날마다 {t.makes:를} {t.does:고} {b:는} 그 일을 돕는다.
  ? t: {a} works as {t:a}. = {a:는} {t:로} 일한다.
  ? t: {a} needs {t.tool:a} for work. = {a:는} 일할 때 {t.tool:가} 필요하다.
/ The work of {a}, with the help of {b}, is to {t.does} {t.makes:s}.
  {b:의} 도움을 받아 {t.makes:를} {t.does:는} 것이 {a:의} 일이다.

fruit basket [topic=having]: a=person b=other x=fruit
* {a} bought nothing but {x:s} for {b}.
  {a:는} {b:에게} 주려고 {x:만} 샀다.
  ? x>vegetable: {a} bought fruit. = {a:는} 과일을 샀다.
  ? x>flower: {b} can eat what {a} bought. = {a:가} 산 것은 {b:가} 먹을 수 있다.
/ What {a} bought for {b} was {x:s}, nothing else.
  {a:가} {b:에게} 주려고 산 것은 오직 {x:뿐이었다}.

vegetable basket [topic=having]: a=person b=other x=vegetable
* {a} bought nothing but {x:s} for {b}.
  {a:는} {b:에게} 주려고 {x:만} 샀다.
  ? x>fruit: {a} bought vegetables. = {a:는} 채소를 샀다.
  ? x>flower: {b} can eat what {a} bought. = {a:가} 산 것은 {b:가} 먹을 수 있다.
/ What {a} bought for {b} was {x:s}, nothing else.
  {a:가} {b:에게} 주려고 산 것은 오직 {x:뿐이었다}.

flower bunch [topic=having]: a=person b=other x=flower
* {a} bought nothing but {x:s} for {b}.
  {a:는} {b:에게} 주려고 {x:만} 샀다.
  ? x>fruit: {b} cannot eat what {a} bought. = {a:가} 산 것은 {b:가} 먹을 수 없다.
  ? x>vegetable: {a} bought flowers. = {a:는} 꽃을 샀다.
/ What {a} bought for {b} was {x:s}, nothing else.
  {a:가} {b:에게} 주려고 산 것은 오직 {x:뿐이었다}.

sighting [topic=watching]: a=person b=other k=water_animal
* {a} and {b} saw nothing but {k:s} that day.
  그날 {a:와} {b:는} {k:만} 보았다.
  ? k>insect: {a} saw animals that live by the water. = {a:는} 물가에 사는 동물을 보았다.
  ? k>insect: {b} did not see any insect. = {b:는} 곤충을 보지 못했다.
/ That day {k:s} were all that {a} and {b} saw.
  그날 {a:와} {b:가} 본 것은 {k:뿐이었다}.

bug hunt [topic=watching]: a=person b=other k=insect
* {a} and {b} saw nothing but {k:s} that day.
  그날 {a:와} {b:는} {k:만} 보았다.
  ? k>water_animal: {a} saw insects. = {a:는} 곤충을 보았다.
  ? k>water_animal: {b} saw only very small animals. = {b:는} 아주 작은 동물만 보았다.
/ That day {k:s} were all that {a} and {b} saw.
  그날 {a:와} {b:가} 본 것은 {k:뿐이었다}.

music room [topic=having]: a=person b=other i=instrument
* {a} brought {b} {i:a} and nothing else.
  {a:는} {b:에게} {i:만} 가져다주었다.
  ? i>furniture: {b} can make music now. = 이제 {b:는} 음악을 연주할 수 있다.
  ? i>furniture: {a} brought an instrument. = {a:는} 악기를 가져왔다.
/ The only thing that {b} got from {a} was {i:a}.
  {b:가} {a:에게서} 받은 것은 {i:뿐이었다}.

new house [topic=having]: a=person b=other i=furniture
* {a} brought {b} {i:a} and nothing else.
  {a:는} {b:에게} {i:만} 가져다주었다.
  ? i>instrument: {a} brought something for the house. = {a:는} 집에 둘 물건을 가져왔다.
  ? i>instrument: {b} cannot make music with it. = {b:는} 그것으로 음악을 연주할 수 없다.
/ The only thing that {b} got from {a} was {i:a}.
  {b:가} {a:에게서} 받은 것은 {i:뿐이었다}.
""",
    "",
)
