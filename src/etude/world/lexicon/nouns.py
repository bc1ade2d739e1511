"""Common nouns by kind. A leading ~ marks a noun without plural. Homonyms are ordinary members of their kinds:
Korean 배 is a fruit here and a vehicle there, and only the sentence around it tells which."""

from __future__ import annotations

from etude.world.words import Word, noun_table

_TABLES: dict[str, str] = {
    "fruit": """apple 사과, pear 배, plum 자두, cherry 체리, grape 포도, peach 복숭아, lemon 레몬, orange 오렌지,
        strawberry 딸기, melon 멜론, persimmon 감, chestnut 밤, raspberry 산딸기, apricot 살구, fig 무화과,
        walnut 호두, blueberry 블루베리, watermelon 수박, pomegranate 석류, almond 아몬드, tangerine 귤,
        mulberry 오디, kiwi 키위, mango 망고""",
    "vegetable": """potato 감자, carrot 당근, onion 양파, cabbage 양배추, pumpkin 호박, tomato 토마토, cucumber 오이,
        radish 무, mushroom 버섯, bean 콩, leek 대파, ~garlic 마늘, ~spinach 시금치, turnip 순무, eggplant 가지,
        pepper 고추, sweet potato 고구마, beet 비트, ~celery 셀러리, ~lettuce 상추, ~broccoli 브로콜리,
        ~parsley 파슬리, ~asparagus 아스파라거스""",
    "dish": """~soup 수프, stew 스튜, pie 파이, ~porridge 죽, cake 케이크, ~dumpling soup 만둣국, pancake 팬케이크,
        salad 샐러드, omelet 오믈렛, sandwich 샌드위치, ~curry 카레, pudding 푸딩, sausage pie 소시지 파이,
        pizza 피자, waffle 와플, tart 타르트, ~rice cake 떡, pastry 페이스트리, casserole 캐서롤, roast 구이,
        risotto 리소토, ~fried fish 생선튀김, ~fried rice 볶음밥, muffin 머핀, ~noodle soup 국수,
        ~spaghetti 스파게티, ~lasagna 라자냐, crepe 크레이프, pretzel 프레첼, doughnut 도넛""",
    "drink": """~tea 차, ~milk 우유, ~coffee 커피, ~juice 주스, ~water 물, ~cocoa 코코아, ~lemonade 레모네이드,
        ~beer 맥주, ~wine 포도주, ~ginger tea 생강차, ~honey water 꿀물, ~barley tea 보리차""",
    "ingredient": """~salt 소금, ~sugar 설탕, ~butter 버터, egg 달걀, ~flour 밀가루, ~honey 꿀, ~oil 기름,
        ~vinegar 식초, ~cinnamon 계피, ~ginger 생강, ~cream 크림, ~cheese 치즈, ~rice 쌀, ~mint 박하, ~yeast 효모,
        ~vanilla 바닐라, ~mustard 겨자, ~sesame 참깨, ~basil 바질, ~rosemary 로즈메리""",
    "utensil": """pot 냄비, pan 프라이팬, knife 칼, spoon 숟가락, fork 포크, ladle 국자, plate 접시, cup 컵,
        kettle 주전자, tray 쟁반, whisk 거품기, grater 강판, sieve 체, jug 물병, cutting board 도마, mug 머그잔,
        rolling pin 밀대, spatula 주걱""",
    "pet": """dog 개, cat 고양이, rabbit 토끼, parrot 앵무새, goat 염소, hamster 햄스터, turtle 거북, pony 조랑말,
        duck 오리, canary 카나리아, hedgehog 고슴도치, guinea pig 기니피그, ferret 페럿, pigeon 비둘기""",
    "farm animal": """cow 소, sheep 양, pig 돼지, hen 암탉, horse 말, donkey 당나귀, goose 거위, turkey 칠면조,
        calf 송아지, lamb 새끼 양, rooster 수탉, ox 황소, mule 노새, foal 망아지""",
    "wild animal": """fox 여우, owl 부엉이, deer 사슴, wolf 늑대, bear 곰, bat 박쥐, squirrel 다람쥐, hare 산토끼,
        badger 오소리, raven 까마귀, eagle 독수리, snake 뱀, mole 두더지, falcon 매, boar 멧돼지, weasel 족제비,
        lynx 스라소니, magpie 까치, woodpecker 딱따구리, stork 황새, lizard 도마뱀, toad 두꺼비, raccoon 너구리,
        moose 말코손바닥사슴""",
    "water animal": """crane 두루미, otter 수달, seal 바다표범, swan 백조, frog 개구리, beaver 비버, heron 왜가리,
        kingfisher 물총새, pelican 펠리컨, crab 게, dolphin 돌고래, wild duck 청둥오리""",
    "insect": """bee 벌, butterfly 나비, ant 개미, beetle 딱정벌레, spider 거미, cricket 귀뚜라미, moth 나방,
        dragonfly 잠자리, ladybug 무당벌레, snail 달팽이, grasshopper 메뚜기, firefly 반딧불이, caterpillar 애벌레""",
    "flower": """rose 장미, tulip 튤립, daisy 데이지, lily 백합, sunflower 해바라기, violet 제비꽃, poppy 양귀비,
        iris 붓꽃, daffodil 수선화, peony 작약, orchid 난초, dandelion 민들레, carnation 카네이션, azalea 진달래,
        jasmine 재스민, lotus 연꽃, zinnia 백일홍, hydrangea 수국, camellia 동백, chrysanthemum 국화,
        marigold 금잔화, snowdrop 설강화""",
    "tree": """oak 참나무, pine 소나무, maple 단풍나무, willow 버드나무, birch 자작나무, apple tree 사과나무,
        cherry tree 벚나무, poplar 포플러, palm 야자나무, cedar 삼나무, elm 느릅나무, ash 물푸레나무, linden 보리수,
        chestnut tree 밤나무, ginkgo 은행나무, fir 전나무, fig tree 무화과나무, olive tree 올리브나무,
        walnut tree 호두나무, plum tree 자두나무""",
    "garden thing": """spade 삽, rake 갈퀴, weeding hoe 호미, bucket 양동이, watering can 물뿌리개, fence 울타리,
        wheelbarrow 손수레, flowerpot 화분, sickle 낫, hose 호스, trowel 모종삽, scarecrow 허수아비, greenhouse 온실,
        compost heap 퇴비 더미""",
    "digging tool": "spade 삽, hoe 괭이, shovel 부삽, trowel 모종삽, pickaxe 곡괭이, garden fork 쇠스랑",
    "knitwear": "sweater 스웨터, scarf 목도리, hat 모자, vest 조끼, shawl 숄, cardigan 카디건",
    "road vehicle": "cart 수레, carriage 마차, bicycle 자전거, wagon 짐마차, truck 트럭, motorcycle 오토바이, bus 버스",
    "public vehicle": "train 기차, ship 배, bus 버스, ferry 나룻배, tram 전차, carriage 마차",
    "instrument": """violin 바이올린, flute 플루트, drum 북, piano 피아노, guitar 기타, trumpet 트럼펫, harp 하프,
        cello 첼로, accordion 아코디언, clarinet 클라리넷, banjo 밴조, horn 호른, fiddle 피들, lute 류트,
        oboe 오보에, tambourine 탬버린, xylophone 실로폰, harmonica 하모니카, mandolin 만돌린, bassoon 바순,
        zither 가야금, trombone 트롬본, bagpipe 백파이프""",
    "music": """song 노래, waltz 왈츠, march 행진곡, lullaby 자장가, dance 춤곡, ballad 발라드, hymn 찬송가,
        serenade 세레나데, polka 폴카, tango 탱고, symphony 교향곡, folk song 민요, minuet 미뉴에트, sonata 소나타,
        carol 캐럴, rhapsody 광시곡""",
    "garment": """coat 외투, hat 모자, scarf 목도리, dress 드레스, shirt 셔츠, sweater 스웨터, belt 허리띠,
        jacket 재킷, skirt 치마, apron 앞치마, vest 조끼, cape 망토, shawl 숄, bonnet 보닛, cloak 긴 망토,
        necktie 넥타이, robe 가운, poncho 판초, raincoat 비옷""",
    "furniture": """table 탁자, chair 의자, lamp 등잔, bed 침대, shelf 선반, mirror 거울, carpet 양탄자, clock 시계,
        curtain 커튼, bench 벤치, desk 책상, wardrobe 옷장, cushion 방석, sofa 소파, stool 걸상, cradle 요람,
        cupboard 찬장, bookcase 책장, armchair 안락의자, footstool 발판, candlestick 촛대, hammock 해먹,
        folding screen 병풍, vase 꽃병""",
    "treasure": """ring 반지, letter 편지, diary 일기장, necklace 목걸이, map 지도, pocket watch 회중시계,
        medal 메달, music box 오르골, photograph 사진, telescope 망원경, coin 동전, compass 나침반, brooch 브로치,
        key 열쇠, doll 인형, bracelet 팔찌, feather 깃털, seashell 조개껍데기, stamp 우표, crystal 수정,
        whistle 호루라기, magnifying glass 돋보기, silver spoon 은수저, chess set 체스판, snow globe 스노글로브,
        postcard 엽서, earring 귀걸이, handkerchief 손수건, figurine 조각상""",
    "spot": """drawer 서랍, chest 궤짝, attic 다락방, cellar 지하실, box 상자, basket 바구니, cabinet 장식장,
        trunk 트렁크, jar 항아리, shed 헛간, wallet 지갑, suitcase 여행 가방, closet 벽장, safe 금고, barn 곳간,
        sack 자루, pocket 주머니, tin can 깡통, desk drawer 책상 서랍, sewing box 반짇고리, pantry 식료품실,
        garage 차고""",
    "vehicle": """ship 배, cart 수레, train 기차, carriage 마차, bicycle 자전거, boat 보트, ferry 나룻배, sled 썰매,
        bus 버스, wagon 짐마차, tram 전차, canoe 카누, raft 뗏목, balloon 열기구, motorcycle 오토바이, truck 트럭,
        sailboat 돛단배""",
    "luggage": """suitcase 여행 가방, backpack 배낭, blanket 담요, umbrella 우산, lantern 손전등, map 지도,
        ticket 표, tent 천막, bottle 물병, walking stick 지팡이, notebook 수첩, first aid kit 구급상자, rope 밧줄,
        travel guide 여행 안내서""",
    "sight": """bridge 다리, castle 성, waterfall 폭포, tower 탑, cave 동굴, lighthouse 등대, temple 사원, lake 호수,
        museum 박물관, valley 골짜기, island 섬, ruin 폐허, monument 기념비, cathedral 대성당, hot spring 온천,
        gate 성문, windmill 풍차, cliff 절벽, fountain 분수, beach 해변, canyon 협곡, glacier 빙하, vineyard 포도밭,
        aqueduct 수로""",
    "room": """kitchen 부엌, bedroom 침실, garden 정원, hall 현관, living room 거실, bathroom 욕실, porch 베란다,
        study 서재, yard 마당, basement 지하 창고, nursery 아이 방, stairs 계단, dining room 식당, balcony 발코니""",
    "chore": """the dishes 설거지, the laundry 빨래, the cleaning 청소, the ironing 다림질, the mending 바느질,
        the shopping 장보기, the sweeping 비질, the gardening 정원 일, the packing 짐 싸기""",
    "landmark": """market 시장, square 광장, school 학교, church 교회, station 역, park 공원, harbour 항구,
        mill 방앗간, library 도서관, bridge 다리, fountain 분수, town hall 시청, theatre 극장, well 우물,
        post office 우체국, stadium 경기장, hospital 병원, windmill 풍차, chapel 예배당, lighthouse 등대,
        museum 박물관, cemetery 묘지, clock tower 시계탑, gate 성문""",
    "toy": """ball 공, kite 연, doll 인형, puzzle 퍼즐, top 팽이, marble 구슬, puppet 꼭두각시,
        toy train 장난감 기차, teddy bear 곰 인형, yo-yo 요요, jump rope 줄넘기, building block 나무토막,
        hoop 굴렁쇠, pinwheel 바람개비""",
    "weekday": """Monday 월요일, Tuesday 화요일, Wednesday 수요일, Thursday 목요일, Friday 금요일, Saturday 토요일,
        Sunday 일요일""",
    "season": """spring 봄, summer 여름, autumn 가을, winter 겨울""",
    "daytime": """morning 아침, evening 저녁, afternoon 오후, night 밤""",
    "boat": "boat 보트, canoe 카누, raft 뗏목, ferry 나룻배, sailboat 돛단배, rowing boat 거룻배, fishing boat 고깃배",
    "game": """football 축구, tennis 테니스, volleyball 배구, basketball 농구, table tennis 탁구, chess 체스,
        hockey 하키, handball 핸드볼, badminton 배드민턴, wrestling 씨름""",
    "cargo": """container 컨테이너, crate 나무 상자, barrel 통, beam 들보, pipe 쇠파이프, machine 기계,
        bale 짐 꾸러미, steel plate 강철판, anchor 닻, propeller 프로펠러""",
    "vessel": "bucket 양동이, jug 물병, kettle 주전자, cup 컵, barrel 통, bowl 사발, canteen 수통, pitcher 물동이",
    "rock": "rock 바위, stone 돌, boulder 큰 바위, fern 고사리, pebble 조약돌, root 뿌리",
    "small prey": "frog 개구리, snail 달팽이, minnow 피라미, worm 지렁이, tadpole 올챙이, beetle 딱정벌레, crayfish 가재",
    "stranger": """stranger 낯선 사람, thief 도둑, guest 손님, beggar 거지, peddler 행상인, traveller 나그네,
        policeman 경찰관, messenger 심부름꾼""",
    "small animal": "squirrel 다람쥐, woodpecker 딱따구리, bear 곰, badger 오소리, raccoon 너구리, weasel 족제비, hedgehog 고슴도치",
    "sea food": "herring 청어, sardine 정어리, squid 오징어, mackerel 고등어, cod 대구, anchovy 멸치, shrimp 새우",
    "document": """contract 계약서, will 유언장, invitation 초대장, certificate 증명서, bill 청구서, passport 여권,
        report 보고서, diploma 졸업장, petition 청원서, poster 벽보""",
    "writing": "sign 간판, blackboard 칠판, notebook 수첩, book cover 책표지, poster 벽보, name tag 이름표, envelope 봉투, banner 현수막",
    "light": "candle 양초, lamp 등잔, stove 난로, lantern 손전등, torch 횃불, campfire 모닥불, pipe 담뱃대, fireplace 벽난로",
    "sports gear": """ball 공, helmet 헬멧, goal 골대, uniform 유니폼, whistle 호루라기, racket 라켓,
        scoreboard 점수판, referee 심판, trophy 우승컵, coach 감독""",
    "post": """stamp 우표, parcel 소포, postcard 엽서, mailbox 우체통, courier 배달부, envelope 봉투,
        post office 우체국, telegram 전보, address 주소""",
    "school thing": """blackboard 칠판, pencil 연필, eraser 지우개, notebook 수첩, teacher 교사, ~chalk 분필,
        dictionary 사전, ~paper 종이, ruler 자, pupil 학생""",
    "body": "arm 팔, foot 발, shoulder 어깨, knee 무릎, back 등, hand 손, waist 허리, wrist 손목, elbow 팔꿈치",
    "face": "nose 코, mouth 입, ear 귀, cheek 뺨, forehead 이마, ~hair 머리카락, lip 입술, chin 턱",
    "winter thing": "sled 썰매, scarf 목도리, ~ice 얼음, ~frost 서리, icicle 고드름, stove 난로, fur coat 털외투, skate 스케이트",
    "talk": "promise 약속, question 질문, answer 대답, rumour 소문, joke 농담, secret 비밀, quarrel 다툼, excuse 변명, ~advice 조언",
    "night thing": "star 별, moon 달, dream 꿈, owl 부엉이, lantern 손전등, firefly 반딧불이, lullaby 자장가, shadow 그림자",
    "court": "thief 도둑, prison 감옥, judge 판사, crime 죄, law 법, policeman 경찰관, trial 재판, lawyer 변호사",
    "sickness": "~fever 열, cough 기침, wound 상처, ~pain 통증, ~medicine 약, doctor 의사, bandage 붕대, headache 두통, nurse 간호사",
    "metal": "~gold 금, ~silver 은, ~copper 구리, ~bronze 청동, ~iron 쇠, ~platinum 백금",
    "jewel": "pearl 진주, ruby 루비, diamond 다이아몬드, emerald 에메랄드, sapphire 사파이어, opal 오팔, crystal 수정, amethyst 자수정",
    "sounding": "bell 종, alarm clock 자명종, telephone 전화, doorbell 초인종, gong 징, fire bell 화재 경보, school bell 학교 종",
    "wood": "~oak 참나무, ~ash 물푸레나무, ~maple 단풍나무, ~birch 자작나무, ~pine 소나무, ~cedar 삼나무",
    "book": """novel 소설, newspaper 신문, letter 편지, diary 일기장, fairy tale 동화, poem 시, map 지도,
        cookbook 요리책, dictionary 사전, comic book 만화책, biography 전기, magazine 잡지""",
    "horse food": "~hay 건초, carrot 당근, apple 사과, oat 귀리, sugar cube 각설탕, ~barley 보리, ~grass 풀",
    "cup": "cup 컵, mug 머그잔, bowl 사발, teacup 찻잔, glass 유리잔, saucer 접시",
    "sweet": "~honey 꿀, ~sugar 설탕, ~milk 우유, ~lemon 레몬, ~ginger 생강, ~cinnamon 계피, ~mint 박하, ~syrup 시럽",
    "material": """~wood 나무, ~wool 털실, ~silk 비단, ~leather 가죽, ~iron 쇠, ~glass 유리, ~clay 진흙, ~stone 돌,
        ~paper 종이, ~cotton 솜, ~silver 은, ~gold 금, ~copper 구리, ~linen 삼베, ~wax 밀랍, ~bronze 청동, ~straw 짚,
        ~ivory 상아""",
}

