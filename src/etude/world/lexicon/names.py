"""Names: people, families, pets, streets, villages, firms. Each given name belongs to one person of the town."""

from __future__ import annotations

WOMEN = """Anna 안나, Mila 밀라, Clara 클라라, Sofia 소피아, Ruth 루스, Ellen 엘렌, Nora 노라, Iris 아이리스,
    Jane 제인, Lena 레나, Maud 모드, Helen 헬렌, Vera 베라, Alma 알마, Susan 수전, Carol 캐럴, Edith 이디스,
    Marian 매리언, Rosalin 로절린, Tessa 테사, Ingrid 잉그리드, Karen 카렌, Olive 올리브, Paula 폴라, Rachel 레이철,
    Sibyl 시빌, Thelma 델마, Una 우나, Wendy 웬디, Yvonne 이본, Zelda 젤다, Abigail 애비게일, Bella 벨라,
    Corinne 코린, Daphne 대프니, Esther 에스더, Fiona 피오나, Gwen 그웬, Hazel 헤이즐, Isabel 이사벨, Judith 주디스,
    Kathleen 캐슬린, Laurel 로럴, Megan 메건, Nadia 나디아, Odile 오딜, Petra 페트라, Quinn 퀸, Rosa 로사,
    Sarah 세라, Tamar 타마르, Ursula 우르술라, Viola 비올라, Willa 윌라, Xenia 크세니아, Yasmin 야스민, Zoe 조이,
    Agnes 아그네스, Bridget 브리짓, Celine 셀린, Doris 도리스, Eileen 아일린, Flora 플로라, Greta 그레타, Hilda 힐다,
    Ivy 아이비, Joan 조앤, Kira 키라, Lydia 리디아, Mabel 메이블, Nell 넬, Opal 오팔, Pearl 펄, Ramona 라모나,
    Selma 셀마, Trudy 트루디, Vivian 비비언, Winifred 위니프레드, Adele 아델, Beatrice 비어트리스"""

MEN = """Ben 벤, Tom 톰, Leo 레오, Paul 폴, Oscar 오스카, Daniel 대니얼, Hugo 휴고, Simon 사이먼, Adam 애덤,
    Victor 빅터, Felix 펠릭스, Martin 마틴, Noah 노아, Karl 카를, Jacob 제이컵, Edwin 에드윈, Samuel 새뮤얼,
    Theo 테오, Ralph 랠프, Otto 오토, Albert 앨버트, Bruno 브루노, Conrad 콘래드, David 데이비드, Emil 에밀,
    Frank 프랭크, George 조지, Harold 해럴드, Ivan 이반, Jonas 요나스, Kevin 케빈, Luke 루크, Miles 마일스, Neil 닐,
    Owen 오언, Peter 피터, Quentin 퀜틴, Robin 로빈, Stefan 슈테판, Tobias 토비아스, Uriel 우리엘, Vincent 빈센트,
    Walter 월터, Xavier 사비에르, Yannick 야니크, Zachary 재커리, Arthur 아서, Basil 배질, Cyril 시릴, Dennis 데니스,
    Ernest 어니스트, Floyd 플로이드, Gilbert 길버트, Henry 헨리, Isaac 아이작, Julian 줄리언, Kurt 쿠르트,
    Lionel 라이어널, Morris 모리스, Nathan 네이선, Oliver 올리버, Philip 필립, Roland 롤런드, Silas 사일러스,
    Trevor 트레버, Ulrich 울리히, Vernon 버넌, Warren 워런, Abel 아벨, Boris 보리스, Caleb 케일럽, Dorian 도리언,
    Elias 엘리아스, Fergus 퍼거스, Gareth 개러스, Hector 헥터, Ian 이언, Jasper 재스퍼, Kenneth 케네스, Leon 리언"""

FAMILIES = """Hale 헤일, Marlow 말로, Birchall 버철, Tarn 탄, Rowen 로웬, Kestrel 케스트럴, Linden 린든,
    Ashby 애슈비, Crosby 크로즈비, Dunmore 던모어, Ellery 엘러리, Farrow 패로, Garland 갈런드, Holt 홀트, Ingram 잉그램,
    Jessop 제섭, Kimball 킴벌, Lark 라크, Merrill 메릴, Norwood 노우드, Orchard 오차드, Penrose 펜로즈, Quill 퀼,
    Redfern 레드펀, Sorrel 소럴, Thornton 손턴, Underhill 언더힐, Vance 밴스, Winslow 윈즐로, Yarrow 얘로,
    Aldous 올더스, Bramble 브램블, Colby 콜비, Drake 드레이크, Everett 에버렛, Finch 핀치, Grove 그로브, Harker 하커,
    Ives 아이브스, Jarvis 자비스"""

