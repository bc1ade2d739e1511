"""Pictures of Transformers and of what is built on them."""

from __future__ import annotations

from itertools import pairwise

from docs.generator.drawing import Picture


def transformer() -> Picture:
    picture = Picture("An encoder, a decoder, and attention from one to the other", 520, 290)
    for x, title in ((140, "encoder × 6"), (380, "decoder × 6")):
        picture.box(x, 148, 196, 188, "", "n")
        picture.text(x - 96, 40, title, 12, soft=True, anchor="start")
    picture.box(140, 200, 160, 30, "self-attention", "a")
    picture.box(140, 110, 160, 30, "feed-forward", "b")
    picture.box(380, 210, 160, 28, "causal self-attention", "a")
    picture.box(380, 150, 160, 28, "attention to the source", "c")
    picture.box(380, 90, 160, 28, "feed-forward", "b")
    picture.text(140, 272, "source", 13)
    picture.text(380, 272, "target, one token behind", 13)
    for x, stops in ((140, (260, 218, 182, 128)), (380, (260, 226, 194, 166))):
        picture.arrow(x, stops[0], x, stops[1])
        picture.arrow(x, stops[2], x, stops[3])
    picture.arrow(380, 134, 380, 106)
    picture.arrow(380, 74, 380, 22)
    picture.text(380, 12, "next target token", 13)
    picture.line(140, 94, 140, 70)
    picture.line(140, 70, 262, 70)
    picture.line(262, 70, 262, 150)
    picture.arrow(262, 150, 298, 150)
    return picture


def gpt1() -> Picture:
    picture = Picture("Every token predicts the next; a task is a sequence with markers", 520, 220)
    words = picture.row(["start", "premise", "$", "hypothesis", "extract"], 190, "cacac", w=82, gap=8, size=12)
    picture.box(260, 122, 440, 30, "Transformer, each token sees those to its left", "a")
    for word in words:
        picture.arrow(word, 175, word, 139)
    for left, right in pairwise(words):
        picture.arrow(left, 106, (left + right) / 2, 72, dash=True)
    picture.text(220, 60, "the next token, in pre-training and as a second loss", 12, soft=True)
    picture.arrow(words[4], 106, words[4], 40)
    picture.box(words[4], 26, 76, 26, "linear", "b", 12)
    return picture


def gpt2() -> Picture:
    picture = Picture("Norms before the branches, so that the stream of states runs through untouched", 520, 200)
    for x, title, first in ((130, "GPT-1: norm behind the sum", False), (390, "GPT-2: norm before the branch", True)):
        picture.text(x, 18, title, 12, soft=True)
        picture.arrow(x - 80, 186, x - 80, 36)
        picture.text(x - 80, 195, "", 12)
        if first:
            picture.box(x + 10, 166, 90, 26, "norm", "c")
            picture.box(x + 10, 112, 90, 26, "attention", "a")
            picture.line(x - 80, 180, x + 10, 180)
            picture.arrow(x + 10, 153, x + 10, 126)
        else:
            picture.box(x + 10, 138, 90, 26, "attention", "a")
            picture.line(x - 80, 172, x + 10, 172)
            picture.arrow(x + 10, 172, x + 10, 152)
            picture.box(x - 80, 62, 70, 24, "norm", "c")
        picture.line(x + 10, 98 if first else 124, x + 10, 92)
        picture.arrow(x + 10, 92, x - 72, 92)
        picture.dot(x - 80, 92, 7, "b")
        picture.text(x - 80, 91.5, "+", 12)
    return picture


def gpt3() -> Picture:
    picture = Picture("Examples in the prompt, and layers that are dense and banded in turn", 520, 200)
    lines = ["Review: stale soup → bad", "Review: a fine flute → good", "Review: warm bread →"]
    for number, line in enumerate(lines):
        picture.box(136, 46 + 38 * number, 240, 30, line, "aab"[number], 12)
    picture.text(136, 164, "shots in the text; no weight changes", 12, soft=True)
    picture.arrow(258, 122, 286, 122)
    picture.text(308, 122, "good", 13)
    for start, title, band in ((352, "dense", 9), (444, "banded", 2)):
        for line in range(6):
            for column in range(line + 1):
                kind = "a" if line - column <= band else "n"
                picture.box(start + 12 * column, 50 + 12 * line, 11, 11, "", kind)
        picture.text(start + 30, 140, title, 12, soft=True)
    return picture


