"""The report on a corpus: duplicates, non-text, scripts, unknown tokens, unigram entropy and more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from etude.text.corpus.bigram_baseline import unigram_entropy
from etude.text.corpus.manifest import EntitiesEntry, Manifest, Report, SplitEntry, corpus_pairs
from etude.text.prepare.messages import Head
from etude.text.prepare.scan import ScanResult
from etude.text.tokenizer import characters

MAX_EXAMPLES = 5


@dataclass
class ReportCounts:
    """Counts that add up while a corpus is encoded."""

    classes: list[int] = field(default_factory=lambda: [0] * characters.CLASSES)
    words: int = 0
    non_text: int = 0
    examples: list[list[str | int]] = field(
        default_factory=list
    )  # file and line of documents that do not look like text
    without_tokens: int = 0
    anchors: int = 0
    unread_links: int = 0  # wiki links in text that is linked without anchors

    def add(self, facts: Head, splits: tuple[str, ...]) -> None:
        """Add the counts of one block."""
        self.classes = [a + b for a, b in zip(self.classes, facts["classes"], strict=True)]
        self.words += facts["words"]
        self.non_text += facts["non_text"]
        self.examples = (self.examples + facts["examples"])[:MAX_EXAMPLES]
        self.without_tokens += sum(facts[split]["without_tokens"] for split in splits if split in facts)
        self.anchors += sum(facts[split]["anchors"] for split in splits if split in facts)
        self.unread_links += sum(facts[split]["unread_links"] for split in splits if split in facts)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def build_report(
    report_counts: ReportCounts, scan_result: ScanResult, unique: bool, splits: Mapping[str, SplitEntry],
    counts: np.ndarray, unknown: int | None,
) -> Report:  # fmt: skip
    """Build the report of the manifest. `counts` are those of all splits together."""
    tokens = int(counts.sum())
    size = sum(split["bytes"] for split in splits.values())
    classes = {name: count for name, count in zip(characters.CLASS_NAMES, report_counts.classes, strict=True) if count}
    non_letters = characters.CLASS_NAMES[: characters.FIRST_SCRIPT]
    scripts = {name: count for name, count in classes.items() if name not in non_letters}
    letters = max(1, sum(scripts.values()))
    nats = unigram_entropy(counts)
    return {
        "documents": scan_result.documents,
        "duplicates": scan_result.duplicates,
        "dropped": scan_result.duplicates if unique else 0,
        "filtered": scan_result.filtered,
        "empty": scan_result.empty,
        "cut": scan_result.cut,
        "without_tokens": report_counts.without_tokens,
        "non_text": report_counts.non_text,
        "non_text_examples": report_counts.examples,
        "scripts": {name: round(count / letters, 6) for name, count in sorted(scripts.items(), key=lambda x: -x[1])},
        "characters": classes,
        "words": report_counts.words,
        "tokens_a_word": round(tokens / max(1, report_counts.words), 4),
        "bytes_a_token": round(size / max(1, tokens), 4),
        "unknown_share": round(int(counts[unknown]) / max(1, tokens), 8) if unknown is not None else 0.0,
        "unigram_entropy_nats": round(nats, 6),
        "unigram_bits_a_byte": round(nats / np.log(2) * tokens / max(1, size), 6),
        "vocabulary_used": int((counts > 0).sum()),
    }


def format_report(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the report for the terminal, as rows of a name and a text."""
    report, splits = manifest["report"], manifest["parts"]
    train = splits["train"]
    rows = [
        ("documents", f"{train['documents']:,} train, {splits['valid']['documents']:,} held out"),
        ("tokens", f"{train['tokens']:,} train, {splits['valid']['tokens']:,} held out"),
        ("text", f"{sum(split['bytes'] for split in splits.values()) / 1e6:,.1f} MB, {report['words']:,} words"),
        *_format_tokenizers(manifest),
        ("tokens a word", f"{report['tokens_a_word']:.2f} ({report['bytes_a_token']:.2f} bytes a token)"),
        ("unknown tokens", f"{100 * report['unknown_share']:.3f} %"),
        ("scripts", ", ".join(f"{name} {100 * share:.1f} %" for name, share in list(report["scripts"].items())[:4])),
    ]  # fmt: skip
    if "target_tokenizer" not in manifest:  # an id is two tokens otherwise, and its frequency says nothing
        entropy = f"{report['unigram_entropy_nats']:.3f} nats a token, {report['unigram_bits_a_byte']:.3f} bits a byte"
        rows.insert(-1, ("unigram entropy", f"{entropy}: what a model must beat"))
    share = report["duplicates"] / max(1, report["documents"])
    treatment = "dropped" if report["dropped"] else "kept; --unique drops them"
    suffix = f", {treatment}" if report["duplicates"] else ""
    rows.append(("exact duplicates", f"{report['duplicates']:,} ({100 * share:.1f} %{suffix})"))
    first = ", first: {}:{}".format(*report["non_text_examples"][0]) if report["non_text"] else ""
    doubtful = "not like a pair" if corpus_pairs(manifest) else "not like text"
    rows.append((doubtful, f"{report['non_text']:,} documents{first}"))
    if "entities" in manifest:
        rows += _format_entities(manifest["entities"])
    for count, name in (
        (report["filtered"], "left out by the filter"), (report["empty"], "without text"),
        (report["cut"], "cut for being over 1 MB"), (report["without_tokens"], "without a single token"),
    ):  # fmt: skip
        if count:
            rows.append((name, f"{count:,} documents"))
    return rows


def _format_tokenizers(manifest: Manifest) -> list[tuple[str, str]]:
    source = manifest["tokenizer"]
    text = f"{source['spec']}: {source['vocab']:,} ids"
    if "target_tokenizer" not in manifest:
        return [("tokenizer", f"{text}, {manifest['report']['vocabulary_used']:,} of them used")]
    target = manifest["target_tokenizer"]
    return [("tokenizers", f"{text} for sources, {target['spec']}: {target['vocab']:,} ids for targets")]


def _format_entities(entry: EntitiesEntry) -> list[tuple[str, str]]:
    share = f"{100 * entry['token_share']:.1f} % of tokens"
    rows = [("entities", f"{entry['mentions']:,} mentions of {entry['entities']:,} entities, {share}")]
    if entry["anchors"] is not None:
        rows.append(("anchors", f"{entry['anchor_count']:,} in the text, {entry['anchors']}"))
    if entry.get("unread_links"):
        remedy = "--anchors wiki reads them as links and removes the brackets"
        rows.append(("wiki links", f"{entry['unread_links']:,} [[...]] are kept as text; {remedy}"))
    if entry["top"]:
        rows.append(("most frequent", ", ".join(f"{name} {count:,}" for name, count in entry["top"][:5])))
    return rows
