"""Features of the words of a sentence, and the best tags of a linear chain over them.

    words        the word, its shape, prefixes and suffixes, and the same of its neighbours (Ratnaparkhi 1996)
    characters   the character, its neighbours and their n-grams, and the word around it up to this character
    clusters     of the word and its neighbours, or of the word around the character, where clusters of words are given

Nothing but numpy is imported here: an exported baseline holds a copy of this file.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

EDGE = "\t"  # beyond the ends of a sentence; no word holds a tab
AFFIX = 4  # characters of a prefix or suffix at most


def compose(characters: Sequence[str]) -> tuple[list[str], list[int]]:
    """The characters as NFC has them, and which of these each given one is part of: three jamo are one syllable."""
    composed: list[str] = []
    owners = []
    for character in characters:
        joined = unicodedata.normalize("NFC", composed[-1] + character) if composed else ""
        if len(joined) == 1:
            composed[-1] = joined
        else:
            composed.append(character)
        owners.append(len(composed) - 1)
    return composed, owners


def spread_tags(tags: Sequence[str], owners: Sequence[int]) -> list[str]:
    """Tags of composed characters as tags of the given ones; the parts of one are in one chunk, in any scheme."""
    spread = []
    for place, owner in enumerate(owners):
        prefix, rest = tags[owner][0], tags[owner][1:]
        first = not place or owners[place - 1] != owner
        last = place + 1 == len(owners) or owners[place + 1] != owner
        if prefix == "S" and not (first and last):
            prefix = "B" if first else "E" if last else "I"
        elif (prefix == "B" and not first) or (prefix == "E" and not last):
            prefix = "I"
        spread.append(prefix + rest)
    return spread


Clusters = Mapping[str, Sequence[int]]  # of words in lower case, one number a grain


def sentence_features(words: Sequence[str], characters: bool, clusters: Clusters | None = None) -> list[list[str]]:
    """The names of the features of each word, or of each character."""
    normal = [unicodedata.normalize("NFC", word) for word in words]
    features = _character_features(normal) if characters else _word_features(normal)
    if clusters is not None:
        starts, ends = _word_bounds(normal) if characters else (range(len(normal)), range(1, len(normal) + 1))
        own = [_cluster_names("".join(normal[start:end]), clusters) for start, end in zip(starts, ends, strict=True)]
        for place, names in enumerate(features):
            names += own[place]
            for distance in () if characters else (-1, 1):
                if 0 <= place + distance < len(own):
                    names += [f"{distance} {name}" for name in own[place + distance]]
    return features


def _cluster_names(word: str, clusters: Clusters) -> list[str]:
    numbers = clusters.get(word.lower())
    return ["no cluster"] if numbers is None else [f"cluster {grain} {number}" for grain, number in enumerate(numbers)]


def word_shape(word: str) -> str:
    """Capitals, letters, digits and the rest, each run cut to two: "McDonald's" is XxXxx'x."""
    shape = ""
    for letter in word:
        kind = "X" if letter.isupper() else "x" if letter.islower() else "0" if letter.isdigit() else ""
        kind = kind or ("가" if letter.isalpha() else letter)
        if not shape.endswith(kind * 2):
            shape += kind
    return shape


def _word_features(words: Sequence[str]) -> list[list[str]]:
    lower = [EDGE, EDGE, *(word.lower() for word in words), EDGE, EDGE]
    shapes = [EDGE, EDGE, *(word_shape(word) for word in words), EDGE, EDGE]
    features = []
    for place, word in enumerate(words):
        here = place + 2
        small = lower[here]
        names = ["bias", f"form {word}", f"word {small}", f"shape {shapes[here]}"]
        names += [f"prefix {small[:size]}" for size in range(1, min(AFFIX, len(small)) + 1)]
        names += [f"suffix {small[-size:]}" for size in range(1, min(AFFIX, len(small)) + 1)]
        for distance in (-2, -1, 1, 2):
            near = lower[here + distance]
            names += [f"{distance} word {near}", f"{distance} shape {shapes[here + distance]}"]
            if abs(distance) == 1:
                names += [f"{distance} prefix {near[:3]}", f"{distance} suffix {near[-3:]}"]
        names += [f"pair {lower[here - 1]} {small}", f"pair {small} {lower[here + 1]} next"]
        names += [f"shapes {shapes[here - 1]} {shapes[here]} {shapes[here + 1]}"]
        names += ["first"] if place == 0 else []
        features.append(names)
    return features


