"""Travel: a journey to a village, a missed train, fog on the road, a trip to the place of birth."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
journey: a=person b=other h=village v=vehicle u=luggage e=weather w=event* f=feeling*
* {@a} and {b} planned a journey to {h}.
  {@a:와} {b:는} {h:으로} 가는 여행을 계획했다.
  ? h: Where did they plan to go? = 그들은 어디로 가는 여행을 계획했는가?
/ {@a} had never seen {h} and wanted to travel there with {b}.
  {@a:는} {h:에} 가 본 적이 없어서 {b:와} 함께 여행하고 싶었다.
  ? h: Where did {a} want to travel? = {a:는} 어디로 여행하고 싶었는가?
* The night before/ADV, {@a} packed {u:a} and a warm coat.
  전날 밤 {@a:는} {u:와} 따뜻한 외투를 챙겼다.
  ? u: What did {a} pack with the coat? = {a:는} 외투와 함께 무엇을 챙겼는가?
* In the morning they left {a.home} by {v}.
  아침에 그들은 {v:를} 타고 {a.home:을} 떠났다.
  ? v: How did they leave? = 그들은 무엇을 타고 떠났는가?
/ They took {v:a} and set out early.
  그들은 {v:를} 타고 일찍 길을 나섰다.
  ? v: What did they take? = 그들은 무엇을 탔는가?
* The weather was {e} and the way was long.
  {e:은} 날씨였고 길은 멀었다.
/ After some hours they saw the roofs of {h}.
  몇 시간 뒤 {h:의} 지붕들이 보였다.
* In {h} they visited the famous {h.famous}.
  {h:에서} 그들은 유명한 {h.famous:를} 구경했다.
  ? h.famous: What did they visit in {h}? = 그들은 {h:에서} 무엇을 구경했는가?
/ {h} is known for its {h.famous}, and they went there first.
  {h:는} {h.famous:로} 유명해서 그들은 먼저 그곳에 갔다.
  ? h.famous: What is {h} known for? = {h:는} 무엇으로 유명한가?
* The trip was {w}.
  여행은 {w:었다}.
/ {b} said that the journey was {w}.
  {b:는} 여행이 {w:다고} 말했다.
*0.7 On the way back {a} was {f}.
  돌아오는 길에 {a:는} {f:었다}.

missed train: a=person b=other h=village n=number p=minutes u=luggage
* {@a} wanted to take the train to {h}.
  {@a:는} {h:으로} 가는 기차를 타려고 했다.
  ? h: Where did {a} want to go by train? = {a:는} 기차를 타고 어디로 가려고 했는가?
/ The train to {h} was leaving soon, and {@a} was late/ADJ.
  {h:으로} 가는 기차가 곧 떠나는데 {@a:는} 늦었다.
  ? h: Where was the train going? = 기차는 어디로 가는 것이었는가?
* But {@a} had forgotten {u:a} and ran back home.
  그런데 {@a:는} {u:를} 두고 와서 집으로 다시 뛰어갔다.
  ? u: What had {a} forgotten? = {a:는} 무엇을 두고 왔는가?
/ {@a} looked for {u:a} and lost {p} minutes.
  {@a:는} {u:를} 찾느라 {p} 분을 허비했다.
* At the station the train was already gone.
  역에 도착하니 기차는 이미 떠나고 없었다.
/ When {@a} reached the platform, the last wagon rolled away.
  {@a:가} 승강장에 도착했을 때 마지막 칸이 멀어지고 있었다.
* {b}, another passenger, had missed it too.
  다른 승객인 {b:도} 기차를 놓쳤다.
  ? b: Who else missed the train? = 또 누가 기차를 놓쳤는가?
/ On the bench sat {b}, who was waiting as well.
  긴 의자에는 {b:도} 앉아 기다리고 있었다.
* They waited for {n} hours and played cards.
  그들은 {n} 시간 동안 기다리며 카드놀이를 했다.
  ? n: How many hours did they wait? = 그들은 몇 시간 동안 기다렸는가?
* At last another train came and took them to {h}.
  마침내 다른 기차가 와서 그들을 {h:으로} 데려다주었다.
/ In the evening they arrived in {h} together.
  저녁에 그들은 함께 {h:에} 도착했다.

fog: a=person b=other h=village g=sight v=road_vehicle
* {@a} was on the way from {h} when fog came down.
  {@a:가} {h:에서} 돌아오는 길에 안개가 내려앉았다.
  ? h: Where did {a} come from? = {a:는} 어디에서 돌아오고 있었는가?
/ Between {h} and the town {@a} lost the road in the fog.
  {h:와} 마을 사이에서 {@a:는} 안개 때문에 길을 잃었다.
* {@a} stopped the {v} and looked at the map.
  {@a:는} {v:를} 세우고 지도를 보았다.
  ? v: What did {a} stop? = {a:는} 무엇을 세웠는가?
/ {@a} could not see the signs and drove slowly.
  {@a:는} 표지판이 보이지 않아 천천히 갔다.
* After an hour {@a} saw the {g} and knew where {a:he} was.
  한 시간 뒤 {@a:는} {g:를} 보고 어디인지 알았다.
  ? g: What did {a} see after an hour? = 한 시간 뒤 {a:는} 무엇을 보았는가?
* A light came closer: it was {b} with a lantern.
  불빛이 다가왔는데, 등불을 든 {b:였다}.
  ? b: Who came with a lantern? = 누가 등불을 들고 왔는가?
/ There {a} met {b}, who knew the way.
  그곳에서 {a:는} 길을 아는 {b:를} 만났다.
  ? b: Who knew the way? = 누가 길을 알고 있었는가?
* {b} showed {a} the road to {a.home}.
  {b:는} {a:에게} {a.home:으로} 가는 길을 알려 주었다.
  ? a.home: Which road did {b} show {a}? = {b:는} 어디로 가는 길을 알려 주었는가?
* At midnight {a} was home at last.
  한밤중에 {a:는} 드디어 집에 도착했다.
/ Then the fog lifted and the rest of the journey was easy.
  그러자 안개가 걷히고 남은 길은 수월했다.

birthplace: a=person b=other v=public_vehicle l=landmark
* {@a} was born in {a.village} and wanted to see it again.
  {@a:는} {a.village:에서} 태어났고 그곳을 다시 보고 싶었다.
  ? a.village: What did {a} want to see again? = {a:는} 어디를 다시 보고 싶었는가?
/ After many years {@a} travelled to {a.village}, where {a:he} was born.
  여러 해 만에 {@a:는} 자신이 태어난 {a.village:으로} 여행을 떠났다.
  ? a.village: Where was {a} born? = {a:는} 어디에서 태어났는가?
* {@a} bought a ticket and got on {v:a}.
  {@a:는} 표를 사서 {v:에} 올랐다.
  ? v: What did {a} get on? = {a:는} 무엇에 올랐는가?
* On the way {@a} thought of the {a.village.famous} there.
  가는 길에 {@a:는} 그곳의 {a.village.famous:를} 떠올렸다.
  ? a.village.famous: What did {a} think of on the way? = 가는 길에 {a:는} 무엇을 떠올렸는가?
/ The road went over a bridge and through a valley.
  길은 다리를 건너 골짜기로 이어졌다.
* The {a.village.famous} was still there, but the {l} was new.
  {a.village.famous:는} 그대로 있었지만 {l:는} 새로 생긴 것이었다.
  ? l: What was new? = 무엇이 새로 생겼는가?
* An old neighbour, {b}, knew {a} at once.
  옛 이웃인 {b:는} {a:를} 바로 알아보았다.
  ? b: Who knew {a} at once? = 누가 {a:를} 바로 알아보았는가?
/ {b} was standing at the gate and waved.
  {b:가} 문 앞에 서서 손을 흔들었다.
* The next day {a} travelled back to {a.home}.
  다음 날 {a:는} {a.home:으로} 돌아왔다.
  ? a.home: Where did {a} travel back to? = {a:는} 어디로 돌아왔는가?
""",
    "travel",
)
