"""Food: cooking a dinner, a meal at the inn, baking, a picnic."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
dinner: a=person b=other d=dish v=vegetable i=ingredient w=food* f=feeling*
* One evening {@a} wanted to cook {d:a} for {b}.
  어느 날 저녁 {@a:는} {b:를} 위해 {d:를} 만들고 싶었다.
  ? d: What did {a} want to cook? = {a:는} 무엇을 만들고 싶었는가?
  ? b: Who did {a} want to cook for? = {a:는} 누구를 위해 요리하고 싶었는가?
/ {@a} invited {b} to dinner and decided to make {d:a}.
  {@a:는} {b:를} 저녁 식사에 초대하고 {d:를} 만들기로 했다.
  ? d: What did {a} decide to make? = {a:는} 무엇을 만들기로 했는가?
  ? b: Who did {a} invite to dinner? = {a:는} 저녁 식사에 누구를 초대했는가?
* First {@a} washed the {v:s} and cut {v:them} into pieces.
  먼저 {@a:는} {v:를} 씻어서 잘게 썰었다.
  ? v: What did {a} wash? = {a:는} 무엇을 씻었는가?
/ First {@a} peeled the {v:s} in the kitchen.
  먼저 {@a:는} 부엌에서 {v:를} 다듬었다.
  ? v: What did {a} peel? = {a:는} 무엇을 다듬었는가?
* Then {@a} heated a pot and put the {v:s} in/ADV.
  그다음 {@a:는} 냄비를 데우고 {v:를} 넣었다.
/ Then {@a} cooked the {v:s} in a hot pan.
  그다음 {@a:는} 뜨거운 프라이팬에 {v:를} 볶았다.
*0.8 After that/PRON {@a} added {i:a} and stirred slowly.
  그 뒤에 {@a:는} {i:를} 넣고 천천히 저었다.
  ? i: What did {a} add? = {a:는} 무엇을 넣었는가?
/ After that/PRON {@a} mixed in {i:a}.
  그 뒤에 {@a:는} {i:를} 섞었다.
  ? i: What did {a} mix in? = {a:는} 무엇을 섞었는가?
* When the {d} was ready, {@a} carried it to the table.
  {d:가} 다 되자 {@a:는} 그것을 식탁으로 가져갔다.
/ At last the {d} was done and {@a} called {b} to the table.
  마침내 {d:가} 완성되었고 {@a:는} {b:를} 식탁으로 불렀다.
* {b} tasted the {d} and said it was {w}.
  {b:는} {d:를} 맛보고 {w:다고} 말했다.
/ {b} took a bite and found the {d} {w}.
  {b:는} 한 입 먹어 보았는데 {d:는} {w:었다}.
*0.7 That/DET night {@a} felt {f}.
  그날 밤 {@a:는} {f:었다}.
/ After the meal {@a} was {f}.
  식사가 끝난 뒤 {@a:는} {f:었다}.

inn: a=person b=other d=dish r=drink w=food* p=person* f=feeling*
* {@a} was hungry and went to the inn with {b}.
  {@a:는} 배가 고파서 {b:와} 함께 여관 식당에 갔다.
/ At noon {@a} met {b} at the inn.
  정오에 {@a:는} 여관 식당에서 {b:를} 만났다.
  ? b: Who did {a} meet at the inn? = {a:는} 여관 식당에서 누구를 만났는가?
*0.7 {@a} sat down by the window and read the menu.
  {@a:는} 창가에 앉아서 차림표를 읽었다.
/ The waiter brought the menu and a glass of water.
  종업원이 차림표와 물 한 잔을 가져왔다.
* {@a} ordered {d:a}, and {b} asked for {r:a}.
  {@a:는} {d:를} 주문했고 {b:는} {r:를} 시켰다.
  ? d: What did {a} order? = {a:는} 무엇을 주문했는가?
  ? r: What did {b} ask for? = {b:는} 무엇을 시켰는가?
/ {@a} chose {d:a} with {r:a}.
  {@a:는} {d:와} {r:를} 골랐다.
  ? d: What did {a} choose? = {a:는} 어떤 음식을 골랐는가?
* After a while the waiter served the {d}.
  잠시 뒤 종업원이 {d:를} 내왔다.
/ Soon the {d} came from the kitchen.
  곧 부엌에서 {d:가} 나왔다.
* The {d} was {w}, and the waiter was {p}.
  {d:는} {w:었고} 종업원은 {p:었다}.
/ {@a} thought that the {d} was {w}.
  {@a:는} {d:가} {w:다고} 생각했다.
* In the end {@a} paid the bill and walked home to {a.home}.
  마지막으로 {@a:는} 계산을 하고 {a.home:에} 있는 집으로 걸어갔다.
  ? a.home: Where did {a} walk home to? = {a:는} 어디에 있는 집으로 걸어갔는가?
/ They paid for the meal and left the inn.
  그들은 음식값을 내고 여관을 나왔다.
*0.5 On the way {@a} was {f}.
  돌아가는 길에 {@a:는} {f:었다}.

baking: a=person c=a.friend x=fruit i=ingredient j=ingredient t=utensil
* {@a} picked up a basket of {x:s} and wanted to bake a cake.
  {@a:는} {x} 한 바구니를 보고 케이크를 굽고 싶어졌다.
  ? x: What was in the basket of {a}? = {a:의} 바구니에는 무엇이 있었는가?
/ There/PRON were many ripe {x:s} in the kitchen, so {@a} planned a cake.
  부엌에 잘 익은 {x:가} 많아서 {@a:는} 케이크를 굽기로 했다.
  ? x: What was there in the kitchen? = 부엌에는 무엇이 많았는가?
* {@a} took {t:a}, {i:a} and {j:a} from the cupboard.
  {@a:는} 찬장에서 {t:와} {i:와} {j:를} 꺼냈다.
  ? t: Which tool did {a} take from the cupboard? = {a:는} 찬장에서 어떤 도구를 꺼냈는가?
/ {@a} looked for {i:a} and {j:a} and found a clean {t} too.
  {@a:는} {i:와} {j:를} 찾았고 깨끗한 {t:도} 찾아냈다.
* {@a} mixed {i:a} with {j:a} until the dough was smooth.
  {@a:는} 반죽이 부드러워질 때까지 {i:와} {j:를} 섞었다.
/ Slowly {@a} stirred the dough with a spoon.
  {@a:는} 숟가락으로 반죽을 천천히 저었다.
* Then {@a} laid the {x:s} on top and put the cake into the oven.
  그다음 {@a:는} 위에 {x:를} 얹고 케이크를 오븐에 넣었다.
* After an hour the cake was golden and sweet.
  한 시간이 지나자 케이크는 노릇노릇하고 달콤하게 구워졌다.
/ After half an hour the whole house smelled of {x:s} and sugar.
  삼십 분이 지나자 온 집에 {x:와} 설탕 냄새가 퍼졌다.
* {@a} gave the first/ADJ slice to {c}, a good friend.
  {@a:는} 첫 조각을 친한 친구인 {c:에게} 주었다.
  ? c: Who got the first slice? = 첫 조각은 누가 받았는가?
/ {@a} shared the cake with {a.friend}.
  {@a:는} {a.friend:와} 케이크를 나누어 먹었다.

picnic: a=person b=other d=dish x=fruit r=drink k=insect s=season n=number
* On a warm day in {s}, {@a} and {b} planned a picnic.
  어느 따뜻한 {s:날}, {@a:와} {b:는} 소풍을 계획했다.
/ {@a} asked {b} to come on a picnic.
  {@a:는} {b:에게} 소풍을 가자고 했다.
* {@a} packed {d:a}, {n} {x:s} and a bottle of {r}.
  {@a:는} {d:와} {x} {n} 개, {r} 한 병을 쌌다.
  ? x: Which fruit did {a} pack? = {a:는} 어떤 과일을 쌌는가?
/ {@a} put {d:a} and some {x:s} into a basket.
  {@a:는} 바구니에 {d:와} {x:를} 담았다.
  ? d: Which dish did {a} put into the basket? = {a:는} 바구니에 어떤 음식을 담았는가?
* They spread a blanket under a tree and sat down.
  그들은 나무 아래에 담요를 펴고 앉았다.
* First they ate the {d}, and then they peeled the {x:s}.
  그들은 먼저 {d:를} 먹고 나서 {x} 껍질을 벗겼다.
/ {b} poured the {r} while {a} shared the {d}.
  {a:가} {d:를} 나누는 동안 {b:는} {r:를} 따랐다.
  ? b: Who poured the {r}? = {r:는} 누가 따랐는가?
*0.7 Soon {k:a} came to taste the {x:s} too.
  곧 {k} 한 마리도 {x:를} 맛보러 왔다.
/ Soon {n} {k:s} sat on the {d}.
  곧 {k} {n} 마리가 {d} 위에 앉았다.
* When everything was eaten, they folded the blanket and went home.
  음식을 다 먹자 그들은 담요를 개고 집으로 돌아갔다.
/ At sunset nothing was left, and they carried the empty basket home.
  해/NOUN 질 무렵 음식은 하나도 남지 않았고 그들은 빈 바구니를 들고 집으로 갔다.
""",
    "food",
)
