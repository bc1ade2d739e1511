"""Learning a tokenizer from text: `word:50000`, `wordpiece:8000`, `bpe:16000`, `bytebpe:16000`, `unigram:8000`, `char`.

The result depends on the multiset of texts alone: alphabets are counted and ordered here, and the library is only
used where its own result is the same in every run. Options follow the size, separated by commas: `lower` folds
case, `form=nfkc` folds compatibility forms too (NFC otherwise), `min=5` leaves out what is seen less often.

All kinds but `word` and `wordpiece` keep white space, so decoding gives the text back exactly. `bpe`, `unigram`
and `char` write a character outside their alphabet as its UTF-8 bytes (Kudo & Richardson 2018's byte fallback, 256
of the ids) where the vocabulary has room for them; below FALLBACK_ROOM ids it becomes [UNK].
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from etude.errors import UserError, suggest_name
from etude.text.tokenizer.normalization import normalize_nfc
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS

LARGEST_VOCAB = 1 << 30  # two bits of a 32-bit id carry flags while a corpus is encoded (word_cache.py)
KINDS = ("word", "wordpiece", "bpe", "bytebpe", "unigram", "char")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # the names the library looks for
FALLBACK_ROOM = 1024  # with fewer ids the 256 bytes would take more than a quarter of them

# GPT-2's first cut without its English contractions, and with marks kept on their letters: a word with the space
# before it, a run of digits, a run of symbols, or white space.
PIECE_PATTERN = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
# A word for word-level models: letters and digits, joined by an inner apostrophe or, in numbers, by point or comma.
WORD_PATTERN = r"\p{N}+(?:[.,]\p{N}+)+|[\p{L}\p{M}\p{N}_]+(?:['’][\p{L}\p{M}\p{N}_]+)*|[^\s\p{L}\p{M}\p{N}_]"


@dataclass(frozen=True)
class Spec:
    kind: str
    size: int | None
    lower: bool = False
    form: str = "nfc"
    least: int = 1  # occurrences in the sample below which a word, character or merge is left out


def parse_spec(text: str) -> Spec:
    """Reads a spec; its problems are the user's to mend."""
    head, *options = text.split(",")
    kind, colon, size_text = head.strip().partition(":")
    if kind not in KINDS:
        raise UserError(f"No kind of tokenizer is called '{kind}' (in '{text}').{suggest_name(kind, KINDS)}")
    size: int | None = None
    if colon:
        if not re.fullmatch(r"[0-9][0-9_]*", size_text):
            raise UserError(f"The size of a tokenizer is a number, as in '{kind}:16000', not '{size_text}'.")
        size = int(size_text)
        smallest = len(TRAINED_SPECIALS) + (256 if kind == "bytebpe" else 1)
        if size < smallest:
            raise UserError(
                f"'{text}' is too small: {len(TRAINED_SPECIALS)} ids are special tokens"
                f"{' and 256 are bytes' if kind == 'bytebpe' else ''}, so at least {smallest} are needed."
            )
        if size > LARGEST_VOCAB:
            raise UserError(f"'{text}' is larger than the {LARGEST_VOCAB} ids a corpus can store.")
    elif kind != "char":
        raise UserError(f"'{text}' names no size: write for example '{kind}:16000'.")
    lower, form, least = False, "nfc", 1
    for option in options:
        name, _, value = option.strip().partition("=")
        if name == "lower" and not value:
            lower = True
        elif name == "form" and value in ("nfc", "nfkc"):
            form = value
        elif name == "min" and value.isdigit():
            least = int(value)
        else:
            raise UserError(
                f"'{option}' in '{text}' is no option of a tokenizer. Known: lower, form=nfc, form=nfkc, min=N."
            )
    return Spec(kind, size, lower, form, least)


def train_tokenizer_json(text: str, texts: Iterable[str]) -> str:
    """The text of the tokenizer.json learnt from `texts`."""
    spec = parse_spec(text)
    backend = Backend(models.BPE())
    backend.normalizer = _normaliser(spec)
    texts = (normalize_nfc(text) for text in texts)
    backend = {"word": _word, "wordpiece": _wordpiece, "bytebpe": _bytebpe}.get(spec.kind, _pieces)(
        spec, backend, texts
    )
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in TRAINED_SPECIALS])
    return backend.to_str()


def _normaliser(spec: Spec) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.NFKC() if spec.form == "nfkc" else normalizers.NFC()]
    if spec.kind == "wordpiece":
        steps.append(normalizers.BertNormalizer(strip_accents=False, lowercase=spec.lower))
    elif spec.lower:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps)


def _counted(counts: Counter[str], most: int, least: int) -> list[str]:
    """The commonest entries; ties in code point order, so that no hash table's order shows."""
    kept = [(-count, entry) for entry, count in counts.items() if count >= least]
    return [entry for _, entry in sorted(kept)[:most]]


def _alphabet(backend: Backend, texts: Iterable[str], spec: Spec) -> tuple[list[str], list[str]]:
    """The texts as a list, and the characters they are made of after normalisation, commonest first."""
    kept = list(texts)
    counts: Counter[str] = Counter()
    for start in range(0, len(kept), 1000):
        counts.update(backend.normalizer.normalize_str("\n".join(kept[start : start + 1000])))
    counts.pop("\0", None)
    return kept, _counted(counts, len(counts), spec.least)