def bert() -> Picture:
    picture = Picture("Masked tokens are predicted from both sides; the first state says whether B follows A", 540, 220)
    tokens = ["[CLS]", "the", "[MASK]", "sat", "[SEP]", "it", "slept", "[SEP]"]
    words = picture.row(tokens, 186, "cabacaac", w=58, gap=6, size=12)
    picture.box(270, 118, 506, 30, "Transformer, every token sees every token of its sequence", "a")
    for word in words:
        picture.arrow(word, 171, word, 135)
    picture.arrow(words[0], 102, words[0], 62)
    picture.text(words[0] + 8, 48, "B follows A?", 12)
    picture.arrow(words[2], 102, words[2], 62)
    picture.text(words[2], 48, "cat", 13)
    picture.text(words[3] + 60, 48, "15 % of the tokens", 12, soft=True)
    picture.text(words[2] - 32, 212, "segment A", 11, soft=True)
    picture.text(words[6], 212, "segment B", 11, soft=True)
    return picture


def albert() -> Picture:
    picture = Picture("One set of weights for all layers, and a narrow table of tokens", 520, 200)
    picture.box(80, 150, 60, 70, "V × E\ntable", "c", 12)
    picture.box(170, 150, 70, 40, "E × H", "b", 12)
    picture.arrow(111, 150, 134, 150)
    picture.arrow(206, 150, 262, 150)
    picture.box(330, 150, 132, 60, "one block:\nattention, FFN", "a")
    picture.curve(376, 119, 284, 119, 74)
    picture.arrow(287, 112, 284, 119)
    picture.text(330, 66, "12 times through the same weights", 12, soft=True)
    picture.arrow(397, 150, 440, 150)
    picture.text(476, 150, "states", 13)
    picture.text(126, 94, "E = 128, H up to 4096", 12, soft=True)
    return picture


def electra() -> Picture:
    picture = Picture("A generator fills blanks; the discriminator says which tokens were replaced", 540, 250)
    bottom = picture.row(["the", "[MASK]", "cooked", "the", "[MASK]"], 226, "abaab", w=74)
    filled = picture.row(["the", "chef", "cooked", "the", "shoe"], 136, "aaaab", w=74)
    picture.box(270, 182, 414, 26, "generator: small, masked language model", "d", 12)
    picture.box(270, 88, 414, 26, "discriminator: kept afterwards", "a", 12)
    answers = picture.row(["as it was"] * 4 + ["replaced"], 36, "ccccb", w=74, size=12)
    for x in bottom:
        picture.arrow(x, 211, x, 197)
    for x in filled:
        picture.arrow(x, 168, x, 152)
        picture.arrow(x, 121, x, 103)
    for x in answers:
        picture.arrow(x, 74, x, 52)
    return picture


def distilbert() -> Picture:
    picture = Picture("A student of half the layers learns the teacher's distribution and direction", 520, 230)
    for number in range(6):
        picture.box(120, 190 - 26 * number, 150, 22, f"teacher {2 * number + 1}, {2 * number + 2}", "d", 11)
        if number % 2 == 0:
            picture.box(400, 177 - 26 * number, 150, 46, f"student {number + 1}, {number + 2}", "a", 11)
    for number in range(3):
        picture.arrow(198, 178 - 52 * number, 322, 178 - 52 * number, dash=True)
    picture.text(260, 214, "the first weights: layers of the teacher, evenly spread", 12, soft=True)
    picture.arrow(120, 46, 120, 30)
    picture.arrow(400, 48, 400, 30)
    picture.line(160, 18, 356, 18, dash=True)
    picture.text(120, 18, "soft targets", 12)
    picture.text(400, 18, "the same", 12)
    return picture


def tinybert() -> Picture:
    picture = Picture("Attention scores and states of every third teacher layer are matched", 520, 270)
    for number in range(12):
        kind = "d" if number % 3 == 2 else "n"
        label = f"layer {number + 1}" if number % 3 == 2 else ""
        picture.box(120, 214 - 16 * number, 130, 14, label, kind, 10)
    for number in range(4):
        height = 182 - 48 * number
        picture.box(400, height, 100, 26, f"layer {number + 1}", "a", 12)
        picture.arrow(186, height, 348, height, dash=True)
    picture.text(266, 246, "attention scores, and states through a learned projection", 12, soft=True)
    picture.text(120, 14, "teacher, width 768", 12, soft=True)
    picture.text(400, 14, "student, width 312", 12, soft=True)
    return picture


