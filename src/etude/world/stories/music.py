"""Music: a concert, a lesson, a dance at the festival, a broken string."""

from __future__ import annotations

from etude.world.notation import read_scripts

SCRIPTS = read_scripts(
    """
concert: a=person b=other m=music j=instrument w=event* f=feeling* q=weekday
* {@a} plays the {a.instrument} and gave a concert on {q}.
  {@a:는} {a.instrument:를} 연주하는데 {q:에} 연주회를 열었다.
  ? a.instrument: What does {a} play? = {a:는} 무엇을 연주하는가?
  ? q: When did {a} give a concert? = {a:는} 언제 연주회를 열었는가?
/ On {q} people came to the theatre to hear {a} and {a:his} {a.instrument}.
  {q:에} 사람들은 {a:의} {a.instrument} 연주를 들으러 극장에 왔다.
  ? a.instrument: Which instrument did people come to hear? = 사람들은 어떤 악기의 연주를 들으러 왔는가?
* Before/ADP the concert {@a} tuned the {a.instrument}.
  연주회 전에 {@a:는} {a.instrument:를} 조율했다.
/ Behind the curtain {@a} waited and breathed deeply.
  막 뒤에서 {@a:는} 기다리며 깊이 숨을 쉬었다.
* First {@a} played {m:a}, and the hall was silent.
  먼저 {@a:는} {m:을} 연주했고 객석은 고요했다.
  ? m: What did {a} play first? = {a:는} 먼저 무엇을 연주했는가?
* Then {b} joined in with {j:a}.
  그다음 {b:가} {j:로} 함께 연주했다.
  ? j: Which instrument did {b} play? = {b:는} 어떤 악기로 연주했는가?
  ? b: Who joined in? = 누가 함께 연주했는가?
/ For the last piece {b} came on stage with {j:a}.
  마지막 곡에서는 {b:가} {j:를} 들고 무대에 올랐다.
  ? j: What did {b} bring on stage? = {b:는} 무엇을 들고 무대에 올랐는가?
* The listeners thought the music was {w}.
  청중은 음악이 {w:다고} 생각했다.
/ It was {w:a} concert from beginning to end.
  처음부터 끝까지 {w:은} 연주회였다.
*0.7 After the applause {a} was {f}.
  박수가 끝난 뒤 {a:는} {f:었다}.

lesson: a=person b=other m=music n=number q=weekday
* {b} wanted to learn the {a.instrument} from {a}.
  {b:는} {a:에게} {a.instrument:를} 배우고 싶었다.
  ? a.instrument: What did {b} want to learn? = {b:는} 무엇을 배우고 싶었는가?
/ Every {q} {a} teaches {b} the {a.instrument}.
  {q:마다} {a:는} {b:에게} {a.instrument:를} 가르친다.
  ? q: When does {a} teach {b}? = {a:는} 언제 {b:를} 가르치는가?
* {@a} showed how to hold the instrument and play a note.
  {@a:는} 악기를 잡고 음을 내는 법을 보여 주었다.
/ In the first/ADJ lesson {@a} explained the notes.
  첫 수업에서 {@a:는} 음표를 설명했다.
* {b} practised the {m} for {n} weeks.
  {b:는} {n} 주 동안 {m:을} 연습했다.
  ? m: What did {b} practise? = {b:는} 무엇을 연습했는가?
  ? n: For how many weeks did {b} practise? = {b:는} 몇 주 동안 연습했는가?
* At first the melody sounded wrong, and the rhythm was too fast/ADJ.
  처음에는 가락이 틀리고 박자가 너무 빨랐다.
/ The neighbours heard the same melody again and again.
  이웃들은 같은 가락을 듣고 또 들었다.
* But soon {b} could play the {m} without a mistake.
  그러나 곧 {b:는} 틀리지 않고 {m:을} 연주할 수 있게 되었다.
* {a} clapped and chose a harder piece.
  {a:는} 손뼉을 치고 더 어려운 곡을 골랐다.
/ {a} took {a:his} own {a.instrument}, and they played together.
  {a:도} 자신의 {a.instrument:를} 들었고 그들은 함께 연주했다.

dance: a=person b=other m=music j=instrument s=season g=garment o=colour
* In {s} there/PRON was a festival with music on the square.
  {s:에} 광장에서 음악 축제가 열렸다.
  ? s: When was the festival? = 축제는 언제 열렸는가?
/ Lanterns hung over the square, and the musicians tuned their instruments.
  광장에 등불이 걸리고 악사들은 악기를 조율했다.
* {@a} wore {o:a} {g} and looked for somebody to dance/VERB with.
  {@a:는} {o:은} {g} 차림으로 함께 춤출 사람을 찾았다.
  ? g: What did {a} wear? = {a:는} 무슨 차림이었는가?
* A band began to play {m:a} with drums and {j:a}.
  악단이 북과 {j:로} {m:을} 연주하기 시작했다.
  ? m: What did the band begin to play? = 악단은 무엇을 연주하기 시작했는가?
/ Somebody played {m:a} on the {j}.
  누군가 {j:로} {m:을} 연주했다.
  ? j: On which instrument was the {m} played? = {m:은} 어떤 악기로 연주되었는가?
* {b} bowed to {a} and asked for a dance.
  {b:는} {a:에게} 인사하고 춤을 청했다.
  ? b: Who asked {a} for a dance? = 누가 {a:에게} 춤을 청했는가?
/ {@a} took the hand of {b}, and they danced.
  {@a:는} {b:의} 손을 잡고 춤을 추었다.
  ? b: Whose hand did {a} take? = {a:는} 누구의 손을 잡았는가?
* They turned in circles until the {m} ended.
  그들은 {m:이} 끝날 때까지 빙글빙글 돌았다.
/ The rhythm became faster/ADJ, and everybody clapped.
  박자가 점점 빨라지자 모두가 손뼉을 쳤다.
* At midnight the choir sang the last song.
  자정에 합창단이 마지막 노래를 불렀다.
/ When the band stopped, {a} and {b} were out of breath.
  악단이 연주를 멈추었을 때 {a:와} {b:는} 숨이 찼다.

broken string: a=person b=other m=music n=minutes
* {@a} was playing {m:a} on the {a.instrument} when something cracked.
  {@a:가} {a.instrument:로} {m:을} 연주하고 있는데 무언가 뚝 하고 부러졌다.
  ? m: What was {a} playing? = {a:는} 무엇을 연주하고 있었는가?
  ? a.instrument: Which instrument was {a} playing? = {a:는} 어떤 악기를 연주하고 있었는가?
/ During the {m} the {a.instrument} of {a} made a terrible sound.
  {m:을} 연주하던 중에 {a:의} {a.instrument:에서} 끔찍한 소리가 났다.
* The audience became restless, and the choir stopped.
  청중은 술렁거리고 합창단은 노래를 멈추었다.
/ {@a} stopped in the middle of the melody.
  {@a:는} 가락 한가운데에서 멈추었다.
* {b} ran on stage and brought another {a.instrument}.
  {b:가} 무대로 달려와 다른 {a.instrument:를} 가져다주었다.
  ? b: Who ran on stage? = 누가 무대로 달려왔는가?
/ {b} lent {a} {b:his} own {a.instrument}.
  {b:는} {a:에게} 자신의 {a.instrument:를} 빌려주었다.
  ? b: Who lent {a} an instrument? = 누가 {a:에게} 악기를 빌려주었는가?
* After {n} minutes the {m} went on.
  {n} 분 뒤 {m:이} 다시 이어졌다.
  ? n: After how many minutes did the {m} go on? = 몇 분 뒤에 {m:이} 이어졌는가?
* {a} played even better than before/ADV.
  {a:는} 전보다 더 훌륭하게 연주했다.
/ In the end the audience asked for one more/ADJ song.
  마지막에 청중은 앙코르를 청했다.
""",
    "music",
)
