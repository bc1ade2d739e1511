"""Family and home: a birthday, a lost treasure, a stormy night, a visit, a painted room."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
birthday: a=person b=other c=a.friend t=treasure n=number y=toy
* It was the birthday of {a}, and {b} planned a party.
  {a:의} 생일이어서 {b:는} 잔치를 계획했다.
  ? a: Whose birthday was it? = 누구의 생일이었는가?
/ {b} wanted to surprise {a} on {a:his} birthday.
  {b:는} {a:의} 생일에 깜짝 잔치를 해 주고 싶었다.
* {@b} decorated the living room with {n} candles.
  {@b:는} 거실을 초 {n} 개로 꾸몄다.
  ? n: How many candles were in the living room? = 거실에는 초가 몇 개 있었는가?
/ {@b} invited {c}, the best friend of {a}.
  {@b:는} {a:의} 가장 친한 친구인 {c:를} 초대했다.
  ? c: Who did {b} invite? = {b:는} 누구를 초대했는가?
* In the evening the family sat together around the table.
  저녁에 온 가족이 식탁에 둘러앉았다.
/ When {a} came home to {a.home}, everybody sang.
  {a:가} {a.home:에} 있는 집으로 돌아오자 모두가 축하했다.
  ? a.home: Where did {a} come home to? = {a:는} 어디에 있는 집으로 돌아왔는가?
* {b} gave {a} {t:a} wrapped in paper.
  {b:는} {a:에게} 종이로 싼 {t:를} 주었다.
  ? t: What did {b} give {a}? = {b:는} {a:에게} 무엇을 주었는가?
/ {a} got {t:a} from {b} as a present.
  {a:는} {b:에게서} {t:를} 선물로 받았다.
  ? t: What did {a} get as a present? = {a:는} 무엇을 선물로 받았는가?
*0.7 There/PRON was {a.food:one} too, because it is what {a} likes.
  {a:가} 좋아하는 {a.food:도} 있었다.
  ? a.food: What does {a} like? = {a:는} 무엇을 좋아하는가?
/ The children played with {y:a} under the table.
  아이들은 식탁 밑에서 {y:를} 가지고 놀았다.
* {a} hugged {b} and thanked the whole family.
  {a:는} {b:를} 껴안고 온 가족에게 고마워했다.
/ Late at night the candles were out and {a} went to bed.
  밤늦게 촛불이 꺼지고 {a:는} 잠자리에 들었다.

lost treasure: a=person b=other g=furniture r=room
* One day {@a} could not remember where the {a.treasure} was.
  어느 날 {@a:는} {a.treasure:가} 어디에 있는지 기억나지 않았다.
  ? a.treasure: What could {a} not find? = {a:는} 무엇이 어디에 있는지 기억하지 못했는가?
/ {@a} wanted to show {b} the {a.treasure}, but it was gone.
  {@a:는} {b:에게} {a.treasure:를} 보여 주고 싶었지만 그것이 없어졌다.
  ? a.treasure: What did {a} want to show {b}? = {a:는} {b:에게} 무엇을 보여 주고 싶었는가?
* First {@a} looked behind the {g} in the {r}.
  먼저 {@a:는} {r:에} 있는 {g} 뒤를 살펴보았다.
  ? r: In which room did {a} look first? = {a:는} 먼저 어느 곳을 살펴보았는가?
  ? g: What did {a} look behind? = {a:는} 무엇의 뒤를 살펴보았는가?
/ First {@a} searched the {r} and moved the {g}.
  먼저 {@a:는} {r:를} 뒤지고 {g:를} 옮겼다.
  ? g: What did {a} move? = {a:는} 무엇을 옮겼는가?
* "Where do you keep it?" asked {b}.
  "보통 그것을 어디에 두니?" 하고 {b:가} 물었다.
/ Then {b} came to help and asked many questions.
  그때 {b:가} 도와주러 와서 여러 가지를 물었다.
* "In the {a.spot}," said {a}, and they went to look there.
  "{a.spot:에}." 하고 {a:가} 말했고 그들은 그곳을 보러 갔다.
  ? a.spot: Where did they go to look? = 그들은 어디를 보러 갔는가?
/ Then {@a} remembered the {a.spot}.
  그때 {@a:는} {a.spot:가} 생각났다.
  ? a.spot: What did {a} remember? = {a:는} 무엇이 생각났는가?
* The {a.treasure} was in the {a.spot}, as always.
  {a.treasure:는} 언제나처럼 {a.spot:에} 있었다.
  ? a.spot: Where was the {a.treasure}? = {a.treasure:는} 어디에 있었는가?
* {@a} laughed and put it back.
  {@a:는} 웃으면서 그것을 제자리에 두었다.
/ {@a} wiped the dust off and laughed.
  {@a:는} 먼지를 닦아 내고 웃었다.

stormy night: a=person c=a.daughter r=room g=furniture k=wild_animal
* A storm came at night, and {@a} closed the windows of the {r}.
  밤에 폭풍이 몰려와서 {@a:는} {r} 창문을 닫았다.
  ? r: Which windows did {a} close? = {a:는} 어디의 창문을 닫았는가?
/ It thundered over {a.home}, and {@a} locked the door.
  {a.home:에} 천둥이 치자 {@a:는} 문을 잠갔다.
  ? a.home: Where did it thunder? = 어디에 천둥이 쳤는가?
* Suddenly the lamp went out and the house was dark.
  갑자기 등불이 꺼지고 집이 어두워졌다.
/ The wind shook the {g}, and rain fell through the roof.
  바람에 {g:가} 흔들리고 지붕에서 비가 샜다.
* The daughter {c} was afraid and could not sleep.
  딸 {c:는} 무서워서 잠을 잘 수 없었다.
  ? c: Who was afraid? = 누가 무서워했는가?
/ {c}, the daughter, ran to {a} and cried.
  딸 {c:는} {a:에게} 달려와 울었다.
  ? c: Who ran to {a}? = 누가 {a:에게} 달려왔는가?
* {@a} lit a candle and told a story about {k:a}.
  {@a:는} 촛불을 켜고 {k} 이야기를 들려주었다.
  ? k: What was the story about? = 무엇에 대한 이야기였는가?
* Then {c} smiled and fell asleep.
  그러자 {c:는} 웃으며 잠이 들었다.
/ The story was long, and {c} slept before/ADP its end.
  이야기가 길어서 {c:는} 끝나기 전에 잠들었다.
* In the morning the sky was clear again.
  아침이 되자 하늘은 다시 맑았다.
/ By morning the storm was over.
  아침 무렵 폭풍은 지나갔다.

visit: a=person c=a.mother x=fruit q=weekday g=knitwear
* Every {q} {@a} visits {c}, {a:his} mother.
  {@a:는} {q:마다} 어머니 {c:를} 찾아간다.
  ? q: When does {a} visit {c}? = {a:는} 언제 {c:를} 찾아가는가?
  ? c: Who does {a} visit? = {a:는} 누구를 찾아가는가?
/ On {q} {@a} went to see {c}, {a:his} mother, on {c.home}.
  {q:에} {@a:는} {c.home:에} 사는 어머니 {c:를} 만나러 갔다.
  ? c.home: Where does {c} live? = {c:는} 어디에 사는가?
* {@a} brought a basket of {x:s} for her.
  {@a:는} 어머니께 드릴 {x} 한 바구니를 가져갔다.
  ? x: What did {a} bring? = {a:는} 무엇을 가져갔는가?
* {c} opened the door and kissed her child on the cheek.
  {c:는} 문을 열고 자식의 뺨에 입을 맞추었다.
/ {c} sat in the armchair and knitted {g:a}.
  {c:는} 안락의자에 앉아 {g:를} 뜨고 있었다.
  ? g: What did {c} knit? = {c:는} 무엇을 뜨고 있었는가?
* They talked about {a.father}, the father, and about old times.
  그들은 아버지 {a.father:와} 옛날 일에 대해 이야기했다.
  ? a.father: Who is the father of {a}? = {a:의} 아버지는 누구인가?
/ Together they looked at old photographs of the family.
  그들은 함께 오래된 가족사진을 보았다.
* Before leaving, {a} washed the dishes and swept the stairs.
  떠나기 전에 {a:는} 설거지를 하고 계단을 쓸었다.
/ In the evening {c} said goodbye and gave {a} {g:a}.
  저녁에 {c:는} 작별 인사를 하며 {a:에게} {g:를} 주었다.

painted room: a=person b=a.spouse r=room o=colour g=furniture w=thing*
* {@a} and {b} wanted to make the {r} more beautiful.
  {@a:와} {b:는} {r:를} 더 아름답게 꾸미고 싶었다.
  ? r: What did they want to make more beautiful? = 그들은 어디를 더 아름답게 꾸미고 싶었는가?
/ The walls of the {r} were old, so {@a} and {b} decided to paint/VERB.
  {r} 벽이 낡아서 {@a:와} {b:는} 칠을 하기로 했다.
  ? r: Which walls were old? = 어디의 벽이 낡았는가?
* They carried the {g} out and covered the floor.
  그들은 {g:를} 밖으로 옮기고 바닥을 덮었다.
  ? g: What did they carry out? = 그들은 무엇을 밖으로 옮겼는가?
* {b} stirred the paint while {a} climbed the ladder.
  {a:가} 사다리에 오르는 동안 {b:는} 페인트를 저었다.
  ? b: Who stirred the paint? = 누가 페인트를 저었는가?
/ {b} chose {o:a} paint, and {a} painted the ceiling.
  {b:는} {o:은} 페인트를 골랐고 {a:는} 천장을 칠했다.
  ? o: What colour was the paint? = 페인트는 무슨 색이었는가?
* After two days they put the {g} back in its place.
  이틀 뒤 그들은 {g:를} 제자리에 돌려놓았다.
* The new {r} was {w}.
  새로 꾸민 {r:는} {w:었다}.
/ Their children found the {r} {w}.
  아이들은 {r:가} {w:다고} 했다.
""",
    "family",
)