def _word(spec: Spec, backend: Backend, texts: Iterable[str]) -> Backend:
    assert spec.size is not None
    pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text)))
    for special in TRAINED_SPECIALS:
        counts.pop(special, None)
    words = [*TRAINED_SPECIALS, *_counted(counts, spec.size - len(TRAINED_SPECIALS), spec.least)]
    trained = Backend(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, pre_tokenizer
    return trained  # without a decoder, tokens are joined by spaces


def _merges(
    backend: Backend, texts: Iterable[str], alphabet: list[str], size: int, least: int
) -> list[tuple[str, str]]:
    """The BPE merges in the order they were learnt (Sennrich et al. 2016), enough for `size` tokens."""
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=max(2, least),  # a pair seen once says nothing about the language
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return [(left, right) for left, right in json.loads(backend.to_str())["model"]["merges"]]


def _wordpiece(spec: Spec, backend: Backend, texts: Iterable[str]) -> Backend:
    """WordPiece by BPE over words that carry a start mark: what keeps the mark starts a word, the rest gets "##".

    The library's own WordPiece trainer numbers its alphabet in the order of a hash table, so no two of its runs agree.
    """
    assert spec.size is not None
    room = spec.size - len(TRAINED_SPECIALS)
    kept, letters = _alphabet(backend, texts, spec)
    letters = [letter for letter in letters if not letter.isspace() and letter != "▁"]
    alphabet = sorted(letters[: max(1, room // 4)])  # each is there twice: half of the ids are left for longer pieces
    mark = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), mark])
    tokens = {name: number for number, name in enumerate(TRAINED_SPECIALS)}
    for letter in [*alphabet, *(f"##{letter}" for letter in alphabet)]:
        tokens.setdefault(letter, len(tokens))
    # one merge makes at most one token, and those that join the mark to a letter make none that is new
    merges = _merges(backend, kept, [*alphabet, "▁"], spec.size + len(alphabet) + 1, spec.least)
    for left, right in merges:
        if len(tokens) >= spec.size:
            break
        piece = left + right
        tokens.setdefault(piece[1:] if piece.startswith("▁") else f"##{piece}", len(tokens))
    for letter in letters[len(alphabet) :]:  # little text gives few pieces: what is left takes more characters
        if len(tokens) + 2 <= spec.size:
            tokens |= {letter: len(tokens), f"##{letter}": len(tokens) + 1}
    trained = Backend(models.WordPiece(tokens, unk_token="[UNK]", max_input_chars_per_word=100))
    trained.normalizer = backend.normalizer
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trained.decoder = decoders.WordPiece(prefix="##")
    return trained


def _bytebpe(spec: Spec, backend: Backend, texts: Iterable[str]) -> Backend:
    """GPT-2's: BPE over bytes, every text can be written."""
    assert spec.size is not None
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges = _merges(backend, texts, alphabet, spec.size - len(TRAINED_SPECIALS), spec.least)
    tokens = [*TRAINED_SPECIALS, *alphabet, *(left + right for left, right in merges)]
    trained = Backend(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trained.decoder = decoders.ByteLevel()
    return trained


def _pieces(spec: Spec, backend: Backend, texts: Iterable[str]) -> Backend:
    """bpe, unigram and char: the same first cut, the same alphabet and fallback; the pieces differ."""
    room = (spec.size or LARGEST_VOCAB) - len(TRAINED_SPECIALS)
    fallback = BYTES if room >= FALLBACK_ROOM else []
    room -= len(fallback)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE_PATTERN), "isolated")
    kept, letters = _alphabet(backend, texts, spec)
    # longer pieces need room too: half of the ids are for single characters, more where pieces are few
    alphabet = sorted(letters[: room if spec.kind == "char" else max(1, room // 2)])
    head = [*TRAINED_SPECIALS, *fallback]
    if spec.kind == "unigram":
        from etude.text.tokenizer.unigram import learn

        counts: Counter[str] = Counter()
        for text in kept:
            pieces = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
            counts.update(piece for piece, _ in pieces)
        pieces_scores = learn(counts, alphabet, room)
        worst = min((score for _, score in pieces_scores), default=0.0)
        # special tokens and bytes are never the best reading of characters that have a piece
        scored = [*((name, 0.0 if name not in BYTES else worst - 10.0) for name in head), *pieces_scores]
        scored += [(letter, worst) for letter in letters[len(alphabet) :][: room - len(pieces_scores)]]
        model: models.Model = models.Unigram(
            scored, unk_id=TRAINED_SPECIALS.index("[UNK]"), byte_fallback=bool(fallback)
        )
    else:
        merges = [] if spec.kind == "char" else _merges(backend, kept, alphabet, room, spec.least)
        tokens = [*head, *alphabet, *(left + right for left, right in merges)]
        tokens += letters[len(alphabet) :][: len(head) + room - len(tokens)]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        model = models.BPE(vocabulary, merges, unk_token="[UNK]", byte_fallback=bool(fallback))
    trained = Backend(model)
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trained.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]) if fallback else decoders.Fuse()
    return trained
