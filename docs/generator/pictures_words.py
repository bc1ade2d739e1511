"""Pictures of word vectors, recurrent models and taggers."""

from __future__ import annotations

from itertools import pairwise

from docs.generator.drawing import Picture


def word2vec() -> Picture:
    picture = Picture("A centre word predicts its neighbours, and not words drawn as noise", 520, 190)
    words = picture.row(["the", "cat", "sat", "on", "mats"], 130, "aabaa")
    picture.box(words[2], 62, 104, 28, "vector of sat", "c", 12)
    picture.arrow(words[2], 116, words[2], 78)
    for number, start in ((0, -52), (1, -30), (3, 30), (4, 52)):
        picture.arrow(words[2] + start, 68 if abs(start) > 40 else 77, words[number], 114)
    picture.text(260, 20, "likely: the, cat, on, mats", 12, soft=True)
    picture.text(260, 172, "unlikely, drawn as noise: seven, flute, Tuesday", 12, soft=True)
    return picture


def glove() -> Picture:
    picture = Picture("Products of two vectors are fitted to the logarithms of co-occurrence counts", 520, 190)
    counts = [["", "12", "3", "·"], ["12", "", "7", "1"], ["3", "7", "", "9"], ["·", "1", "9", ""]]
    words = ["ice", "cold", "water", "steam"]
    for line, numbers in enumerate(counts):
        picture.text(62, 52 + 30 * line, words[line], 12, anchor="end")
        for column, number in enumerate(numbers):
            picture.box(90 + 36 * column, 52 + 30 * line, 34, 28, number, "b" if (line, column) == (1, 2) else "a", 12)
    picture.text(144, 20, "counts within a window", 12, soft=True)
    picture.arrow(240, 97, 296, 97)
    picture.box(345, 74, 90, 26, "vector of cold", "c", 12)
    picture.box(450, 74, 96, 26, "vector of water", "d", 12)
    picture.text(398, 112, "product + two biases ≈ log 7", 13)
    picture.text(398, 150, "only where the count is not 0", 12, soft=True)
    return picture


def fasttext() -> Picture:
    picture = Picture("A word is the mean of its own row and the rows of its character n-grams", 520, 190)
    parts = picture.row(["‹wh", "whe", "her", "ere", "re›", "‹where›"], 120, "aaaaab", w=68)
    for centre in parts:
        picture.arrow(centre, 104, 260, 62)
    picture.box(260, 46, 130, 30, "mean: where", "c")
    caption = "n-grams of 3 to 6 letters, and the word itself;\nan unknown word has the n-grams alone"
    picture.text(260, 166, caption, 12, True)
    return picture


def taglm() -> Picture:
    picture = Picture("Frozen language model states join a tagger behind its first recurrent layer", 520, 270)
    words = picture.row(["Jin", "lives", "in", "Seoul"], 245, x=70, w=62)
    for centre in words:
        picture.arrow(centre, 230, centre, 206)
        picture.arrow(centre, 174, centre, 136)
        picture.arrow(centre, 104, centre, 66)
    picture.box(178, 190, 290, 30, "biRNN 1 (learns)", "a")
    picture.box(178, 120, 290, 30, "biRNN 2 (learns)", "a")
    picture.box(178, 50, 290, 30, "CRF: a tag for every word", "c")
    picture.box(428, 190, 160, 50, "two language models,\none each way: frozen", "d", 12)
    picture.arrow(348, 228, 400, 216)
    picture.line(428, 165, 428, 154)
    picture.arrow(428, 154, 326, 154)
    picture.text(388, 142, "side by side", 11, soft=True)
    return picture


