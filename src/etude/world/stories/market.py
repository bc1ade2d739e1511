"""Market: buying and haggling, selling a harvest, a thing that breaks, a lost purse."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
purchase: a=person b=other g=furniture w=thing* p=person* f=feeling* q=weekday n=few m=many o=colour
* On {q} {@a} went to the market to buy {g:a}.
  {q:에} {@a:는} {g:를} 사러 시장에 갔다.
  ? g: What did {a} want to buy? = {a:는} 무엇을 사러 갔는가?
  ? q: When did {a} go to the market? = {a:는} 언제 시장에 갔는가?
/ {@a} needed a new {g} and walked to the market on {q}.
  {@a:는} 새 {g:가} 필요해서 {q:에} 시장으로 걸어갔다.
  ? g: What did {a} need? = {a:에게는} 무엇이 필요했는가?
  ? q: When did {a} walk to the market? = {a:는} 언제 시장으로 걸어갔는가?
* There/PRON was {o:a} {g} at the stall of {b}.
  {b:의} 가게에 {o:은} {g:가} 있었다.
  ? b: Whose stall had {o:a} {g}? = 누구의 가게에 {o:은} {g:가} 있었는가?
/ {b} had {n} kinds of {g:s} at the stall.
  {b:의} 가게에는 {g:가} {n} 종류 있었다.
* {@a} asked {b} for the price.
  {@a:는} {b:에게} 가격을 물었다.
/ {b} asked for {m} coins, but {a} offered only {n}.
  {b:는} 동전 {m} 닢을 불렀지만 {a:는} {n} 닢만 주겠다고 했다.
* After some haggling {@a} paid {n} coins and took the {g}.
  흥정 끝에 {@a:는} 동전 {n} 닢을 내고 {g:를} 가져갔다.
  ? n: How many coins did {a} pay? = {a:는} 동전을 몇 닢 냈는가?
/ In the end {b} sold the {g} to {a} for {n} coins.
  결국 {b:는} {a:에게} {g:를} 동전 {n} 닢에 팔았다.
  ? b: Who sold the {g}? = 누가 {g:를} 팔았는가?
  ? n: How many coins did the {g} cost? = {g:는} 동전 몇 닢이었는가?
* At home/NOUN {@a} saw that the {g} was {w}.
  집에 와서 보니 {g:는} {w:었다}.
/ After a week {@a} knew that the {g} was {w}.
  일주일이 지나자 {@a:는} {g:가} {w:다는} 것을 알게 되었다.
*0.8 {@a} told everyone that {b} was {p}.
  {@a:는} 모두에게 {b:가} {p:다고} 말했다.
/ {@a} felt {f} whenever {a:he} saw the {g}.
  {@a:는} {g:를} 볼 때마다 {f:었다}.

harvest: a=person b=other v=vegetable x=fruit n=number m=number
* Early in the morning {@a} loaded a cart with {v:s} and {x:s}.
  이른 아침 {@a:는} 수레에 {v:와} {x:를} 실었다.
  ? v: Which vegetables did {a} load? = {a:는} 수레에 어떤 채소를 실었는가?
/ {@a} had too many {x:s}, so {@a} brought {n} baskets to the market.
  {x:가} 너무 많아서 {@a:는} {n} 바구니를 시장에 가져갔다.
* {@a} opened a stall beside the fountain.
  {@a:는} 분수 옆에 가게를 열었다.
/ At the market {@a} called out the prices in a loud voice.
  시장에서 {@a:는} 큰 소리로 값을 외쳤다.
* The first/ADJ customer, {b}, bought {n} {x:s}.
  첫 손님인 {b:는} {x} {n} 개를 샀다.
  ? b: Who was the first customer? = 첫 손님은 누구였는가?
  ? n: How many {x:s} did {b} buy? = {b:는} {x:를} 몇 개 샀는가?
/ {b} weighed the {v:s} in the hand and bought {n} bags.
  {b:는} {v:를} 손에 들어 보고 {n} 자루를 샀다.
  ? b: Who bought {n} bags? = {n} 자루를 산 사람은 누구인가?
* {@b} paid {m} coins and said thank you.
  {@b:는} 동전 {m} 닢을 내고 고맙다고 말했다.
  ? m: How many coins did {b} pay? = {b:는} 동전을 몇 닢 냈는가?
/ {a} gave {b} one more/ADJ {x} for free.
  {a:는} {b:에게} {x} 하나를 덤으로 주었다.
* By noon everything was sold.
  정오가 되자 물건이 모두 팔렸다.
/ By evening the cart was empty.
  저녁이 되자 수레는 텅 비었다.
* {a} counted the money and rode back to {a.home}.
  {a:는} 돈을 세고 {a.home:으로} 돌아갔다.
  ? a.home: Where did {a} ride back to? = {a:는} 어디로 돌아갔는가?
/ {a} put the coins into a purse and went home.
  {a:는} 동전을 주머니에 넣고 집으로 갔다.

garment: a=person b=other g=garment w=thing* f=feeling* o=colour s=season
* Before/ADP {s} {@a} looked for {g:a} in the shops.
  {s:이} 오기 전에 {@a:는} 가게에서 {g:를} 찾았다.
  ? g: What did {a} look for? = {a:는} 무엇을 찾았는가?
/ The old {g} of {a} was worn out, so {@a} wanted another.
  {a:의} {g:가} 낡아서 {@a:는} 새것을 사고 싶었다.
* A merchant showed {a} {o:a} {g}.
  상인이 {a:에게} {o:은} {g:를} 보여 주었다.
  ? o: What colour was the {g}? = {g:는} 무슨 색이었는가?
/ In the window of a shop hung {o:a} {g}.
  가게 창문에 {o:은} {g:가} 걸려 있었다.
* {@a} stood in front of the mirror to see whether it looked good.
  {@a:는} 거울 앞에 서서 잘 어울리는지 보았다.
/ {@a} asked {b} whether it was too expensive.
  {@a:는} {b:에게} 너무 비싸지 않은지 물었다.
* {@a} bought the {g} and used it for a month.
  {@a:는} {g:를} 사서 한 달 동안 사용했다.
/ {@a} paid at once and took the {g} home.
  {@a:는} 바로 돈을 내고 {g:를} 집으로 가져갔다.
* The {g} turned out to be {w}.
  알고 보니 {g:는} {w:었다}.
/ {b} looked at the {g} and called it {w}.
  {b:는} {g:를} 보고 {w:다고} 했다.
*0.6 {@a} felt {f} about the purchase.
  {@a:는} 산 물건을 두고 {f:었다}.

purse: a=person b=other n=number l=landmark g=garment
* {@a} lost a purse with {n} coins at the market.
  {@a:는} 시장에서 동전 {n} 닢이 든 지갑을 잃어버렸다.
  ? n: How many coins were in the purse? = 지갑에는 동전이 몇 닢 들어 있었는가?
/ After/SCONJ buying {g:a}, {@a} could not find the purse with {n} coins.
  {g:를} 산 뒤에 {@a:는} 동전 {n} 닢이 든 지갑을 찾을 수 없었다.
  ? g: What did {a} buy? = {a:는} 무엇을 샀는가?
* {@a} asked at every stall, but nobody had seen it.
  {@a:는} 가게마다 물어보았지만 아무도 그것을 보지 못했다.
/ {@a} searched under the tables and behind the carts.
  {@a:는} 탁자 밑과 수레 뒤를 살펴보았다.
* Meanwhile {b} found the purse near the {l}.
  그사이 {b:가} {l} 근처에서 지갑을 발견했다.
  ? l: Where did {b} find the purse? = {b:는} 어디 근처에서 지갑을 발견했는가?
  ? b: Who found the purse? = 누가 지갑을 발견했는가?
* {@b} counted the money and saw a name on the leather.
  {@b:는} 돈을 세어 보고 가죽에 적힌 이름을 보았다.
/ {@b} knew at once whose purse it was.
  {@b:는} 누구의 지갑인지 바로 알았다.
* {b} ran to {a.home} and gave the purse back.
  {b:는} {a.home:으로} 달려가서 지갑을 돌려주었다.
  ? a.home: Where did {b} run to? = {b:는} 어디로 달려갔는가?
* {a} thanked {b} with {n} coins.
  {a:는} 고마운 마음에 {b:에게} 동전 {n} 닢을 주었다.
/ {a} thanked {b} and bought a round of tea.
  {a:는} {b:에게} 고마워하며 차를 샀다.
""",
    "market",
)
