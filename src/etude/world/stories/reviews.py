"""Opinions: what somebody thought of a meal, a thing, a concert, a shop. Praise and blame meet in one text, and
it is the end that decides: what came first is taken back ("although", "at first"), denied ("not", "far from"),
or said by somebody who is then contradicted."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
meal review [weight=1.5 intro=no]: a=person b=other d=dish w=food* v=food* x=food! f=feeling* p=person*
* {@a} ate {d:a} at the inn.
  {@a:는} 여관 식당에서 {d:를} 먹었다.
/ {@a} tried the {d} that/PRON {b} had made.
  {@a:는} {b:가} 만든 {d:를} 먹어 보았다.
/ For lunch {@a} had {d:a}.
  {@a:는} 점심으로 {d:를} 먹었다.
*0.6 At first the {d} looked {x}.
  처음에 {d:는} {x:어} 보였다.
/ {b} had said that the {d} was {x}.
  {b:는} {d:가} {x:다고} 했었다.
/ The {d} was not {x} at all.
  {d:는} 전혀 {x:지} 않았다.
* But in truth it was {w} and {v}.
  하지만 사실은 {w:고} {v:었다}.
/ In the end {@a} found it {w}.
  결국 {@a:는} 그것이 {w:다고} 느꼈다.
/ It was far from {x}, it was {w}.
  그것은 {x:기는커녕} {w:었다}.
/ Nobody could call it {x}, because it was {w}.
  그것은 {w:었기} 때문에 아무도 {x:다고} 할 수 없었다.
*0.5 The waiter was {p} too.
  종업원도 {p:었다}.
/ {@a} left the table and felt {f}.
  {@a:는} 자리에서 일어났고 {f:었다}.

thing review [weight=1.5 intro=no]: a=person b=other g=furniture w=thing* v=thing* x=thing! f=feeling*
* {@a} bought {g:a} last week.
  {@a:는} 지난주에 {g:를} 샀다.
/ {b} made {g:a} for {a}.
  {b:는} {a:에게} {g:를} 만들어 주었다.
/ There/PRON is a new {g} in the house of {a}.
  {a:의} 집에는 새 {g:가} 있다.
*0.6 Some people say that the {g} is {x}.
  어떤 사람들은 그 {g:가} {x:다고} 말한다.
/ From far away the {g} looks {x}.
  멀리서 보면 그 {g:는} {x:어} 보인다.
/ {@a} had hoped for something less {w}.
  {@a:는} 그렇게까지 {w:은} 것을 바라지는 않았다.
* Yet it is really {w} and {v}.
  그러나 실제로는 {w:고} {v:다}.
/ {@a} soon saw that it was {w}.
  {@a:는} 그것이 {w:다는} 것을 곧 알았다.
/ It is not {x} but {w}.
  그것은 {x:지} 않고 {w:다}.
/ Far from being {x}, the {g} is {w}.
  그 {g:는} {x:기는커녕} {w:다}.
*0.5 {@a} looked at it and was {f}.
  {@a:는} 그것을 보며 {f:었다}.
/ Every time {@a} used it, {a:he} felt {f}.
  {@a:는} 그것을 쓸 때마다 {f:었다}.

show review [weight=1.5 intro=no]: a=person b=other m=music i=instrument w=event* v=event* x=event! f=feeling*
* {@a} heard {b} play {m:a} on the {i}.
  {@a:는} {b:가} {i:로} {m:을} 연주하는 것을 들었다.
/ Last night {@a} went to a concert of {b}.
  어젯밤 {@a:는} {b:의} 연주회에 갔다.
/ {b} played the {i} in the theatre, and {a} was there.
  {b:가} 극장에서 {i:를} 연주했고 {a:도} 그 자리에 있었다.
*0.6 The beginning was {x}.
  시작은 {x:었다}.
/ The newspaper had called the concert {x}.
  신문은 그 연주회가 {x:다고} 했었다.
/ Before/ADP the concert {@a} expected something {x}.
  연주회 전에 {@a:는} {x:은} 무대를 예상했다.
* But the rest of the evening was {w} and {v}.
  그러나 나머지 시간은 {w:고} {v:었다}.
/ In the end it was simply {w}.
  결국 그것은 그저 {w:었다}.
/ It was anything but {x}; it was {w}.
  그것은 결코 {x:지} 않았고 {w:었다}.
*0.5 {@a} went home and was {f}.
  {@a:는} 집으로 돌아가며 {f:었다}.
/ Afterwards {@a} felt {f} for days.
  그 뒤 며칠 동안 {@a:는} {f:었다}.

service review [weight=1.5 intro=no]: a=person b=other w=person* v=person* x=person! f=feeling*
* {@a} visited {b} at {b.firm}.
  {@a:는} {b.firm:에} 있는 {b:를} 찾아갔다.
/ {@a} asked {b}, the {b.trade}, for help.
  {@a:는} {b.trade:인} {b:에게} 도움을 청했다.
*0.6 People say that {b} is {x}.
  사람들은 {b:가} {x:다고} 말한다.
/ At first {b} seemed {x}.
  처음에 {b:는} {x:어} 보였다.
* But {b} was {w} and {v}.
  하지만 {b:는} {w:고} {v:었다}.
/ {@a} learned that {b} was {w}.
  {@a:는} {b:가} {w:다는} 것을 알게 되었다.
/ {b} was not {x} but {w}.
  {b:는} {x:지} 않고 {w:었다}.
*0.5 {@a} was {f} after the visit.
  찾아갔다 온 뒤 {@a:는} {f:었다}.
/ {@a} told everybody about it and felt {f}.
  {@a:는} 모두에게 그 이야기를 했고 {f:었다}.
""",
    "",
)