def elmo() -> Picture:
    picture = Picture("Letters, two bidirectional layers, and a learned mix of all three", 520, 270)
    words = picture.row(["the", "river", "bank"], 246, x=90, w=80)
    for centre in words:
        for bottom, top in ((231, 208), (178, 154), (124, 100)):
            picture.arrow(centre, bottom, centre, top)
    for height, label in ((193, "letters: CNN and highways"), (139, "LSTM 1, both ways"), (85, "LSTM 2, both ways")):
        picture.box(180, height, 270, 28, label, "a")
    for height, weight in ((193, "s₀"), (139, "s₁"), (85, "s₂")):
        picture.arrow(316, height, 400, 139)
        picture.text(352, {193: 190, 139: 129, 85: 88}[height], weight, 12, soft=True)
    picture.box(446, 139, 90, 56, "γ · mix,\nby the task", "c")
    picture.text(192, 36, "frozen; the task learns γ and s alone, and its own layers", 12, soft=True)
    return picture


def seq2seq_rnn() -> Picture:
    picture = Picture("A decoder looks at all source states, weighted anew for every word", 520, 240)
    source = picture.row(["the", "shop", "is", "closed"], 210, x=60, w=60)
    states = picture.row(["h₁", "h₂", "h₃", "h₄"], 150, x=60, w=60)
    target = picture.row(["가게는", "닫혔다"], 34, "cc", x=360, w=74)
    decoder = picture.row(["s₁", "s₂"], 92, "bb", x=360, w=74)
    for word in source:
        picture.arrow(word, 195, word, 166)
    for left, right in pairwise(states):
        picture.arrow(left + 31, 146, right - 31, 146)
        picture.arrow(right - 31, 154, left + 31, 154)
    for state, weight in zip(states, (0.7, 3.2, 0.7, 0.7), strict=True):
        picture.arrow(state, 135, decoder[0] - 38, 96, width=weight)
    picture.arrow(decoder[0] + 38, 92, decoder[1] - 38, 92)
    for state, word in zip(decoder, target, strict=True):
        picture.arrow(state, 77, word, 50)
    picture.text(404, 178, "thick: where s₁ looks.\nWithout attention all it has is h₄", 12, soft=True)
    return picture


def bilstm_crf() -> Picture:
    picture = Picture("Scores of tags from a biLSTM, joined by scores of neighbouring tags", 520, 240)
    words = picture.row(["Jin", "visited", "New", "York"], 214, w=84)
    tags = picture.row(["B-PER", "O", "B-LOC", "I-LOC"], 46, "cccc", w=84)
    picture.box(260, 150, 366, 30, "word and letters → biLSTM", "a")
    for word, tag in zip(words, tags, strict=True):
        picture.arrow(word, 199, word, 167)
        picture.arrow(word, 134, tag, 62)
    picture.text(476, 98, "scores e", 12, soft=True)
    for left, right in pairwise(tags):
        picture.line(left + 42, 46, right - 42, 46, width=2.4)
    picture.text(260, 18, "transitions T: the best path is found as a whole", 12, soft=True)
    return picture


def transe() -> Picture:
    picture = Picture("A relation is a step from the head to the tail", 520, 210)
    for x, y, head, tail in ((70, 160, "Seoul", "Korea"), (96, 84, "Paris", "France")):
        picture.dot(x, y, 5)
        picture.dot(x + 190, y - 44, 5, "c")
        picture.arrow(x + 6, y - 2, x + 184, y - 42, width=1.8)
        picture.text(x, y + 20, head, 12)
        picture.text(x + 190, y - 64, tail, 12)
    picture.text(196, 158, "capital of", 12, soft=True)
    picture.dot(430, 140, 5, "b")
    picture.text(430, 160, "Tokyo", 12)
    picture.line(264, 114, 424, 138, dash=True)
    picture.text(400, 84, "a wrong tail must be\nfarther by a margin", 12, soft=True)
    return picture


PICTURES = {
    "word2vec": word2vec, "glove": glove, "fasttext": fasttext, "taglm": taglm, "elmo": elmo,
    "seq2seq-rnn": seq2seq_rnn, "bilstm-crf": bilstm_crf, "transe": transe,
}  # fmt: skip
