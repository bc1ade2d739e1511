"""Attention heads beside the arcs of a treebank: which head finds which relation, and how many heads are needed.

After Clark et al. 2019 ("What does BERT look at?", section 4). Weights between tokens become weights between words:
summed over the tokens of a word that is looked at, averaged over those of a word that looks. A head's answer for a
dependent is the word with the most weight, in one of two directions:

    up      the word that the dependent looks at most
    down    the word that looks at the dependent most

The baseline is a fixed offset ("the word before"). Head, direction and offset of a relation are chosen on every second
sentence and scored on the others, so that the best of many heads is not called good because it was lucky.

Heads are removed by zeroing their columns of the output projection, which is their whole contribution. Those whose own
removal costs least go first (Michel et al. 2019), and the loss is measured again with a share of them gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from etude.errors import UserError
from etude.inference.base import gives_logits
from etude.inference.model import LoadedModel
from etude.nn.block import AttentionBranch
from etude.tasks.data.examples import parse_whole
from etude.tasks.data.records import records
from etude.view.attention import compute_attention

MAX_OFFSET = 5  # of the baseline, in words, to either side
DIRECTIONS = ("up", "down")
MASK_EVERY = 7  # tokens of a text: of each a masked model fills in one
PRUNED_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Sentence:
    """A sentence with its tree: `heads` are word numbers from 0, -1 for the root."""

    words: list[str]
    heads: np.ndarray  # (W,)
    relations: list[str]


@dataclass(frozen=True)
class RelationScore:
    """The best head for a relation beside the best offset, both chosen on other sentences."""

    relation: str
    arcs: int  # that were scored
    layer: int
    head: int
    direction: str
    accuracy: float
    offset: int
    offset_accuracy: float
    error: float  # standard error of the difference, over sentences

    @property
    def gain(self) -> float:
        return self.accuracy - self.offset_accuracy

    @property
    def beats_offset(self) -> bool:
        """Whether the gain is more than two of its standard errors."""
        return self.gain > 2 * self.error


@dataclass(frozen=True)
class HeadReport:
    """What the heads of a model are good for."""

    layers: int
    heads: int
    sentences: int
    skipped: int  # longer than the model sees
    relations: list[RelationScore]  # the most frequent first
    importance: np.ndarray | None  # (branches, heads): the loss that is added without a head, in nats
    pruning: list[tuple[float, float]] | None  # (share of heads removed, loss in nats); None without a language model


def read_sentences(path: Path, limit: int | None = None) -> list[Sentence]:
    """Read sentences with `tokens`, `head` (from 1, 0 for the root) and `deprel`, in any format of records."""
    sentences: list[Sentence] = []
    for place, record in records(path):
        if isinstance(record, UserError):
            raise record
        missing = [name for name in ("tokens", "head", "deprel") if not isinstance(record.get(name), list)]
        if missing:
            raise UserError(f"{place}: no list {missing[0]!r}. A treebank has tokens, head and deprel in each line.")
        words, heads, relations = (list(record[name]) for name in ("tokens", "head", "deprel"))
        if not len(words) == len(heads) == len(relations):
            raise UserError(f"{place}: {len(words)} tokens, {len(heads)} heads and {len(relations)} relations.")
        if any(not 0 <= _parse_head(head) <= len(words) for head in heads):
            raise UserError(f"{place}: a head is no number of a token (1 to {len(words)}, 0 for the root).")
        numbers = np.array([_parse_head(head) for head in heads], dtype=np.int64) - 1
        if len(words) > 1:
            sentences.append(Sentence([str(word) for word in words], numbers, [str(name) for name in relations]))
        if limit is not None and len(sentences) >= limit:
            break
    if len(sentences) < 2:
        raise UserError(f"{path}: fewer than two sentences with two words or more.")
    return sentences


def _parse_head(head: object) -> int:
    """Return the number of a head, also where it is written as a text; -1 where it is no number."""
    if isinstance(head, str):
        number = parse_whole(head)
        return -1 if number is None else number
    return head if isinstance(head, int) and not isinstance(head, bool) else -1


def word_weights(weights: np.ndarray, words: np.ndarray, count: int) -> np.ndarray:
    """Return (..., W, W) weights between words from (..., L, L) between tokens; `words` (L,) is -1 for markers."""
    membership = np.zeros((count, len(words)), dtype=weights.dtype)
    inside = np.flatnonzero(words >= 0)
    membership[words[inside], inside] = 1
    mean = membership / np.maximum(membership.sum(1, keepdims=True), 1)
    result: np.ndarray = mean @ weights @ membership.T
    return result


def answer_heads(weights: np.ndarray) -> np.ndarray:
    """Return the word each head gives as head of each word, (directions, ..., W), from (..., W, W) weights."""
    count = weights.shape[-1]
    others = np.where(np.eye(count, dtype=bool), -np.inf, weights)  # no word is its own head
    return np.stack([others.argmax(-1), others.argmax(-2)])


@dataclass
class _Counts:
    """Arcs that were right, by sentence: of every head and of every offset."""

    arcs: list[int]
    heads: list[np.ndarray]  # (directions, layers, heads) each
    offsets: list[np.ndarray]  # (offsets,)


OFFSETS = [offset for offset in range(-MAX_OFFSET, MAX_OFFSET + 1) if offset]


def count_correct(sentence: Sentence, answers: np.ndarray) -> dict[str, tuple[int, np.ndarray, np.ndarray]]:
    """Count, by relation, arcs and those that each head and each offset has right; the root has no arc."""
    places = np.arange(len(sentence.words))
    counts: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}
    for relation in dict.fromkeys(sentence.relations):
        chosen = np.array([name == relation for name in sentence.relations]) & (sentence.heads >= 0)
        if chosen.any():
            gold, own = sentence.heads[chosen], places[chosen]
            by_offset = np.array([(own + offset == gold).sum() for offset in OFFSETS])
            counts[relation] = int(chosen.sum()), (answers[..., chosen] == gold).sum(-1), by_offset
    return counts


def score_relations(
    counted: Sequence[dict[str, tuple[int, np.ndarray, np.ndarray]]], min_arcs: int
) -> list[RelationScore]:
    """Choose head and offset of each relation on every second sentence, and score them on the others."""
    names: dict[str, int] = {}
    for counts in counted:
        for relation, (count, _, _) in counts.items():
            names[relation] = names.get(relation, 0) + count
    scores = []
    for relation in sorted(names, key=lambda name: (-names[name], name)):
        halves = []
        for half in (0, 1):
            having = [counts[relation] for counts in counted[half::2] if relation in counts]
            halves.append(_Counts([arcs for arcs, _, _ in having], [right for _, right, _ in having],
                                  [right for _, _, right in having]))  # fmt: skip
        choosing, scoring = halves
        arcs = np.array(scoring.arcs)
        if arcs.sum() < min_arcs or sum(choosing.arcs) < min_arcs:
            continue
        by_head = np.sum(choosing.heads, axis=0)
        best = np.unravel_index(int(by_head.argmax()), by_head.shape)
        offset = int(np.sum(choosing.offsets, axis=0).argmax())
        right = np.array([values[best] for values in scoring.heads])
        right_offset = np.array([values[offset] for values in scoring.offsets])
        total = int(arcs.sum())
        gain = (right.sum() - right_offset.sum()) / total
        # the error of a ratio of sums over sentences: arcs of one sentence are not independent
        residual = (right - right_offset) - gain * arcs
        error = float(np.sqrt((residual**2).sum()) / total)
        scores.append(
            RelationScore(
                relation, total, int(best[1]), int(best[2]), DIRECTIONS[int(best[0])], float(right.sum() / total),
                OFFSETS[offset], float(right_offset.sum() / total), error,
            )
        )  # fmt: skip
    return scores


# --- what a model says ------------------------------------------------------------------------------


def answer_sentence(model: LoadedModel, sentence: Sentence) -> np.ndarray | None:
    """Return every head's answer for every word, (directions, layers, heads, W); None where the text is cut."""
    text = model.tokenizer.normalise(" ".join(sentence.words))
    attention = compute_attention(model, text)
    if attention.cut:
        return None
    ends = np.cumsum([len(model.tokenizer.normalise(word)) + 1 for word in sentence.words])
    words = np.full(len(attention.tokens), -1)
    starts = model.tokenizer.encode(text).offsets[:, 0]
    starts = starts + np.array([letter == " " for letter in text])[starts]  # byte-level tokens begin with the space
    words[~attention.markers] = np.searchsorted(ends, starts, side="right").clip(max=len(sentence.words) - 1)
    return answer_heads(word_weights(attention.weights, words, len(sentence.words)))


