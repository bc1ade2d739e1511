"""What a corpus is like: duplicates, non-text, mix of scripts, tokens a word, unknown tokens, unigram entropy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from etude.text.tokenizer import characters

MOST_EXAMPLES = 5


@dataclass
class Sums:
    """What is added up while a corpus is made."""

    classes: list[int] = field(default_factory=lambda: [0] * characters.CLASSES)
    words: int = 0
    non_text: int = 0
    examples: list[list[Any]] = field(default_factory=list)  # file and line of documents that do not look like text
    without_tokens: int = 0

    def add(self, facts: dict[str, Any], parts: tuple[str, ...]) -> None:
        self.classes = [a + b for a, b in zip(self.classes, facts["classes"], strict=True)]
        self.words += facts["words"]
        self.non_text += facts["non_text"]
        self.examples = (self.examples + facts["examples"])[:MOST_EXAMPLES]
        self.without_tokens += sum(facts[part]["without_tokens"] for part in parts if part in facts)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def entropy(counts: np.ndarray) -> float:
    """Of the unigram distribution, in nats a token: the loss of a model that knows word counts and nothing else."""
    total = counts.sum()
    if not total:
        return 0.0
    share = counts[counts > 0] / total
    return float(-(share * np.log(share)).sum())


def build(
    sums: Sums, scanned: dict[str, Any], parts: dict[str, Any], counts: np.ndarray, unknown: int | None
) -> dict[str, Any]:
    """The report as the manifest holds it. `counts` are those of all parts together."""
    tokens = int(counts.sum())
    size = sum(part["bytes"] for part in parts.values())
    letters = {name: count for name, count in zip(characters.CLASS_NAMES, sums.classes, strict=True) if count}
    scripts = {
        name: count for name, count in letters.items() if name not in characters.CLASS_NAMES[: characters.FIRST_SCRIPT]
    }
    all_letters = max(1, sum(scripts.values()))
    nats = entropy(counts)
    return {
        **{name: scanned[name] for name in ("documents", "duplicates", "dropped", "filtered", "empty", "cut")},
        "without_tokens": sums.without_tokens,
        "non_text": sums.non_text,
        "non_text_examples": sums.examples,
        "scripts": {
            name: round(count / all_letters, 6) for name, count in sorted(scripts.items(), key=lambda x: -x[1])
        },
        "characters": letters,
        "words": sums.words,
        "tokens_a_word": round(tokens / max(1, sums.words), 4),
        "bytes_a_token": round(size / max(1, tokens), 4),
        "unknown_share": round(int(counts[unknown]) / max(1, tokens), 8) if unknown is not None else 0.0,
        "unigram_entropy_nats": round(nats, 6),
        "unigram_bits_a_byte": round(nats / np.log(2) * tokens / max(1, size), 6),
        "vocabulary_used": int((counts > 0).sum()),
    }


def format_report(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """The report in words, one line a fact, for the terminal."""
    report, parts = manifest["report"], manifest["parts"]
    train = parts["train"]
    rows = [
        ("documents", f"{train['documents']:,} train, {parts['valid']['documents']:,} held out"),
        ("tokens", f"{train['tokens']:,} train, {parts['valid']['tokens']:,} held out"),
        ("text", f"{sum(part['bytes'] for part in parts.values()) / 1e6:,.1f} MB, {report['words']:,} words"),
        ("tokenizer", f"{manifest['tokenizer']['spec']}: {manifest['tokenizer']['vocab']:,} ids, "
                      f"{report['vocabulary_used']:,} of them used"),
        ("tokens a word", f"{report['tokens_a_word']:.2f} ({report['bytes_a_token']:.2f} bytes a token)"),
        ("unknown tokens", f"{100 * report['unknown_share']:.3f} %"),
        ("unigram entropy", f"{report['unigram_entropy_nats']:.3f} nats a token, "
                            f"{report['unigram_bits_a_byte']:.3f} bits a byte: what a model must beat"),
        ("scripts", ", ".join(f"{name} {100 * share:.1f} %" for name, share in list(report["scripts"].items())[:4])),
    ]  # fmt: skip
    share = report["duplicates"] / max(1, report["documents"])
    done = "dropped" if report["dropped"] else "kept; --unique drops them"
    rows.append(
        (
            "exact duplicates",
            f"{report['duplicates']:,} ({100 * share:.1f} %{', ' + done if report['duplicates'] else ''})",
        )
    )
    where = (
        f", first: {report['non_text_examples'][0][0]}:{report['non_text_examples'][0][1]}"
        if report["non_text"]
        else ""
    )
    rows.append(("not like text", f"{report['non_text']:,} documents{where}"))
    for name, what in (
        ("filtered", "left out by the filter"), ("empty", "without text"), ("cut", "cut for being over 1 MB"),
        ("without_tokens", "without a single token"),
    ):  # fmt: skip
        if report[name]:
            rows.append((what, f"{report[name]:,} documents"))
    return rows
