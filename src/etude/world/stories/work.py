"""Work: a day at the trade, an order, an apprentice, a broken tool."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
workday: a=person b=other n=number w=weather
* {@a} got up at dawn and went to {a.firm}.
  {@a:는} 새벽에 일어나서 {a.firm:으로} 갔다.
  ? a.firm: Where did {a} go at dawn? = {a:는} 새벽에 어디로 갔는가?
/ On {w:a} morning {@a} walked to work at {a.firm}.
  {w:은} 아침에 {@a:는} {a.firm:으로} 일하러 걸어갔다.
  ? a.firm: Where did {a} walk to work? = {a:는} 어디로 일하러 걸어갔는가?
* {@a} opened the door, put on an apron and made the {a.trade.tool} ready.
  {@a:는} 문을 열고 앞치마를 두른 뒤 {a.trade.tool:를} 준비했다.
  ? a.trade.tool: What did {a} make ready? = {a:는} 무엇을 준비했는가?
/ First {@a} cleaned the {a.trade.tool} and checked the list of orders.
  먼저 {@a:는} {a.trade.tool:를} 닦고 주문 목록을 살펴보았다.
  ? a.trade.tool: What did {a} clean first? = {a:는} 먼저 무엇을 닦았는가?
* As {a.trade:a}, {@a} {a.trade.does:ed} {a.trade.makes:s} all morning.
  {a.trade:인} {@a:는} 오전 내내 {a.trade.makes:를} {a.trade.does:었다}.
  ? a.trade: What is the trade of {a}? = {a:의} 직업은 무엇인가?
/ For {n} hours {@a} {a.trade.does:ed} {a.trade.makes:s} without a break.
  {@a:는} {n} 시간 동안 쉬지 않고 {a.trade.makes:를} {a.trade.does:었다}.
  ? n: For how many hours did {a} work? = {a:는} 몇 시간 동안 일했는가?
* At noon {b} came in/ADV and asked about the work.
  정오에 {b:가} 들어와서 일에 대해 물었다.
  ? b: Who came in at noon? = 정오에 누가 들어왔는가?
/ At noon {@a} rested and ate lunch with {b}.
  정오에 {@a:는} 쉬면서 {b:와} 점심을 먹었다.
  ? b: Who did {a} eat lunch with? = {a:는} 누구와 점심을 먹었는가?
* In the afternoon {n} customers waited in front of the {a.trade.place}.
  오후에는 손님 {n} 명이 {a.trade.place} 앞에서 기다렸다.
  ? n: How many customers waited? = 손님 몇 명이 기다렸는가?
/ In the afternoon there/PRON was still much work at the {a.trade.place}.
  오후에도 {a.trade.place:에는} 일이 많았다.
* In the evening {a} looked after the {a.trade.tool} and locked the door.
  저녁에 {a:는} {a.trade.tool:를} 손질하고 문을 잠갔다.
/ When the work was done, {a} swept the floor and went home to {a.home}.
  일이 끝나자 {a:는} 바닥을 쓸고 {a.home:에} 있는 집으로 갔다.
  ? a.home: Where did {a} go home to? = {a:는} 어디에 있는 집으로 갔는가?

order: a=person b=other q=weekday n=number m=person* f=feeling*
* {b} needed the help of {a.trade:a} and went to {a}.
  {b:는} {a.trade:의} 도움이 필요해서 {a:를} 찾아갔다.
  ? a.trade: Whose help did {b} need? = {b:에게는} 어떤 직업을 가진 사람의 도움이 필요했는가?
/ {b} came to {a.firm} with an order for {a}.
  {b:는} {a:에게} 일을 맡기러 {a.firm:에} 왔다.
  ? a.firm: Where did {b} come with an order? = {b:는} 일을 맡기러 어디에 왔는가?
* {@a} promised to finish the order by {q}.
  {@a:는} {q:까지} 일을 끝내겠다고 약속했다.
  ? q: By when did {a} promise to finish? = {a:는} 언제까지 끝내겠다고 약속했는가?
/ {@a} wrote the order down and asked for {n} coins.
  {@a:는} 주문을 받아 적고 동전 {n} 닢을 요구했다.
  ? n: How many coins did {a} ask for? = {a:는} 동전 몇 닢을 요구했는가?
* {@a} began at once with the {a.trade.tool}.
  {@a:는} {a.trade.tool:로} 바로 일을 시작했다.
/ For days {@a} worked with the {a.trade.tool} until/ADP late at night.
  며칠 동안 {@a:는} {a.trade.tool:로} 밤늦게까지 일했다.
* On {q} {b} returned and looked at the work.
  {q:에} {b:는} 다시 와서 일한 것을 살펴보았다.
  ? q: When did {b} return? = {b:는} 언제 다시 왔는가?
* {@b} said that {a} was {m}.
  {@b:는} {a:가} {m:다고} 말했다.
/ {@b} told the neighbours that {a} was {m:a} worker.
  {@b:는} 이웃들에게 {a:가} {m:은} 일꾼이라고 말했다.
*0.7 In the end {@b} was {f} about the order.
  결국 {@b:는} 맡긴 일을 두고 {f:었다}.

apprentice: a=person b=other s=season n=number
* In {s} {b} wanted to become {a.trade:a}.
  {s:에} {b:는} {a.trade:가} 되고 싶어졌다.
  ? a.trade: What did {b} want to become? = {b:는} 무엇이 되고 싶어졌는가?
  ? s: When did {b} want to learn a trade? = {b:는} 언제 일을 배우고 싶어졌는가?
/ {b} asked {a} to teach {b:him} the trade of the {a.trade}.
  {b:는} {a:에게} {a.trade} 일을 가르쳐 달라고 했다.
  ? a.trade: Which trade did {b} want to learn? = {b:는} 어떤 일을 배우고 싶어 했는가?
* {@a} gave {b} an apron and explained the {a.trade.tool}.
  {@a:는} {b:에게} 앞치마를 주고 {a.trade.tool:를} 설명해 주었다.
  ? a.trade.tool: What did {a} explain? = {a:는} 무엇을 설명해 주었는가?
/ {@a} showed {b} how to use the {a.trade.tool}.
  {@a:는} {b:에게} {a.trade.tool} 쓰는 법을 보여 주었다.
* At first {b} made many mistakes.
  처음에 {b:는} 실수를 많이 했다.
/ On the first/ADJ day {b} used the {a.trade.tool} wrongly {n} times.
  첫날 {b:는} {a.trade.tool:를} {n} 번이나 잘못 다루었다.
* After some months {b} could work/VERB alone at the {a.trade.place}.
  몇 달이 지나자 {b:는} {a.trade.place:에서} 혼자 일할 수 있게 되었다.
/ But {b} practised every day and learned quickly.
  그러나 {b:는} 날마다 연습해서 빨리 배웠다.
* After {n} years {@a} called {b} a master.
  {n} 해가 지난 뒤 {@a:는} {b:를} 장인이라고 불렀다.
  ? n: After how many years was {b} a master? = 몇 해가 지난 뒤 {b:는} 장인이라고 불렸는가?
/ Now {b} knows everything about {a.trade.makes:s}.
  이제 {b:는} {a.trade.makes:에} 대해 모르는 것이 없다.

broken tool: a=person b=other n=number l=landmark
* One morning the {a.trade.tool} of {a} broke.
  어느 날 아침 {a:의} {a.trade.tool:가} 망가졌다.
  ? a.trade.tool: What broke one morning? = 어느 날 아침 무엇이 망가졌는가?
/ While {@a} was at work at {a.firm}, the {a.trade.tool} suddenly broke.
  {@a:가} {a.firm:에서} 일하는 동안 {a.trade.tool:가} 갑자기 망가졌다.
  ? a.trade.tool: What suddenly broke? = 갑자기 무엇이 망가졌는가?
* Without it, {@a} could do no work as {a.trade:a}.
  그것이 없으면 {@a:는} {a.trade:로} 일할 수 없었다.
/ People had to wait, and work piled up at the {a.trade.place}.
  사람들은 기다려야 했고 {a.trade.place:에는} 일이 쌓였다.
* {@a} asked {b} for advice.
  {@a:는} {b:에게} 조언을 구했다.
  ? b: Who did {a} ask for advice? = {a:는} 누구에게 조언을 구했는가?
* {b} knew a shop near the {l} where such tools were sold.
  {b:는} {l} 근처에서 그런 도구를 파는 가게를 알고 있었다.
  ? l: Where was the shop that {b} knew? = {b:가} 아는 가게는 어디 근처에 있었는가?
/ {b} repaired it with wire and glue.
  {b:는} 철사와 풀로 그것을 고쳤다.
* After {n} hours {a} could work/VERB again.
  {n} 시간 만에 {a:는} 다시 일할 수 있었다.
/ The next day {a} {a.trade.does:ed} {a.trade.makes:s} again.
  다음 날 {a:는} 다시 {a.trade.makes:를} {a.trade.does:었다}.
""",
    "work",
)
