"""Garden: planting and blooming, a spoiled vegetable bed, an old tree, insects, the seasons."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
planting: a=person b=other z=flower u=digging_tool i=insect w=thing*
* In spring {@a} wanted to grow {z:s} in the garden.
  봄에 {@a:는} 정원에 {z:를} 키우고 싶었다.
  ? z: What did {a} want to grow? = {a:는} 무엇을 키우고 싶었는가?
/ {@a} loves {a.flower:s}, but this spring {a:he} planted {z:s}.
  {@a:는} {a.flower:를} 좋아하지만 올봄에는 {z:를} 심었다.
  ? z: What did {a} plant this spring? = {a:는} 올봄에 무엇을 심었는가?
* {@a} fetched {u:a} and dug the soil.
  {@a:는} {u:를} 가져와서 흙을 팠다.
  ? u: What did {a} fetch? = {a:는} 무엇을 가져왔는가?
* Then {@a} put the seeds into the ground and watered them.
  그다음 {@a:는} 땅에 씨앗을 심고 물을 주었다.
/ {@a} sowed the seeds in long rows.
  {@a:는} 씨앗을 길게 줄지어 뿌렸다.
* After two weeks the first/ADJ green leaves came out.
  두 주가 지나자 첫 푸른 잎이 돋아났다.
/ It rained often, and soon small shoots grew.
  비가 자주 내려서 곧 작은 싹이 자랐다.
* In summer the {z:s} bloomed, and {i:a} sat on the petals.
  여름에 {z:가} 피었고 꽃잎 위에 {i} 한 마리가 앉았다.
  ? i: What sat on the petals? = 꽃잎 위에 무엇이 앉았는가?
/ When the {z:s} opened, the whole garden smelled sweet.
  {z:가} 피자 온 정원에 달콤한 향기가 퍼졌다.
* {b} looked over the fence and called the flowers {w}.
  {b:는} 울타리 너머로 보고 꽃이 {w:다고} 했다.
/ {@a} cut some {z:s} and gave them to {b}.
  {@a:는} {z} 몇 송이를 꺾어 {b:에게} 주었다.
  ? b: Who got the {z:s}? = 누가 {z:를} 받았는가?

vegetable bed: a=person b=other v=vegetable k=wild_animal u=garden_thing n=number
* {@a} grew {v:s} in a bed behind the house on {a.home}.
  {@a:는} {a.home:에} 있는 집 뒤 텃밭에서 {v:를} 길렀다.
  ? v: What did {a} grow? = {a:는} 무엇을 길렀는가?
/ The bed of {a} was full of young {v:s}.
  {a:의} 텃밭에는 어린 {v:가} 가득했다.
  ? v: What was the bed full of? = 텃밭에는 무엇이 가득했는가?
* One morning half of the plants were eaten.
  어느 날 아침 채소의 절반이 뜯어 먹혀 있었다.
/ But every night some leaves were missing.
  그런데 밤마다 잎이 조금씩 없어졌다.
* In the soil {@a} found the tracks of {k:a}.
  {@a:는} 흙에서 {k} 발자국을 발견했다.
  ? k: Whose tracks did {a} find? = {a:는} 무엇의 발자국을 발견했는가?
* {b} told {a} to build a fence.
  {b:는} {a:에게} 울타리를 치라고 했다.
  ? b: Who told {a} to build a fence? = 누가 {a:에게} 울타리를 치라고 했는가?
/ {b} lent {a} {u:a} against the thief.
  {b:는} 도둑을 막으라고 {a:에게} {u:를} 빌려주었다.
  ? u: What did {b} lend {a}? = {b:는} {a:에게} 무엇을 빌려주었는가?
* {@a} worked in the garden for {n} hours.
  {@a:는} {n} 시간 동안 정원에서 일했다.
  ? n: How many hours did {a} work in the garden? = {a:는} 몇 시간 동안 정원에서 일했는가?
* After that/PRON nothing was eaten, and the {v:s} grew well.
  그 뒤로는 아무것도 먹히지 않았고 {v:는} 잘 자랐다.
/ In autumn {@a} pulled the {v:s} out of the soil.
  가을에 {@a:는} 흙에서 {v:를} 거두었다.

old tree: a=person b=other t=tree u=digging_tool
* An old {t} stood in the garden of {a}.
  {a:의} 정원에는 늙은 {t} 한 그루가 있었다.
  ? t: Which tree stood in the garden? = 정원에는 어떤 나무가 있었는가?
/ {@a} had planted {t:a} many years ago.
  {@a:는} 여러 해 전에 {t:를} 심었다.
  ? t: Which tree had {a} planted? = {a:는} 어떤 나무를 심었는가?
* Its branches were dry and its leaves were yellow.
  가지는 마르고 잎은 누렇게 변해 있었다.
/ In the last winter a heavy snow broke its branches.
  지난겨울 많은 눈에 가지가 부러졌다.
* {b} said that its roots were sick.
  {b:는} 뿌리가 병들었다고 말했다.
  ? b: Who said that the roots were sick? = 누가 뿌리가 병들었다고 말했는가?
* {@a} took {u:a} and loosened the earth around the trunk.
  {@a:는} {u:를} 들고 줄기 둘레의 흙을 부드럽게 했다.
  ? u: What did {a} take? = {a:는} 무엇을 들었는가?
/ {@a} cut the dry branches and watered the roots.
  {@a:는} 마른 가지를 자르고 뿌리에 물을 주었다.
* In spring new buds grew on the {t}.
  봄이 되자 {t:에} 새 눈이 돋았다.
* Now birds build nests in its shade.
  이제 새들이 그 그늘에 둥지를 튼다.
/ Now {a} sits under the {t} on warm days.
  이제 {a:는} 따뜻한 날이면 {t} 아래에 앉는다.

insects: a=person z=flower i=insect j=insect b=other
* {@a} found {i:a} on the {z:s}.
  {@a:는} {z:에서} {i} 한 마리를 발견했다.
  ? i: What did {a} find on the {z:s}? = {a:는} {z:에서} 무엇을 발견했는가?
/ On a leaf of the {z} sat {i:a}, and {@a} bent down to look.
  {z} 잎에 {i} 한 마리가 앉아 있어서 {@a:는} 몸을 굽혀 보았다.
  ? i: What sat on the leaf? = 잎에 무엇이 앉아 있었는가?
* It crept along the stem and hid under a petal.
  그것은 줄기를 따라 기어가 꽃잎 밑에 숨었다.
* {@a} asked {b} whether {i:s} harm the plants.
  {@a:는} {b:에게} {i:가} 식물에 해로운지 물었다.
  ? b: Who did {a} ask? = {a:는} 누구에게 물었는가?
* {b} explained that gardens need insects.
  {b:는} 정원에는 곤충이 필요하다고 설명했다.
/ {b} said that {i:s} and {j:s} are useful in a garden.
  {b:는} {i:와} {j:가} 정원에 이롭다고 말했다.
* So {@a} left the {i:s} in peace and watered the {z:s}.
  그래서 {@a:는} {i:를} 그대로 두고 {z:에} 물을 주었다.
/ Since/ADP then {@a} counts the {i:s} in the garden every evening.
  그 뒤로 {@a:는} 저녁마다 정원의 {i:를} 세어 본다.
""",
    "garden",
)
