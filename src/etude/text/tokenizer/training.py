"""Training of tokenizers: word:50000, wordpiece:8000, bpe:16000, bytebpe:16000, unigram:8000, char.

The result depends on the multiset of texts alone: alphabets are counted and sorted here, and the `tokenizers` library
is only used where its own result is the same in every run. Options follow the size, separated by commas: `lower`
folds case, `form=nfkc` folds compatibility forms too (NFC otherwise), `min=5` leaves out what is seen less often.

All kinds but `word` and `wordpiece` keep white space, so decoding gives the text back exactly. `bpe`, `unigram`
and `char` write a character outside their alphabet as its UTF-8 bytes (Kudo & Richardson 2018's byte fallback, 256
of the ids) where the vocabulary has room for them; below MIN_FALLBACK_VOCAB ids it becomes [UNK].
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from etude.errors import UserError, suggest_name
from etude.text.tokenizer.normalization import normalize_nfc
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS

LARGEST_VOCAB = 1 << 30  # two bits of a 32-bit id carry flags while a corpus is encoded (word_cache.py)
KINDS = ("word", "wordpiece", "bpe", "bytebpe", "unigram", "char")
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]  # the names the library looks for
MIN_FALLBACK_VOCAB = 1024  # with fewer ids the 256 bytes would take more than a quarter of them

# GPT-2's pre-tokenizer without its English contractions, and with marks on their letters: a word with the space before
# it, a run of digits, a run of symbols, or white space.
PIECE_PATTERN = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
# A word for word-level models: letters and digits, joined by an inner apostrophe or, in numbers, by point or comma.
WORD_PATTERN = r"\p{N}+(?:[.,]\p{N}+)+|[\p{L}\p{M}\p{N}_]+(?:['’][\p{L}\p{M}\p{N}_]+)*|[^\s\p{L}\p{M}\p{N}_]"

# white space to Python and to no tokenizer (characters.py), and what is white space to both
SEPARATOR, SPACE = re.compile(r"[\x1c-\x1f]"), re.compile(r"[^\S\x1c-\x1f]+")
MAX_RUNS = 1 << 18  # counted at a time: some 30 MB

LONGEST_WORD = 256  # characters of a word from which merges are learnt: no language has one that is as long
CLAUSE_MARKS = ".,!?;:…。、，！？；："  # what ends a word of a script without spaces
# each run from its start alone: from each of its places, time would grow with the square of its length
LONG_RUN = re.compile(
    rf"(?<![^\s{CLAUSE_MARKS}])[^\s{CLAUSE_MARKS}]{{{LONGEST_WORD},}}"
    rf"|(?<![{CLAUSE_MARKS}])[{CLAUSE_MARKS}]{{{LONGEST_WORD},}}"
)


@dataclass(frozen=True)
class TokenizerSpec:
    """What to train: the parsed form of a spec such as "bpe:16000,lower"."""

    kind: str
    size: int | None
    lower: bool = False
    form: str = "nfc"
    min_count: int = 1  # occurrences in the sample below which a word, character, merge or piece is left out


def parse_spec(text: str) -> TokenizerSpec:
    """Parse a spec; raises UserError on a kind, size or option that does not exist."""
    head, *options = text.split(",")
    kind, colon, size_text = head.strip().partition(":")
    if kind not in KINDS:
        raise UserError(f"No kind of tokenizer is called '{kind}' (in '{text}').{suggest_name(kind, KINDS)}")
    size: int | None = None
    if colon:
        if not re.fullmatch(r"(?=.{1,18}$)[0-9]+(?:_[0-9]+)*", size_text):
            raise UserError(f"The size of a tokenizer is a number, as in '{kind}:16000', not '{size_text}'.")
        size = int(size_text)
        # a character of wordpiece is two tokens: at the start of a word, and inside
        smallest = len(TRAINED_SPECIALS) + {"bytebpe": 256, "wordpiece": 2}.get(kind, 1)
        if size < smallest:
            raise UserError(
                f"'{text}' is too small: {len(TRAINED_SPECIALS)} ids are special tokens"
                f"{' and 256 are bytes' if kind == 'bytebpe' else ''}, so at least {smallest} are needed."
            )
        if size > LARGEST_VOCAB:
            raise UserError(f"'{text}' is larger than the {LARGEST_VOCAB} ids a corpus can store.")
    elif kind != "char":
        raise UserError(f"'{text}' names no size: write for example '{kind}:16000'.")
    lower, form, min_count = False, "nfc", 1
    for option in options:
        name, _, value = option.strip().partition("=")
        if name == "lower" and not value:
            lower = True
        elif name == "form" and value in ("nfc", "nfkc"):
            form = value
        elif name == "min" and re.fullmatch(r"[0-9]{1,18}", value):
            min_count = int(value)
        else:
            raise UserError(
                f"'{option}' in '{text}' is no option of a tokenizer. Known: lower, form=nfc, form=nfkc, min=N."
            )
    return TokenizerSpec(kind, size, lower, form, min_count)


def train_tokenizer_json(spec_text: str, texts: Iterable[str]) -> str:
    """Train a tokenizer and return the text of its tokenizer.json."""
    spec = parse_spec(spec_text)
    backend = Backend(models.BPE())
    backend.normalizer = _build_normalizer(spec)
    trainers_by_kind = {"word": _train_word, "wordpiece": _train_wordpiece, "bytebpe": _train_bytebpe}
    train = trainers_by_kind.get(spec.kind, _train_pieces)
    backend = train(spec, backend, (normalize_nfc(text) for text in texts))
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in TRAINED_SPECIALS])
    return backend.to_str()


def _build_normalizer(spec: TokenizerSpec) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.NFKC() if spec.form == "nfkc" else normalizers.NFC()]
    if spec.kind == "wordpiece":
        steps.append(normalizers.BertNormalizer(strip_accents=False, lowercase=spec.lower))
    elif spec.lower:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps)


def _rank_by_count(counts: Counter[str], most: int, min_count: int) -> list[str]:
    """Return the most frequent entries; ties in code point order, so that no hash table's order shows."""
    frequent = [(-count, entry) for entry, count in counts.items() if count >= min_count]
    return [entry for _, entry in sorted(frequent)[:most]]