def two_tower() -> Picture:
    picture = Picture("A forward and a backward tower meet once, without the token that is predicted", 540, 240)
    words = picture.row(["the", "cat", "sat", "on", "mats"], 214, "aabaa", w=72)
    forward = picture.row(["F₁", "F₂", "F₃", "F₄", "F₅"], 150, "ddddd", w=32, gap=50, x=words[0] - 18)
    backward = picture.row(["B₁", "B₂", "B₃", "B₄", "B₅"], 150, "ccccc", w=32, gap=50, x=words[0] + 18)
    for f, b, word in zip(forward, backward, words, strict=True):
        picture.arrow(word - 6, 199, f, 166)
        picture.arrow(word + 6, 199, b, 166)
    picture.box(270, 78, 190, 28, "combiner: attention", "a")
    for number in (0, 1):
        picture.arrow(forward[number], 135, 240, 94)
    for number in (3, 4):
        picture.arrow(backward[number], 135, 300, 94)
    picture.arrow(270, 63, 270, 40)
    picture.text(270, 26, "sat", 14)
    picture.text(468, 92, "F: reads from the left\nB: from the right", 12, soft=True)
    return picture


def ernie() -> Picture:
    picture = Picture("Tokens and the entities of a knowledge graph are fused layer by layer", 540, 260)
    words = picture.row(["Bob", "Dylan", "wrote", "songs"], 232, w=62, x=76)
    entity = picture.row(["Bob Dylan (Q392)"], 232, "c", w=150, x=434, size=12)
    picture.box(184, 176, 300, 28, "BERT layers over tokens", "a")
    picture.box(184, 120, 300, 28, "self-attention of tokens", "a")
    picture.box(434, 120, 160, 28, "attention of entities", "c", 12)
    picture.box(300, 62, 300, 28, "fusion: one hidden layer for both", "b")
    for word in words:
        picture.arrow(word, 217, word, 192)
    picture.arrow(184, 161, 184, 136)
    picture.arrow(entity[0], 217, entity[0], 136)
    picture.text(entity[0] + 8, 176, "frozen vector\n(TransE)", 11, soft=True, anchor="start")
    picture.arrow(184, 105, 230, 78)
    picture.arrow(434, 105, 390, 78)
    picture.text(300, 24, "masked tokens · next sentence · which entity is this?", 12, soft=True)
    picture.arrow(300, 47, 300, 34)
    return picture


def kagnet() -> Picture:
    picture = Picture("Paths between concepts of question and answer, read and weighed", 540, 230)
    for y, label in ((60, "bread"), (120, "morning"), (180, "buy")):
        picture.box(70, y, 84, 28, label, "a", 12)
    for y, label in ((90, "bakery"), (150, "shop")):
        picture.box(330, y, 84, 28, label, "c", 12)
    for x, y, label in ((200, 46, "baker"), (200, 110, "open"), (200, 172, "money")):
        picture.dot(x, y, 5, "b")
        picture.text(x, y - 14, label, 11, soft=True)
    for (x1, y1), (x2, y2) in (
        ((113, 60), (195, 47)), ((205, 47), (287, 88)), ((113, 120), (195, 111)), ((205, 111), (287, 146)),
        ((113, 180), (195, 173)), ((205, 172), (287, 154)), ((113, 64), (287, 92)),
    ):  # fmt: skip
        picture.line(x1, y1, x2, y2)
    picture.arrow(378, 120, 410, 120)
    picture.box(470, 70, 110, 30, "LSTM over paths", "a", 12)
    picture.box(470, 120, 110, 30, "attention", "a", 12)
    picture.box(470, 170, 110, 30, "score of answer", "b", 12)
    picture.arrow(470, 86, 470, 104)
    picture.arrow(470, 136, 470, 154)
    picture.text(70, 26, "question", 12, soft=True)
    picture.text(330, 26, "answer", 12, soft=True)
    picture.text(200, 214, "paths of at most two edges", 12, soft=True)
    return picture


PICTURES = {
    "transformer": transformer, "gpt1": gpt1, "gpt2": gpt2, "gpt3": gpt3, "bert": bert, "albert": albert,
    "electra": electra, "distilbert": distilbert, "tinybert": tinybert, "two-tower": two_tower, "ernie": ernie,
    "kagnet": kagnet,
}  # fmt: skip
