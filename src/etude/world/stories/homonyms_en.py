"""English homonyms: one spelling, two things. The sentence around the word settles which, by the kind of things in
it (water animals, coins, tools), not by one fixed neighbour. The first sentence of each script holds the word."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
river bank [sense=bank.river lang=en intro=no]: a=person b=other k=water_animal n=size v=boat z=flower t=tree
* {@a} sat on the bank and watched {n:a} {k}.
  {@a:는} 강둑에 앉아 {n:은} {k:를} 바라보았다.
/ {@a} tied the {v} to the bank and called {b}.
  {@a:는} {v:를} 강둑에 묶어 두고 {b:를} 불렀다.
/ The bank was wet, and {z:s} grew there under {t:a}.
  강둑은 젖어 있었고 {t} 아래에는 {z:가} 자라고 있었다.
/ {@a} and {b} walked along the bank and saw {k:s}.
  {@a:와} {b:는} 강둑을 따라 걷다가 {k:를} 보았다.
* The river was wide, and the current was strong.
  강은 넓고 물살은 셌다.
/ {k:s} swam close to them.
  {k:가} 그들 가까이에서 헤엄쳤다.

money bank [sense=bank.money lang=en intro=no]: a=person b=other n=number t=treasure g=furniture
* {@a} took {n} coins to the bank.
  {@a:는} 동전 {n} 닢을 은행에 가져갔다.
/ The bank lent {a} money for {g:a}.
  은행은 {a:에게} {g:를} 살 돈을 빌려주었다.
/ {@a} opened an account at the bank, where {b} had one/PRON too.
  {@a:는} {b:도} 계좌를 가지고 있는 은행에서 계좌를 열었다.
/ {@a} left {t:a} in the safe of the bank.
  {@a:는} 은행 금고에 {t:를} 맡겼다.
* The clerk counted the money and wrote a receipt.
  직원은 돈을 세고 영수증을 썼다.
/ {@a} signed the paper and paid {n} coins.
  {@a:는} 서류에 서명하고 동전 {n} 닢을 냈다.

flying bat [sense=bat.animal lang=en intro=no]: a=person b=other i=insect y=sight c=character
* {@a} saw a bat that/PRON was hunting {i:s}.
  {@a:는} {i:를} 사냥하는 박쥐를 보았다.
/ A bat flew out of the {y} and frightened {b}.
  {y:에서} 박쥐가 날아와 {b:를} 놀라게 했다.
/ At night a bat ate {i:s} over the garden.
  밤에 박쥐가 정원 위에서 {i:를} 잡아먹었다.
/ The bat looked {c} and slept upside down.
  박쥐는 {c:어} 보였고 거꾸로 매달려 잤다.
* Its wings made no sound.
  날개에서는 아무 소리도 나지 않았다.
/ {@a} watched the animal until it was dark.
  {@a:는} 어두워질 때까지 그 동물을 지켜보았다.

wooden bat [sense=bat.club lang=en intro=no]: a=person b=other m=wood j=game q=weekday o=colour
* {@a} bought a bat of {m} for the game.
  {@a:는} 경기에 쓸 {m} 방망이를 샀다.
/ On {q} {b} threw the ball, and {a} swung the bat.
  {q:에} {b:가} 공을 던지고 {a:는} 방망이를 휘둘렀다.
/ {@a} painted the bat {o} and gave it to {b}.
  {@a:는} 방망이를 {o:게} 칠해서 {b:에게} 주었다.
/ Before/ADP the game {@a} lent {b} a heavy bat.
  경기 전에 {@a:는} {b:에게} 무거운 방망이를 빌려주었다.
* The team won, and the children cheered.
  팀이 이기자 아이들은 환호했다.
/ {b} ran to the base while the ball was in the air.
  공이 공중에 있는 동안 {b:는} 베이스로 달려갔다.

spring of the year [sense=spring.season lang=en intro=no]: a=person b=other z=flower t=tree k=wild_animal
* In spring {@a} picked {z:s} for {b}.
  봄에 {@a:는} {b:에게} 줄 {z:를} 꺾었다.
/ The spring was late/ADJ, and the {t} had no leaves yet.
  봄이 늦게 와서 {t:에는} 아직 잎이 없었다.
/ Every spring {k:s} come back to the forest.
  봄마다 {k:가} 숲으로 돌아온다.
/ {@a} loves the spring, because {z:s} bloom then.
  {@a:는} {z:가} 피기 때문에 봄을 좋아한다.
* After it summer came with long days.
  그 뒤에 낮이 긴 여름이 왔다.
/ The snow was gone and the days grew warm.
  눈은 사라지고 날은 따뜻해졌다.

spring of water [sense=spring.water lang=en intro=no]: a=person b=other u=vessel h=village y=rock
* {@a} filled {u:a} at the spring.
  {@a:는} 샘에서 {u:를} 채웠다.
/ The spring near {h} never runs dry, and {a} drinks there.
  {h} 근처의 샘은 마르는 일이 없어서 {a:는} 그곳에서 물을 마신다.
/ Between the {y:s} {@a} found a spring and drank.
  {@a:는} {y} 사이에서 샘을 찾아 물을 마셨다.
/ {b} carried {u:a} to the spring for {a}.
  {b:는} {a:를} 위해 {u:를} 샘으로 가져갔다.
* The water was cold and clear.
  물은 차고 맑았다.
/ Then {@a} washed {a:his} face and rested.
  그다음 {@a:는} 세수를 하고 쉬었다.

crane with wings [sense=crane.bird lang=en intro=no]: a=person b=other f=small_prey t=tree n=number
* A crane caught {f:a} and flew away.
  두루미가 {f:를} 잡아 날아갔다.
/ {@a} saw a crane with {n} eggs in its nest.
  {@a:는} 둥지에 알 {n} 개를 품은 두루미를 보았다.
/ The crane stood on one leg beside {t:a}.
  두루미는 {t} 옆에 한 다리로 서 있었다.
/ {b} showed {a} a crane that/PRON was eating {f:s}.
  {b:는} {a:에게} {f:를} 먹고 있는 두루미를 보여 주었다.
* Its feathers were white and its neck was long.
  깃털은 하얗고 목은 길었다.
/ In autumn the birds fly to the south.
  가을이면 새들은 남쪽으로 날아간다.

crane with a hook [sense=crane.machine lang=en intro=no]: a=person b=other l=cargo n=number s=landmark
* The crane lifted {n} {l:s} onto the ship.
  기중기가 {l} {n} 개를 배 위로 들어 올렸다.
/ {@a} steered the crane, and {b} loaded {l:a}.
  {@a:는} 기중기를 조종하고 {b:는} {l:를} 실었다.
/ At the {s} a crane raised {l:a} to the roof.
  {s:에서} 기중기가 {l:를} 지붕까지 들어 올렸다.
/ {@a} repaired the crane that/PRON had dropped {l:a}.
  {@a:는} {l:를} 떨어뜨린 기중기를 수리했다.
* Its engine was loud and its hook was rusty.
  엔진은 시끄럽고 갈고리는 녹슬어 있었다.
/ The workers stood back until it was done.
  일꾼들은 일이 끝날 때까지 물러서 있었다.

bark of a dog [sense=bark.sound lang=en intro=no]: a=person b=other y=stranger d=daytime
* The bark of the dog woke {a} in the {d}.
  {d:에} 개 짖는 소리가 {a:를} 깨웠다.
/ With a loud bark the dog warned {a} of {y:a}.
  개는 크게 짖는 소리로 {a:에게} {y:를} 알렸다.
/ {@a} heard a bark and saw {y:a} at the door.
  {@a:는} 짖는 소리를 듣고 문 앞의 {y:를} 보았다.
/ {b} knew the bark of every dog on the street.
  {b:는} 거리의 개들이 짖는 소리를 모두 구별했다.
* Then everything was quiet again.
  그러고는 다시 모든 것이 조용해졌다.
/ {@a} opened the door and called the dog.
  {@a:는} 문을 열고 개를 불렀다.

bark of a tree [sense=bark.tree lang=en intro=no]: a=person b=other t=tree i=insect k=small_animal
* The bark of the {t} was full of {i:s}.
  {t} 껍질에는 {i:가} 가득했다.
/ {@a} cut a letter into the bark of {t:a}.
  {@a:는} {t} 껍질에 글자를 새겼다.
/ Under the bark lived {i:a}, and {@a} showed it to {b}.
  나무껍질 밑에 {i:가} 살고 있어서 {@a:는} {b:에게} 그것을 보여 주었다.
/ {k:a} scratched the bark and looked for {i:s}.
  {k:가} 나무껍질을 긁으며 {i:를} 찾았다.
* The wood below was wet and soft.
  그 밑의 나무는 젖어 있고 물렀다.
/ The branches had lost their leaves.
  가지는 잎을 모두 떨군 뒤였다.

seal in the sea [sense=seal.animal lang=en intro=no]: a=person b=other f=sea_food v=boat n=number
* A seal swam after the {v} of {a}.
  바다표범이 {a:의} {v:를} 따라 헤엄쳤다.
/ {@a} fed the seal with {f:s}.
  {@a:는} 바다표범에게 {f:를} 먹였다.
/ The seal ate {n} {f:s} and dived.
  바다표범은 {f} {n} 마리를 먹고 물속으로 들어갔다.
/ {@a} and {b} watched a seal from the {v}.
  {@a:와} {b:는} {v:에서} 바다표범을 바라보았다.
* Its fur was wet and shining.
  털은 젖어서 반들거렸다.
/ The waves carried it back to the rocks.
  파도가 그것을 바위로 다시 데려갔다.

seal on paper [sense=seal.stamp lang=en intro=no]: a=person b=other e=document o=colour m=material
* {@a} put the seal on {e:a} and sent it to {b}.
  {@a:는} {e:에} 도장을 찍어 {b:에게} 보냈다.
/ The seal of the town was made of {m}.
  마을의 도장은 {m:으로} 만들어졌다.
/ {b} broke the {o} seal and read {e:a}.
  {b:는} {o:은} 봉인을 뜯고 {e:를} 읽었다.
/ Without a seal {e:a} is worth nothing, said {b}.
  도장이 없으면 {e:는} 아무 가치가 없다고 {b:가} 말했다.
* Then {@a} signed it with a pen.
  그다음 {@a:는} 펜으로 서명했다.
/ The clerk kept a copy in the office.
  직원은 사무실에 사본을 보관했다.

letter by mail [sense=letter.mail lang=en intro=no]: a=person b=other h=village q=weekday t=treasure
* {@a} wrote a letter to {b} in {h}.
  {@a:는} {h:에} 있는 {b:에게} 편지를 썼다.
/ On {q} a letter from {h} came for {a}.
  {q:에} {h:에서} {a:에게} 편지가 왔다.
/ In the letter {b} thanked {a} for {t:a}.
  편지에서 {b:는} {t:를} 준 {a:에게} 고마워했다.
/ {@a} put a letter and {t:a} into an envelope.
  {@a:는} 봉투에 편지와 {t:를} 넣었다.
* {@a} bought a stamp and went to the post office.
  {@a:는} 우표를 사서 우체국에 갔다.
/ The answer came a week later.
  일주일 뒤에 답장이 왔다.

letter of a word [sense=letter.sign lang=en intro=no]: a=person b=other s=writing n=number o=colour
* {@a} taught {b} the first/ADJ letter of the alphabet with {s:a}.
  {@a:는} {s:로} {b:에게} 알파벳의 첫 글자를 가르쳤다.
/ The last letter on the {s} was {o}.
  {s:에} 적힌 마지막 글자는 {o:었다}.
/ {@a} drew a big letter on {s:a}.
  {@a:는} {s:에} 커다란 글자를 그렸다.
/ One letter was wrong, and {b} wrote the word {n} times on the {s}.
  글자 하나가 틀려서 {b:는} {s:에} 그 낱말을 {n} 번 썼다.
* Then they read the whole word aloud.
  그다음 그들은 낱말 전체를 소리 내어 읽었다.
/ Spelling is not easy for a child.
  맞춤법은 아이에게 쉽지 않다.

match with a flame [sense=match.fire lang=en intro=no]: a=person b=other u=light r=room
* {@a} lit the {u} with a match.
  {@a:는} 성냥으로 {u:에} 불을 붙였다.
/ In the dark {r} {@a} looked for a match.
  어두운 {r:에서} {@a:는} 성냥을 찾았다.
/ {b} gave {a} the last match for the {u}.
  {b:는} {a:에게} {u:를} 켤 마지막 성냥을 주었다.
/ The match burned {a} before the {u} was lit.
  {u:에} 불을 붙이기도 전에 성냥이 {a:의} 손을 데게 했다.
* Then the {r} was bright and warm.
  그러자 {r:는} 밝고 따뜻해졌다.
/ The smoke rose to the ceiling.
  연기가 천장으로 올라갔다.

match between teams [sense=match.game lang=en intro=no]: a=person b=other j=game n=minutes q=weekday
* {@a} won the {j} match against {b}.
  {@a:는} {b:와} 벌인 {j} 시합에서 이겼다.
/ On {q} there/PRON was {j:a} match on the field.
  {q:에} 운동장에서 {j} 시합이 열렸다.
/ {b} lost the match by {n} points.
  {b:는} {n} 점 차로 시합에서 졌다.
/ {@a} and {b} watched {j:a} match in the stadium.
  {@a:와} {b:는} 경기장에서 {j} 시합을 보았다.
* The crowd shouted, and the players were tired.
  관중은 소리를 질렀고 선수들은 지쳤다.
/ {@a} trains every {q} with the team.
  {@a:는} {q:마다} 팀과 함께 훈련한다.

ring of metal [sense=ring.jewel lang=en intro=no]: a=person b=other m=metal s=spot y=jewel
* {@a} gave {b} a ring of {m}.
  {@a:는} {b:에게} {m} 반지를 주었다.
/ {@a} lost the ring and found it in the {s}.
  {@a:는} 반지를 잃어버렸다가 {s:에서} 찾았다.
/ On the ring of {a} shines {y:a}.
  {a:의} 반지에는 {y:가} 빛난다.
/ {b} sold the ring with {y:a} to {a}.
  {b:는} {y:가} 박힌 반지를 {a:에게} 팔았다.
* It fits the finger well.
  그것은 손가락에 잘 맞는다.
/ The jeweller polished it for free.
  세공사가 그것을 공짜로 닦아 주었다.

ring of a bell [sense=ring.sound lang=en intro=no]: a=person b=other l=landmark d=daytime e=sounding
* The ring of the {e} woke {a}.
  {e} 울리는 소리에 {a:는} 잠이 깼다.
/ From the {l} came the ring of {e:a}.
  {l:에서} {e} 울리는 소리가 들려왔다.
/ {@a} waited for the ring of the {e} in the {d}.
  {@a:는} {d:에} {e:가} 울리기를 기다렸다.
/ With the first/ADJ ring {b} ran to the {l}.
  첫 번째 울리는 소리에 {b:는} {l:로} 달려갔다.
* Then all the people came out of their houses.
  그러자 모든 사람이 집에서 나왔다.
/ It was loud and lasted a minute.
  그 소리는 크고 일/NUM 분 동안 이어졌다.
""",
    "",
)
