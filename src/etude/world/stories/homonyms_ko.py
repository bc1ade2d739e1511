"""Korean homonyms: 배 is a pear, a ship and a belly. As in English, the kinds of things around the word settle it."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
pear [sense=배.과일 lang=ko intro=no]: a=person b=other x=fruit n=number w=food*
* {@a} peeled a pear and {x:a} for {b}.
  {@a:는} {b:에게} 주려고 배와 {x:를} 깎았다.
/ {@a} bought {n} pears at the market.
  {@a:는} 시장에서 배를 {n} 개 샀다.
/ The pear tasted {w}, and {b} ate it all.
  배가 {w:어서} {b:는} 그것을 다 먹었다.
/ In autumn {@a} picks pears and {x:s}.
  가을이면 {@a:는} 배와 {x:를} 딴다.
* The juice ran over the plate.
  접시 위로 과즙이 흘렀다.
/ There/PRON was {x:a} on the plate too.
  접시에는 {x:도} 있었다.

ship [sense=배.탈것 lang=ko intro=no]: a=person b=other h=village l=cargo n=number e=weather
* {@a} went by ship to {h}.
  {@a:는} 배를 타고 {h:으로} 갔다.
/ The sailors loaded {n} {l:s} onto the ship.
  선원들은 배에 {l} {n} 개를 실었다.
/ {b} waited at the harbour for the ship from {h}.
  {b:는} 항구에서 {h:에서} 오는 배를 기다렸다.
/ The weather was {e}, so the ship could not leave.
  {e:은} 날씨 때문에 배가 떠나지 못했다.
* The waves were high.
  파도가 높았다.
/ The captain looked at the compass.
  선장은 나침반을 보았다.

belly [sense=배.몸 lang=ko intro=no]: a=person b=other d=dish r=drink
* {@a} ate too much {d} and had a pain in the belly.
  {@a:는} {d:를} 너무 많이 먹어서 배가 아팠다.
/ The belly of {b} was full after the {d}.
  {d:를} 먹고 나니 {b:는} 배가 불렀다.
/ {@a} laughed so much that {a:his} belly hurt.
  {@a:는} 너무 웃어서 배가 아팠다.
/ {b} put a warm cloth on the belly and drank {r}.
  {b:는} 배에 따뜻한 수건을 올리고 {r:를} 마셨다.
* So {a} lay down and rested.
  그래서 {a:는} 누워서 쉬었다.
/ The doctor said it was nothing bad.
  의사는 별일이 아니라고 했다.

eye [sense=눈.몸 lang=ko intro=no]: a=person b=other s=book n=number
* {@a} read {s:a} until {a:his} eyes were tired.
  {@a:는} 눈이 피곤할 때까지 {s:를} 읽었다.
/ The eyes of {b} turned red.
  {b:는} 눈이 빨개졌다.
/ {@a} closed {a:his} eyes and thought of {b}.
  {@a:는} 눈을 감고 {b:를} 생각했다.
/ Dust got into the eye of {a}, and {b} helped.
  {a:의} 눈에 먼지가 들어가서 {b:가} 도와주었다.
* Soon {@a} could see clearly again.
  곧 {@a:는} 다시 또렷이 볼 수 있었다.
/ {@a} needs new glasses.
  {@a:에게는} 새 안경이 필요하다.

snow [sense=눈.날씨 lang=ko intro=no]: a=person b=other t=tree l=landmark g=garment
* Snow fell on the {l} all night.
  밤새 {l:에} 눈이 내렸다.
/ {@a} and {b} cleared the snow in front of the {l}.
  {@a:와} {b:는} {l} 앞의 눈을 치웠다.
/ Under the snow the {t} looked white.
  {t:는} 눈에 덮여 하얗게 보였다.
/ {@a} put on {g:a} and went out into the snow.
  {@a:는} {g} 차림으로 눈을 맞으러 나갔다.
* It was a cold winter day.
  추운 겨울날이었다.
/ The children pulled a sled over the hill.
  아이들은 언덕에서 썰매를 끌었다.

horse [sense=말.동물 lang=ko intro=no]: a=person b=other e=horse_food k=farm_animal h=village
* {@a} gave the horse {e:a}.
  {@a:는} 말에게 {e:를} 주었다.
/ {b} rode a horse to {h}.
  {b:는} 말을 타고 {h:으로} 갔다.
/ In the stable stood a horse and {k:a}.
  마구간에는 말과 {k:가} 있었다.
/ {@a} brushed the horse that/PRON {b} had sold.
  {@a:는} {b:가} 판 말을 빗겨 주었다.
* It ran over the field like/ADP the wind.
  그것은 바람처럼 들판을 달렸다.
/ {k:s} grazed beside it.
  그 옆에서 {k:가} 풀을 뜯었다.

speech [sense=말.언어 lang=ko intro=no]: a=person b=other c=character m=person*
* {b} did not believe the words of {a}.
  {b:는} {a:의} 말을 믿지 않았다.
/ People say that {b} is {m}, but {a} does not believe such words.
  사람들은 {b:가} {m:다고} 하지만 {a:는} 그런 말을 믿지 않는다.
/ After a long silence {@a} began to speak.
  긴 침묵 끝에 {@a:는} 말을 꺼냈다.
/ {b} is {c} and speaks slowly.
  {b:는} {c:고} 말이 느리다.
* Everybody listened quietly.
  모두가 조용히 들었다.
/ {b} answered in a low voice.
  {b:는} 낮은 목소리로 대답했다.

night [sense=밤.시간 lang=ko intro=no]: a=person b=other k=wild_animal m=music i=instrument
* At night {@a} heard {k:a} in the forest.
  밤에 {@a:는} 숲에서 {k} 소리를 들었다.
/ {@a} worked at night with {b}.
  {@a:는} {b:와} 밤에 일했다.
/ In the night {b} played {m:a} on the {i}.
  밤에 {b:는} {i:로} {m:을} 연주했다.
/ The night was long, and {a} could not sleep.
  밤이 길었고 {a:는} 잠을 이루지 못했다.
* The stars shone over the roofs.
  지붕 위로 별이 빛났다.
/ In the morning {a} was tired.
  아침에 {a:는} 피곤했다.

chestnut [sense=밤.열매 lang=ko intro=no]: a=person b=other x=fruit n=number d=dish
* {@a} roasted chestnuts for {b}.
  {@a:는} {b:에게} 주려고 밤을 구웠다.
/ Under the tree lay {n} chestnuts and {x:s}.
  나무 밑에 밤 {n} 톨과 {x:가} 떨어져 있었다.
/ {@a} put chestnuts and {x:s} into a basket.
  {@a:는} 바구니에 밤과 {x:를} 담았다.
/ {b} cooked {d:a} with chestnuts.
  {b:는} 밤을 넣어 {d:를} 만들었다.
* They were sweet and hot.
  그것은 달고 뜨거웠다.
/ {@a} took the shells off with a knife.
  {@a:는} 칼로 껍데기를 벗겼다.

bridge [sense=다리.건물 lang=ko intro=no]: a=person b=other v=road_vehicle h=village r=street
* {@a} crossed the bridge with {v:a}.
  {@a:는} {v:로} 다리를 건넜다.
/ On the way to {h} there/PRON is an old bridge.
  {h:으로} 가는 길에 오래된 다리가 있다.
/ The masons built a bridge between {r} and the market.
  석공들은 {r:과} 시장 사이에 다리를 놓았다.
/ {b} waited for {a} on the bridge.
  {b:는} 다리 위에서 {a:를} 기다렸다.
* Below it the river was deep.
  그 아래로 흐르는 강은 깊었다.
/ In the flood it was closed for a week.
  홍수가 나서 일주일 동안 막혀 있었다.

leg [sense=다리.몸 lang=ko intro=no]: a=person b=other k=farm_animal g=furniture n=number
* {@a} fell over {g:a} and hurt {a:his} leg.
  {@a:는} {g:에} 걸려 넘어져 다리를 다쳤다.
/ The leg of the {k} was weak.
  {k:는} 다리가 약했다.
/ After {n} hours on foot the legs of {b} were tired.
  {n} 시간을 걷고 나니 {b:는} 다리가 아팠다.
/ {b} bandaged the leg of the {k}.
  {b:는} {k:의} 다리에 붕대를 감았다.
* It took a month to heal.
  낫는 데 한 달이 걸렸다.
/ {a} needed a stick to walk.
  {a:는} 걸을 때 지팡이가 필요했다.

apple [sense=사과.과일 lang=ko intro=no]: a=person b=other x=fruit n=number d=dish
* {@a} picked {n} apples and {x:s} in the garden.
  {@a:는} 정원에서 사과 {n} 개와 {x:를} 땄다.
/ {b} baked {d:a} with an apple.
  {b:는} 사과를 넣어 {d:를} 만들었다.
/ {@a} cut an apple for {b}.
  {@a:는} {b:에게} 사과를 깎아 주었다.
/ In the basket lay an apple and {x:a}.
  바구니에는 사과와 {x:가} 들어 있었다.
* It was red and sweet.
  그것은 빨갛고 달콤했다.
/ The tree stands behind the house.
  그 나무는 집 뒤에 있다.

apology [sense=사과.말 lang=ko intro=no]: a=person b=other g=furniture t=treasure q=weekday
* {@a} had broken the {g} of {b} and made an apology.
  {@a:는} {b:의} {g:를} 망가뜨려서 사과를 했다.
/ {b} accepted the apology of {a}.
  {b:는} {a:의} 사과를 받아 주었다.
/ On {q} {@a} wrote {b} a letter of apology.
  {q:에} {@a:는} {b:에게} 사과 편지를 썼다.
/ Because of the lost {t}, {b} waited for an apology.
  잃어버린 {t} 때문에 {b:는} 사과를 기다렸다.
* After that/PRON they were friends again.
  그 뒤로 그들은 다시 친구가 되었다.
/ {b} was not angry any more.
  {b:는} 더는 화를 내지 않았다.

bee [sense=벌.동물 lang=ko intro=no]: a=person b=other z=flower i=insect
* A bee flew from the {z} to the {i}.
  벌이 {z:에서} 날아올라 {i} 쪽으로 갔다.
/ {@a} was stung by a bee beside the {z:s}.
  {@a:는} {z} 옆에서 벌에 쏘였다.
/ {b} showed {a} a bee on {z:a}.
  {b:는} {a:에게} {z:에} 앉은 벌을 보여 주었다.
/ In summer bees and {i:s} visit/VERB the garden.
  여름이면 벌과 {i:가} 정원을 찾아온다.
* It was collecting honey.
  그것은 꿀을 모으고 있었다.
/ Its wings hummed in the air.
  날개가 공중에서 윙윙거렸다.

punishment [sense=벌.처벌 lang=ko intro=no]: a=person b=other t=treasure c=chore g=furniture
* {@a} stole {t:a} and got a punishment.
  {@a:는} {t:를} 훔쳐서 벌을 받았다.
/ As a punishment {@a} had to do {c}.
  {@a:는} 벌로 {c:를} 해야 했다.
/ The judge gave {b} a hard punishment.
  판사는 {b:에게} 무거운 벌을 내렸다.
/ {b} broke {g:a} and was afraid of the punishment.
  {b:는} {g:를} 망가뜨리고 벌을 받을까 봐 무서웠다.
* It was just/ADJ, said the people.
  사람들은 그것이 마땅하다고 말했다.
/ After that/PRON nobody did it again.
  그 뒤로는 아무도 그런 일을 하지 않았다.

tea [sense=차.음료 lang=ko intro=no]: a=person b=other d=dish u=cup i=sweet
* {@a} poured tea into the {u} of {b}.
  {@a:는} {b:의} {u:에} 차를 따랐다.
/ {b} drank tea with {i}.
  {b:는} {i:를} 넣은 차를 마셨다.
/ {@a} served tea with {d:a}.
  {@a:는} {d:와} 차를 내왔다.
/ The tea was too hot for {a}.
  차가 {a:에게는} 너무 뜨거웠다.
* It smelled good.
  향기가 좋았다.
/ They talked until the {u} was empty.
  그들은 {u:가} 빌 때까지 이야기했다.

car [sense=차.탈것 lang=ko intro=no]: a=person b=other h=village l=landmark o=colour
* {@a} drove to {h} by car.
  {@a:는} 차를 몰고 {h:으로} 갔다.
/ {b} parked the {o} car beside the {l}.
  {b:는} {o:은} 차를 {l} 옆에 세웠다.
/ On the way to the {l} the car broke down.
  {l:로} 가는 길에 차가 고장 났다.
/ {@a} and {b} washed the car.
  {@a:와} {b:는} 차를 닦았다.
* The engine made a strange noise.
  엔진에서 이상한 소리가 났다.
/ The road was empty and dry.
  길은 비어 있고 말라 있었다.

grass [sense=풀.식물 lang=ko intro=no]: a=person b=other k=farm_animal u=digging_tool z=flower
* The {k} ate grass in the meadow.
  {k:가} 들판에서 풀을 먹었다.
/ {@a} cut the grass with {u:a}.
  {@a:는} {u:로} 풀을 베었다.
/ Between the grass {z:s} bloomed.
  풀 사이에 {z:가} 피었다.
/ {b} sat in the grass and called the {k}.
  {b:는} 풀 위에 앉아 {k:를} 불렀다.
* It had rained, and everything was green.
  비가 와서 모든 것이 푸르렀다.
/ In summer it grows fast.
  여름에는 그것이 빨리 자란다.

glue [sense=풀.도구 lang=ko intro=no]: a=person b=other e=document g=toy y=writing
* {@a} pasted {e:a} to the wall with glue.
  {@a:는} 풀로 {e:를} 벽에 붙였다.
/ {@a} repaired {g:a} with glue.
  {@a:는} 풀로 {g:를} 고쳤다.
/ {b} put glue on the back of {y:a}.
  {b:는} {y} 뒷면에 풀을 발랐다.
/ There/PRON was glue on the hands of {a}.
  {a:의} 손에 풀이 묻어 있었다.
* It was dry after an hour.
  그것은 한 시간 뒤에 말랐다.
/ {b} brought paper and scissors too.
  {b:는} 종이와 가위도 가져왔다.

bottle [sense=병.그릇 lang=ko intro=no]: a=person b=other r=drink s=spot
* {@a} filled the bottle with {r}.
  {@a:는} 병에 {r:를} 담았다.
/ There/PRON was a bottle in the {s}.
  {s:에} 병이 하나 있었다.
/ {b} opened a bottle and poured {r}.
  {b:는} 병을 열어 {r:를} 따랐다.
/ {@a} found an old bottle in the {s}.
  {@a:는} {s:에서} 낡은 병을 발견했다.
* It was made of green glass.
  그것은 푸른 유리로 되어 있었다.
/ Not a drop was spilled.
  한 방울도 흘리지 않았다.

illness [sense=병.몸 lang=ko intro=no]: a=person b=other k=farm_animal n=number q=weekday
* {@a} lay in bed with an illness for {n} weeks.
  {@a:는} 병으로 {n} 주 동안 누워 있었다.
/ The illness of the {k} was dangerous.
  {k:의} 병은 위험했다.
/ {b} cured the illness of {a} with herbs.
  {b:는} 약초로 {a:의} 병을 고쳤다.
/ On {q} the illness of {b} began.
  {q:에} {b:의} 병이 시작되었다.
* The fever was high.
  열이 높았다.
/ The doctor came every day.
  의사가 날마다 왔다.
""",
    "",
)
