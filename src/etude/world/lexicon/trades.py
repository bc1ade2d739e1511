"""Trades: who, doing what, to what, where, with what. A baker bakes bread at a bakery with an oven."""

from __future__ import annotations

from etude.world.words import Word, noun_table, table

# trade | verb | product | workplace | tool
_TRADES = """baker 제빵사 | bake 굽다/ㅂ | ~bread 빵 | bakery 빵집 | oven 오븐
carpenter 목수 | build 만들다 | cabinet 장식장 | carpentry shop 목공소 | saw 톱
teacher 교사 | teach 가르치다 | pupil 학생 | school 학교 | blackboard 칠판
doctor 의사 | treat 치료하다 | patient 환자 | clinic 진료소 | stethoscope 청진기
farmer 농부 | grow 재배하다 | ~wheat 밀 | farm 농장 | plough 쟁기
fisher 어부 | catch 잡다 | fish 물고기 | fishing dock 어부 부두 | net 그물
tailor 재단사 | sew 짓다/ㅅ | suit 양복 | tailor shop 양복점 | needle 바늘
blacksmith 대장장이 | hammer 두드리다 | horseshoe 편자 | smithy 대장간 | anvil 모루
gardener 정원사 | plant 심다 | flower 꽃 | greenhouse 온실 | spade 삽
painter 화가 | paint 그리다 | portrait 초상화 | studio 화실 | brush 붓
miller 제분사 | grind 빻다 | ~grain 곡식 | mill 방앗간 | millstone 맷돌
weaver 직조공 | weave 짜다 | ~cloth 천 | weaving room 직물 공방 | loom 베틀
potter 도공 | shape 빚다 | bowl 사발 | pottery 도자기 공방 | potter's wheel 물레
librarian 사서 | lend 빌려주다 | book 책 | library 도서관 | catalogue 도서 목록
watchmaker 시계공 | repair 수리하다 | watch 손목시계 | watch shop 시계방 | magnifier 확대경
barber 이발사 | cut 자르다/르 | ~hair 머리카락 | barbershop 이발소 | comb 빗
cook 요리사 | boil 끓이다 | ~broth 국물 | restaurant 식당 | ladle 국자
pharmacist 약사 | mix 조제하다 | ~medicine 약 | pharmacy 약국 | scale 저울
printer 인쇄공 | print 인쇄하다 | newspaper 신문 | print shop 인쇄소 | printing press 인쇄기
shoemaker 구두장이 | mend 고치다 | shoe 구두 | shoe shop 구둣방 | awl 송곳
jeweller 세공사 | polish 다듬다 | jewel 보석 | jewellery shop 금은방 | file 줄
beekeeper 양봉가 | collect 모으다 | ~honey 꿀 | bee farm 양봉장 | beehive 벌통
mason 석공 | lay 쌓다 | brick 벽돌 | quarry 채석장 | chisel 정
brewer 양조사 | brew 담그다 | ~ale 에일 맥주 | brewery 양조장 | barrel 술통
shepherd 양치기 | guard 돌보다 | sheep 양 | pasture 목장 | crook 갈고리 지팡이
candlemaker 양초 장인 | pour 붓다/ㅅ | ~wax 밀랍 | candle shop 양초 가게 | mould 틀
glassblower 유리 장인 | blow 불다 | ~glass 유리 | glassworks 유리 공방 | furnace 가마
coach driver 마부 | drive 몰다 | carriage 마차 | coach house 마차 차고 | rein 고삐
courier 배달부 | deliver 배달하다 | parcel 소포 | post office 우체국 | mailbag 우편 가방
florist 꽃장수 | sell 팔다 | bouquet 꽃다발 | flower shop 꽃집 | ribbon 리본
mechanic 정비사 | fix 손보다 | engine 엔진 | repair shop 정비소 | wrench 렌치
hatmaker 모자 장인 | trim 손질하다 | hat 모자 | hat shop 모자 가게 | felt iron 모자 다리미
sailor 선원 | steer 조종하다 | ship 배 | wharf 선창 | rudder 키
lawyer 변호사 | draft 작성하다 | contract 계약서 | law office 법률 사무소 | fountain pen 만년필
banker 은행원 | count 세다 | banknote 지폐 | bank 은행 | ledger 장부
vet 수의사 | examine 진찰하다 | sick animal 아픈 동물 | animal hospital 동물 병원 | syringe 주사기
nurse 간호사 | bandage 싸매다 | wound 상처 | hospital 병원 | thermometer 체온계
photographer 사진사 | take 찍다 | photograph 사진 | photo studio 사진관 | camera 사진기
toymaker 장난감 장인 | carve 깎다 | wooden horse 목마 | toy shop 장난감 가게 | carving knife 조각칼
cheesemaker 치즈 장인 | age 숙성시키다 | ~cheese 치즈 | dairy 치즈 공방 | cheese vat 치즈 통"""


def _trades() -> list[Word]:
    trades = []
    for line in _TRADES.split("\n"):
        cells = [cell.strip() for cell in line.split("|")]
        trade = noun_table(cells[0], "trade")[0]
        trade.links = {
            "does": table(cells[1], "trade verb", "VERB")[0],
            "makes": noun_table(cells[2], "product")[0],
            "place": noun_table(cells[3], "workplace")[0],
            "tool": noun_table(cells[4], "tool")[0],
        }
        trades.append(trade)
    return trades


TRADES = _trades()