def _character_features(text: Sequence[str]) -> list[list[str]]:
    padded = [EDGE] * 3 + [letter.lower() for letter in text] + [EDGE] * 3
    starts, ends = _word_bounds(text)
    features = []
    for place, letter in enumerate(text):
        here = place + 3
        names = ["bias", f"kind {word_shape(letter)}", f"is space {letter.isspace()}"]
        names += [f"{distance} {padded[here + distance]}" for distance in range(-3, 4)]
        names += [f"{start} two {''.join(padded[here + start : here + start + 2])}" for start in range(-2, 2)]
        names += [f"{start} three {''.join(padded[here + start : here + start + 3])}" for start in range(-3, 2)]
        start, end = starts[place], ends[place]
        before, after = "".join(text[start : place + 1]).lower(), "".join(text[place:end]).lower()
        names += [f"word {''.join(text[start:end]).lower()}", f"up to here {before}", f"from here {after}"]
        names += [f"place {min(place - start, 4)}", f"left {min(end - place, 4)}"]
        names += [f"last of word {''.join(text[max(start, end - 2) : end])}"]
        features.append(names)
    return features


def _word_bounds(text: Sequence[str]) -> tuple[list[int], list[int]]:
    """Where the word around each character starts and ends; a space is a word of its own."""
    starts, ends = list(range(len(text))), [place + 1 for place in range(len(text))]
    for place in range(1, len(text)):
        if not text[place].isspace() and not text[place - 1].isspace():
            starts[place] = starts[place - 1]
    for place in range(len(text) - 2, -1, -1):
        if not text[place].isspace() and not text[place + 1].isspace():
            ends[place] = ends[place + 1]
    return starts, ends


def emissions(features: Sequence[Sequence[str]], columns: Mapping[str, int], weight: np.ndarray) -> np.ndarray:
    """(words, tags) scores: the sum of the weights of the features that were seen in training."""
    scores = np.zeros((len(features), weight.shape[1]))
    for place, names in enumerate(features):
        known = [columns[name] for name in names if name in columns]
        scores[place] = weight[known].sum(0, dtype=np.float64)
    return scores


def best_tags(scores: np.ndarray, start: np.ndarray, transitions: np.ndarray, end: np.ndarray) -> list[int]:
    """The tags of the highest score (Viterbi 1967); of equals the first."""
    total = start + scores[0]
    pointers = []
    for row in scores[1:]:
        table = total[:, None] + transitions
        pointers.append(table.argmax(0))
        total = table.max(0) + row
    tags = [int((total + end).argmax())]
    for pointer in reversed(pointers):
        tags.append(int(pointer[tags[-1]]))
    return tags[::-1]


def tag_probabilities(
    scores: np.ndarray, start: np.ndarray, transitions: np.ndarray, end: np.ndarray, tags: Sequence[int]
) -> list[float]:
    """The marginal probability of each tag of a sequence (forward-backward)."""
    forward, backward = [start + scores[0]], [end]
    for row in scores[1:]:
        forward.append(_log_sum(forward[-1][:, None] + transitions, 0) + row)
    for row in scores[:0:-1]:
        backward.append(_log_sum(transitions + (row + backward[-1])[None, :], 1))
    total = _log_sum(forward[-1] + end, 0)
    pairs = zip(forward, reversed(backward), tags, strict=True)
    return [float(np.exp(ahead[tag] + behind[tag] - total)) for ahead, behind, tag in pairs]


def _log_sum(values: np.ndarray, axis: int) -> np.ndarray:
    top = values.max(axis, keepdims=True)
    return np.log(np.exp(values - top).sum(axis)) + top.squeeze(axis)