def list_branches(model: LoadedModel) -> list[AttentionBranch]:
    """List the attention of all layers; layers that share theirs have one."""
    return [module for module in model.model.modules() if isinstance(module, AttentionBranch)]


@contextlib.contextmanager
def without_heads(branches: Sequence[AttentionBranch], removed: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Remove heads, given as (number of the attention, head), while the context lasts."""
    weights = [branch.out.weight.detach().clone() for branch in branches]
    try:
        with torch.no_grad():
            for number, head in removed:
                size = branches[number].size
                branches[number].out.weight[:, head * size : (head + 1) * size] = 0
        yield
    finally:
        with torch.no_grad():
            for branch, weight in zip(branches, weights, strict=True):
                branch.out.weight.copy_(weight)


def measure_loss(model: LoadedModel, texts: Sequence[str]) -> float:
    """Return the mean loss (nats a token): of the next token, or of every seventh, masked."""
    special = model.tokenizer.special
    sequences: list[np.ndarray] = []
    targets: list[tuple[np.ndarray, np.ndarray]] = []  # places, tokens
    for text in texts:
        framed = np.asarray(model.frame(model.tokenizer.encode(text).ids))
        if model.objective.predicts_next:
            places = np.arange(len(framed) - 1)
            sequences.append(framed)
            targets.append((places, framed[1:]))
            continue
        assert special.mask is not None
        places = np.array([p for p in range(1, len(framed) - 1, MASK_EVERY) if framed[p] not in special.ids()], int)
        masked = framed.copy()
        masked[places] = special.mask
        sequences.append(masked)
        targets.append((places, framed[places]))
    total, count = 0.0, 0
    for logits, (places, tokens) in zip(model.logits(sequences), targets, strict=True):
        scores = torch.from_numpy(np.asarray(logits)[places]).double().log_softmax(-1).numpy()
        total -= float(scores[np.arange(len(places)), tokens].sum())
        count += len(places)
    if not count:
        raise UserError(
            f"None of the {len(texts)} sentences on which a loss is measured has a token to predict. Take more of them "
            "with --pruning, or none with --pruning 0."
        )
    return total / count


def prune_heads(model: LoadedModel, texts: Sequence[str]) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Return each head's importance on half of the texts, and the loss of the others with heads removed."""
    branches = list_branches(model)
    choosing, scoring = texts[0::2], texts[1::2]
    whole = measure_loss(model, choosing)
    importance = np.zeros((len(branches), branches[0].heads))
    for number, branch in enumerate(branches):
        for head in range(branch.heads):
            with without_heads(branches, [(number, head)]):
                importance[number, head] = measure_loss(model, choosing) - whole
    order = np.argsort(importance, axis=None, kind="stable")
    ranked = [(int(place) // importance.shape[1], int(place) % importance.shape[1]) for place in order]
    losses = []
    for share in PRUNED_SHARES:
        with without_heads(branches, ranked[: round(share * len(ranked))]):
            losses.append((share, measure_loss(model, scoring)))
    return importance, losses


def measure_heads(
    model: LoadedModel, sentences: Sequence[Sentence], *, min_arcs: int = 20, pruning_texts: int = 40
) -> HeadReport:
    """Score every head on the arcs of sentences, and the model without its heads."""
    counted, texts, skipped = [], [], 0
    for sentence in sentences:
        answers = answer_sentence(model, sentence)
        if answers is None:
            skipped += 1
            continue
        counted.append(count_correct(sentence, answers))
        texts.append(" ".join(sentence.words))
        shape = answers.shape
    if len(counted) < 2:
        raise UserError("Fewer than two sentences fit into the context of this model.")
    can_fill = model.objective.predicts_next or model.tokenizer.special.mask is not None
    importance, pruning = None, None
    if pruning_texts and can_fill and gives_logits(model) and _has_trained_head(model):
        importance, pruning = prune_heads(model, texts[:pruning_texts])
    return HeadReport(
        shape[1], shape[2], len(counted), skipped, score_relations(counted, min_arcs), importance, pruning
    )


def _has_trained_head(model: LoadedModel) -> bool:
    """Whether logits mean something: an encoder from elsewhere may come without its language-model head."""
    try:
        model.require_trained_head()
    except UserError:
        return False
    return True


def format_report(report: HeadReport, top: int = 20) -> str:
    """Format the relations, a line each, and the loss without heads."""
    lines = [f"{'relation':14} {'arcs':>6} {'head':>6} {'way':>5} {'right':>7} {'offset':>7} {'right':>7} {'gain':>12}"]
    for score in report.relations[:top]:
        mark = "  beats the offset" if score.beats_offset else ""
        lines.append(
            f"{score.relation:14} {score.arcs:6,} {f'{score.layer}-{score.head}':>6} {score.direction:>5} "
            f"{score.accuracy:7.1%} {score.offset:+7} {score.offset_accuracy:7.1%} "
            f"{100 * score.gain:+6.1f} ± {100 * score.error:3.1f}{mark}"
        )
    if report.pruning is not None:
        parts = ", ".join(f"{share:.0%} {loss:.3f}" for share, loss in report.pruning)
        lines.append(f"loss (nats a token) with a share of the {report.layers} x {report.heads} heads removed: {parts}")
    if report.skipped:
        lines.append(f"{report.skipped} sentences are longer than the model sees and were left out.")
    return "\n".join(lines)
