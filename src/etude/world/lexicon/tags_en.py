"""Parts of speech of the words that stand in the English patterns (universal tag set), by tag.

A word has one tag here; where a pattern uses it otherwise, the pattern says so (`work/VERB`). Words that
change by place (to, have, do) are settled in `analysis`."""

from __future__ import annotations

_WORDS = {
    "DET": """
        a an the some every another all any this such no half
    """,
    "PRON": """
        you it they them her its their who what whose nobody nothing somebody something anything everybody everyone
        everything
    """,
    "ADP": """
        about across against along around at behind below beside between by down during for from in into near of
        off on onto out over through under up with without than as after
    """,
    "SCONJ": """
        because that when whenever whether while until before since
    """,
    "CCONJ": """
        and but
    """,
    "PART": """
        not to
    """,
    "AUX": """
        is are was were be being can cannot could
    """,
    "NUM": """
        one two three
    """,
    "ADV": """
        again ago alone aloud already always away afterwards back better clearly closer close deeply early even far
        fast faster first home how just late later meanwhile never now often once only quickly quietly really
        simply slowly so sometimes soon still suddenly then there together too well wrongly where yet upside less
        more most
    """,
    "ADJ": """
        afraid angry asleep bad beautiful best big bitter bright calm clean clear cold dangerous dark deep dirty
        dry easy empty expensive famous favourite free fresh full golden good green hard harder healthy heavy high
        hot hungry important last little long loud low many married missing much new next old other own quiet ready
        red restless ripe rusty same shining sick silent small smooth soft strange strong sweet terrible tired
        useful warm weak wet white whole wide wild worried worth wrong yellow young
    """,
    "INTJ": """
        goodbye
    """,
    "NOUN": """
        account advice afternoon air alphabet animal animals answer apology applause apple apples apron armchair
        audience autumn bags ball band bank bark base basket baskets bat bed bee bees beginning belly bench bill
        birds birthday bite blanket boat bottle branches breath bridge brother buds bushes cake candle candles
        captain car cards cart carts ceiling cheek chestnuts child children choir circles clerk cloth coat coins
        compass concert copy crane crowd cupboard current curtain customer customers daughter dawn day days dinner
        dish dishes doctor dog door dough drop drums dust earth eggs end engine envelope evening example eye eyes
        face families family farm farmer farms father feathers fence festival fever field finger flood floor
        flowers fog food foot forest fountain friend friends front fur game garden gardens gate glass glasses glue
        grass ground haggling hall hand hands harbour head heart herbs hill honey hook horse hour hours house
        houses illness inn insects instrument instruments jeweller journey judge jug juice kinds kitchen knife
        ladder lamp lantern lanterns leaf leather leaves leg legs lesson letter light list listeners living lot
        lunch map market masons master match meadow meal medicine melody menu merchant middle midnight milk minute
        minutes mirror mistake mistakes money month months morning mother mouth music musicians name neck neighbour
        neighbours nest nests newspaper night noise noon note notebook notes office order orders oven owner pain
        paint pan paper parents party passenger peace pear pears pen people petal petals photographs picnic piece
        pieces place plants plate platform players points post pot present price prices punishment purchase purse
        question questions rain receipt rest rhythm ring river road rocks roof roofs room roots round rows safe
        sailors scissors seal seeds shade shells ship shoots shop shops signs silence sister sky sled slice smoke
        snow soil son song sound south spelling spoon spring square stable stadium stage stairs stall stamp stars
        station stem stick storm story street sugar summer sunset table tables tea team tears theatre thief thorn
        ticket time times tool tools top town tracks trade train travellers tree trip trunk truth valley village
        voice wagon waiter wall walls water waves way weather week weeks wind window windows wings winter wire wood
        word words work worker workers years dance visit
    """,
    "VERB": """
        accepted added answered arrived asked ate bake baked bandaged became become began believe bent bloom
        bloomed born bought bowed break breathed broke broken brought brushed build built burned buy buying call
        called came carried caught checked cheered chose clapped cleaned cleared climbed closed closes collecting
        come comes cook cooked counted counts covered cracked crept cried crossed cured cut danced decided
        decorated did dived do does done drank drew drinks dropped drove dug eat eaten eating ended expected
        explained fed feed fell felt fetched filled find finish fits flew fly folded forgotten found frightened
        gave gets go goes gone got grazed grew grow grows had harm has have heal hear heard heated held help helped
        hid hold hoped hugged hummed hung hunting hurt invited joined keep keeps kept kissed knew knitted known
        knows laid lasted laughed lay learn learned leave leaving led left lent lies lifted like likes listened lit
        live lived lives loaded locked look looked looking looks loosened lost loves made make meets met missed
        mixed move moved need needed needs offered opened ordered packed paid painted parked pasted peeled picked
        picks piled planned planted play played playing plays pointed polished poured practised promised pulled put
        rained raise raised ran reach reached read remember remembered repaired rested returned roasted rode rolled
        rose rowed run runs said sang sat saw say scratched searched see seemed seen sent served set shared shines
        shone shook shouted show showed signed sits sitting sleep sleeps slept smelled smiled sneezed sniffed sold
        sounded sowed speak speaks spilled spread standing stands steered stirred stole stood stopped stung
        surprise swam swept swung take talked taste tasted taught teach teaches thank thanked thought threw
        thundered tied told took trains travel travelled tried tuned turned use used visited visits wait waited
        waiting walk walked walks want wanted wants warned washed watch watched watered waved weighed went
        whispered wiped woke won wore worked works worn wrapped wrote
    """,
}
TAGS: dict[str, str] = {word: tag for tag, words in _WORDS.items() for word in words.split()}
TAGS |= dict.fromkeys('".,:;?', "PUNCT")