def _collect_alphabet(backend: Backend, texts: Iterable[str], spec: TokenizerSpec) -> tuple[list[str], list[str]]:
    """Return the texts as a list, and their characters after normalization, most frequent first."""
    sample = list(texts)
    counts: Counter[str] = Counter()
    for start in range(0, len(sample), 1000):
        counts.update(backend.normalizer.normalize_str("\n".join(sample[start : start + 1000])))
    counts.pop("\0", None)
    return sample, _rank_by_count(counts, len(counts), spec.min_count)


def _count_runs(texts: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield runs of characters without white space, which no word crosses, with how often each is there.

    A run that many are there of is split into words once, or, to bound memory, once every MAX_RUNS different runs.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(SPACE.split(text) if SEPARATOR.search(text) else text.split())
        if len(counts) > MAX_RUNS:
            yield from counts.items()
            counts.clear()
    yield from counts.items()


def _train_word(spec: TokenizerSpec, backend: Backend, texts: Iterable[str]) -> Backend:
    assert spec.size is not None
    pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)
    counts: Counter[str] = Counter()
    for run, count in _count_runs(texts):
        for word, _ in pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(run)):
            counts[word] += count
    for special in TRAINED_SPECIALS:
        counts.pop(special, None)
    words = [*TRAINED_SPECIALS, *_rank_by_count(counts, spec.size - len(TRAINED_SPECIALS), spec.min_count)]
    trained = Backend(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, pre_tokenizer
    return trained  # without a decoder, tokens are joined by spaces


def _cut_long_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts, cut inside of words of more than LONGEST_WORD characters: DNA, encoded data, a text of dots.

    The library's trainer takes time by the square of a word's length, and hours for a word of a megabyte.
    """
    for text in texts:
        start = 0
        if max(map(len, text.split()), default=0) >= LONGEST_WORD:  # of most texts none is, and this is soon known
            for run in LONG_RUN.finditer(text):
                for place in range(run.start() + LONGEST_WORD, run.end() + 1, LONGEST_WORD):
                    yield text[start:place]
                    start = place
        yield text[start:]


def _learn_merges(
    backend: Backend, texts: Iterable[str], alphabet: list[str], size: int, min_count: int
) -> list[tuple[str, str]]:
    """Learn BPE merges (Sennrich et al. 2016), enough for `size` tokens; in the order they were learnt."""
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=max(2, min_count),  # a pair seen once says nothing about the language
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(_cut_long_words(texts), trainer)
    return [(left, right) for left, right in json.loads(backend.to_str())["model"]["merges"]]


def _train_wordpiece(spec: TokenizerSpec, backend: Backend, texts: Iterable[str]) -> Backend:
    """Train WordPiece by BPE over words with a start mark.

    A piece with the mark starts a word, others get "##".

    The library's own WordPiece trainer numbers its alphabet in the order of a hash table, so no two of its runs agree.
    """
    assert spec.size is not None
    room = spec.size - len(TRAINED_SPECIALS)
    sample, letters = _collect_alphabet(backend, texts, spec)
    letters = [letter for letter in letters if not letter.isspace() and letter != "▁"]
    alphabet = sorted(letters[: max(1, room // 4)])  # each is there twice: half of the ids are left for longer pieces
    mark = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), mark])
    tokens = {name: number for number, name in enumerate(TRAINED_SPECIALS)}
    for letter in [*alphabet, *(f"##{letter}" for letter in alphabet)]:
        tokens.setdefault(letter, len(tokens))
    # one merge makes at most one token, and those that join the mark to a letter make none that is new
    merges = _learn_merges(backend, sample, [*alphabet, "▁"], spec.size + len(alphabet) + 1, spec.min_count)
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


def _train_bytebpe(spec: TokenizerSpec, backend: Backend, texts: Iterable[str]) -> Backend:
    """Train BPE over bytes, as GPT-2 has it: every text can be encoded."""
    assert spec.size is not None
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges = _learn_merges(backend, texts, alphabet, spec.size - len(TRAINED_SPECIALS), spec.min_count)
    tokens = [*TRAINED_SPECIALS, *alphabet, *(left + right for left, right in merges)]
    trained = Backend(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trained.decoder = decoders.ByteLevel()
    return trained


def _train_pieces(spec: TokenizerSpec, backend: Backend, texts: Iterable[str]) -> Backend:
    """Train bpe, unigram or char: the same pre-tokenizer, alphabet and byte fallback; the pieces differ."""
    room = (spec.size or LARGEST_VOCAB) - len(TRAINED_SPECIALS)
    fallback = BYTE_TOKENS if room >= MIN_FALLBACK_VOCAB else []
    room -= len(fallback)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE_PATTERN), "isolated")
    sample, letters = _collect_alphabet(backend, texts, spec)
    # longer pieces need room too: half of the ids are for single characters, more where pieces are few
    alphabet = sorted(letters[: room if spec.kind == "char" else max(1, room // 2)])
    head = [*TRAINED_SPECIALS, *fallback]
    if spec.kind == "unigram":
        from etude.text.tokenizer.unigram import train_unigram  # imports scipy, which nothing else here needs

        counts: Counter[str] = Counter()
        for text in sample:
            pieces = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
            counts.update(piece for piece, _ in pieces)
        scored_pieces = train_unigram(counts, alphabet, room, spec.min_count)
        worst = min((score for _, score in scored_pieces), default=0.0)
        # special tokens and bytes are never the best reading of characters that have a piece
        entries = [*((name, 0.0 if name not in BYTE_TOKENS else worst - 10.0) for name in head), *scored_pieces]
        entries += [(letter, worst) for letter in letters[len(alphabet) :][: room - len(scored_pieces)]]
        model: models.Model = models.Unigram(
            entries, unk_id=TRAINED_SPECIALS.index("[UNK]"), byte_fallback=bool(fallback)
        )
    else:
        merges = [] if spec.kind == "char" else _learn_merges(backend, sample, alphabet, room, spec.min_count)
        tokens = [*head, *alphabet, *(left + right for left, right in merges)]
        tokens += letters[len(alphabet) :][: len(head) + room - len(tokens)]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        model = models.BPE(vocabulary, merges, unk_token="[UNK]", byte_fallback=bool(fallback))
    trained = Backend(model)
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trained.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]) if fallback else decoders.Fuse()
    return trained