NOUNS: dict[str, list[Word]] = {category: noun_table(text, category) for category, text in _TABLES.items()}
NOUNS["number"] = noun_table(
    """two 두, three 세, four 네, five 다섯, six 여섯, seven 일곱, eight 여덟, nine 아홉, ten 열""",
    "number",
    "NUM",
)
NOUNS["minutes"] = noun_table(  # minutes are counted with Chinese numerals
    "ten 십, five 오, twenty 이십, fifteen 십오, thirty 삼십, forty 사십, fifty 오십", "minutes", "NUM"
)
NOUNS["few"], NOUNS["many"] = NOUNS["number"][:4], NOUNS["number"][4:]
for _day in NOUNS["weekday"]:
    _day.tag = "PROPN"

ANIMALS = ("pet", "farm animal", "wild animal", "water animal")

# what an animal eats and where it lives: facts of every town, so not drawn from the seed
_HABITS = """dog bone 뼈다귀, dog house 개집; cat sardine 정어리, windowsill 창턱; rabbit carrot 당근, hutch 토끼장;
    parrot sunflower seed 해바라기씨, cage 새장; goat thistle 엉겅퀴, hillside 산비탈;
    hamster oat 귀리, hamster cage 햄스터 우리; turtle lettuce leaf 상추 잎, tank 수조;
    pony apple 사과, stable 마구간; duck ~water weed 물풀, pond 연못; canary millet seed 좁쌀, birdcage 카나리아장;
    hedgehog worm 지렁이, leaf pile 낙엽 더미; guinea pig cucumber slice 오이 조각, straw box 짚 상자;
    ferret egg 달걀, burrow 굴; pigeon breadcrumb 빵 부스러기, loft 비둘기장; cow ~clover 토끼풀, cowshed 외양간;
    sheep ~grass 풀, meadow 풀밭; pig acorn 도토리, sty 돼지우리; hen corn kernel 옥수수 알, henhouse 닭장;
    horse ~hay 건초, paddock 방목장; donkey ~straw 지푸라기, barnyard 헛간 마당; goose ~barley 보리, riverside 강가;
    turkey seed 씨앗, coop 칠면조장; fox mouse 쥐, den 여우 굴; owl vole 들쥐, hollow tree 속 빈 나무;
    deer leaf 나뭇잎, forest 숲; wolf hare 산토끼, mountain 산; bear salmon 연어, cave 동굴;
    bat moth 나방, belfry 종탑; crane snail 달팽이, marsh 늪; squirrel nut 견과, branch 나뭇가지;
    badger beetle 딱정벌레, hillock 언덕; otter trout 송어, stream 개울; seal herring 청어, shore 바닷가;
    raven crumb 부스러기, rooftop 지붕; swan ~pondweed 수초, lake 호수; eagle snake 뱀, cliff 절벽;
    frog fly 파리, ditch 도랑; mole earthworm 땅지렁이, tunnel 땅굴; beaver ~bark 나무껍질, dam 둑;
    heron minnow 피라미, reed bed 갈대밭; calf ~milk 젖, cow barn 소 우리; lamb ~clover 토끼풀, sheepfold 양 우리;
    rooster ~grain 낟알, chicken yard 닭 마당; ox ~hay 건초, ox stall 황소 우리; mule oat 귀리, mule pen 노새 우리;
    foal ~milk 젖, horse stable 말 우리; hare ~bark 나무껍질, field 들판; snake mouse 쥐, rock pile 돌무더기;
    falcon lark 종달새, tower 탑; boar acorn 도토리, oak wood 참나무 숲; weasel egg 달걀, stone wall 돌담;
    lynx rabbit 토끼, pine forest 소나무 숲; magpie berry 열매, treetop 나무 꼭대기;
    woodpecker larva 애벌레, tree trunk 나무줄기; stork frog 개구리, chimney 굴뚝;
    lizard cricket 귀뚜라미, wall crack 벽 틈; toad slug 민달팽이, damp cellar 축축한 지하실;
    raccoon crayfish 가재, river bank 강둑; moose twig 잔가지, swamp 늪지대;
    kingfisher small fish 작은 물고기, river 강; pelican fish 물고기, bay 만; crab ~seaweed 해초, beach 모래사장;
    dolphin squid 오징어, sea 바다; wild duck ~pondweed 수초, reed lake 갈대 호수"""


def _habits() -> None:
    kinds = {word.english: word for category in ANIMALS for word in NOUNS[category]}
    foods: dict[str, Word] = {}
    homes: dict[str, Word] = {}
    for entry in _HABITS.replace("\n", " ").split(";"):
        first, second = entry.split(",")
        name = max((kind for kind in kinds if first.strip().startswith(kind + " ")), key=len)
        prey = noun_table(first.strip().removeprefix(name + " "), "feed")[0]
        home = noun_table(second, "habitat")[0]
        kinds[name].links["eats"] = foods.setdefault(prey.key, prey)
        kinds[name].links["habitat"] = homes.setdefault(home.key, home)
    NOUNS["feed"], NOUNS["habitat"] = list(foods.values()), list(homes.values())


_habits()