PETS = """Biscuit 비스킷, Pepper 페퍼, Mocha 모카, Ginger 진저, Button 버튼, Cloud 구름이, Pebble 조약이, Misty 안개,
    Rusty 러스티, Snowy 하양이, Sunny 햇살이, Patch 얼룩이, Coco 코코, Bean 콩이, Star 별이, Rocky 로키, Luna 루나,
    Max 맥스, Tulip 튤립이, Choco 초코, Bubbles 방울이, Shadow 그림자, Tiger 호랑이, Honey 꿀단지, Muffin 머핀,
    Lucky 럭키, Whiskers 수염이, Dusty 먼지, Thistle 엉겅이, Cotton 솜이, Cookie 쿠키, Domino 도미노, Echo 메아리,
    Fudge 퍼지, Gizmo 기즈모, Maple 단풍이, Inky 먹물이, Jelly 젤리, Kiki 키키, Lemon 레몬이, Mango 망고,
    Nutmeg 넛멕, Onyx 오닉스, Peanut 땅콩이, Quacky 꽥꽥이, Raisin 건포도, Sesame 참깨, Taffy 태피, Velvet 벨벳,
    Waffle 와플, Yoyo 요요, Ziggy 지기, Acorn 도토리, Berry 베리, Clover 토끼풀, Dot 점박이, Ember 불씨, Fig 무화과,
    Goldie 금동이, Hopper 깡충이"""

STREETS = """Willow Street 버들길, Mill Lane 방앗간길, Harbour Road 항구길, Church Street 교회길, Rose Lane 장미길,
    Market Street 시장길, River Road 강변길, Hill Street 언덕길, Garden Lane 정원길, Bridge Street 다리길,
    Station Road 역전길, Maple Street 단풍길, Stone Lane 돌담길, Lake Road 호수길, Tower Street 탑길,
    Orchard Lane 과수원길, Lantern Street 등불길, Fountain Street 분수길, Meadow Lane 풀밭길, Castle Road 성곽길,
    Weaver Street 베틀길, Chapel Lane 종소리길, Pine Street 소나무길, Swan Lane 백조길"""

VILLAGES = """Eldham 엘덤, Brookvale 브룩베일, Marsten 마스턴, Oakfield 오크필드, Thornby 손비, Silverton 실버턴,
    Westmere 웨스트미어, Larkhill 라크힐, Greystone 그레이스톤, Fernley 펀리, Winterbourne 윈터본,
    Redcliff 레드클리프, Hollowell 할로웰, Ravensby 레이븐스비, Applegate 애플게이트, Saltmarsh 솔트마시,
    Dunwick 더닉, Moorland 무어랜드, Fairhaven 페어헤이븐, Northwold 노스월드"""

FIRMS = """the Golden Lion 황금사자 상회, the Blue Anchor 푸른닻 공방, the Silver Key 은열쇠 조합,
    the Red Lantern 붉은등불 상회, the White Swan 하얀백조 공방, the Green Leaf 초록잎 조합,
    the Morning Star 샛별 상회, the Old Oak 늙은참나무 공방, the Black Cat 검은고양이 조합,
    the Full Moon 보름달 상회, the Merry Bell 즐거운종 공방, the Iron Gate 무쇠문 조합,
    the Little Owl 작은부엉이 상회, the Seven Stones 일곱돌 공방, the North Wind 북풍 조합,
    the Wooden Wheel 나무바퀴 상회, the Copper Kettle 구리주전자 공방, the Singing Bird 노래하는새 조합,
    the Quiet Corner 조용한모퉁이 상회, the Sunflower House 해바라기집 공방, the Crooked Chimney 굽은굴뚝 조합,
    the Lucky Clover 네잎클로버 상회, the Velvet Curtain 비단장막 공방, the Paper Crown 종이왕관 조합,
    the Winter Rose 겨울장미 상회, the Brave Sailor 용감한선원 공방, the Painted Door 색칠한문 조합,
    the Honey Pot 꿀단지 상회, the Three Feathers 세깃털 공방, the Hidden Well 숨은우물 조합,
    the Dancing Bear 춤추는곰 상회, the Amber Cup 호박잔 공방, the Rainy Day 비오는날 조합,
    the Royal Thimble 임금님골무 상회, the Stone Lamp 돌등잔 공방, the Happy Fisher 행복한어부 조합,
    the Long Road 먼길 상회, the Clear Spring 맑은샘 공방, the Purple Thread 보랏빛실 조합,
    the Wise Raven 현명한까마귀 상회"""
