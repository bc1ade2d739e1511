"""Text in: `prepare` makes a corpus of files, `world` writes text about the built-in town."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etude.verbs.limits import require_at_least
from etude.verbs.paths import require_paths

if TYPE_CHECKING:
    from etude.graph.linking.graph_linking import GraphLinking
    from etude.text.corpus.corpus import Corpus
    from etude.text.prepare.prepare import Progress
    from etude.text.tokenizer.tokenizer import Tokenizer
    from etude.world import World


def prepare(
    sources: str | Path | Sequence[str | Path] | Mapping[str, float],
    *,
    out: str | Path,
    tokenizer: str | Path | Tokenizer = "bpe:16000",
    valid: float | str | Path | None = None,
    text_field: str = "text",
    where: str | None = None,
    pairs: str | None = None,
    target_tokenizer: str | Path | Tokenizer | None = None,
    unique: bool = False,
    weights: Sequence[float] | None = None,
    one_document: bool = False,
    errors: Literal["strict", "replace"] = "strict",
    encoding: str | None = None,
    workers: int | None = None,
    on: Literal["here", "ray"] = "here",
    sample_mb: float = 32.0,
    ids: Literal["auto", "uint16", "uint32"] = "auto",
    seed: int = 0,
    force: bool = False,
    link: str | Path | None = None,
    anchors: Literal["wiki", "ernie", "entities"] | None = None,
    linker: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Corpus:
    """Turn text into a corpus: tokenised, split into documents, sentences and words, with a part held out.

    SOURCES are files, folders or quoted patterns of .txt (documents parted by blank lines), .jsonl, .csv, .tsv or
    .parquet, each also packed as .gz, .xz or .zst, here or behind s3://, gs://, hf:// or https://; or hub:NAME for a
    data set of the hub; pairs also of .tmx.

    A tokenizer is trained on the text (word:50000, wordpiece:8000, bpe:16000, bytebpe:16000, unigram:8000, char; with
    ',lower', ',form=nfkc' or ',min=5' behind) or taken as it is: the path of a tokenizer.json, a vocab.txt, a
    vocab.json with merges.txt beside it, or the folder of any of them.

    Interrupted, the same command goes on where it stopped.

    Args:
        sources: Files, folders, patterns, URLs of them (s3://, gs://, hf://, https://), or hub:NAME.
        out: The corpus folder to make, or its URL: s3://bucket/corpus.
        tokenizer: The tokenizer to train, as KIND:SIZE, or the path of one that is trained.
        valid: Share of documents held out for validation, 0.01 unless given; of a graph, a file of held-out triples or
            their share, 0 unless given.
        text_field: Field or column that holds the text of a record.
        where: Read only records whose fields fulfil this: "score>=3 and lang==ko".
        pairs: Fields of source and target for translation, as in en,ko; or the endings of two parallel files, such as
            train.en and train.ko.
        target_tokenizer: Tokenizer of the targets of pairs, as --tokenizer; both sides share one unless given.
        unique: Drop exact duplicates of documents.
        weights: How many times each source counts, as in 1,2.5,0.5; one number a source.
        one_document: Take each .txt file as one document; blank lines do not part it.
        errors: At invalid UTF-8 'strict' stops with an error, and 'replace' puts U+FFFD in its place.
        encoding: Encoding of text that is not UTF-8: cp1252 (Windows), cp949 (Korean), utf-16 or another of Python's
            names.
        workers: Number of processes; one for each core unless given.
        on: Where text is parsed and encoded: here, on this machine, or ray, on a Ray cluster.
        sample_mb: Megabytes of the text that the tokenizer is trained on, drawn at random.
        ids: Type of the token ids on disk; auto takes the smallest that holds the vocabulary.
        seed: Seed that draws the held-out documents and the text the tokenizer is trained on.
        force: Replace a corpus that is already there.
        link: A prepared graph; mentions of its entities in the text are stored beside the tokens, for ERNIE.
        anchors: Mentions that are marked in the text: wiki links, ERNIE's files, or a field 'entities'.
        linker: What finds other mentions, as in trie,threshold=0.4,titles; trie unless there are anchors.
        on_progress: Receives the progress.
    """
    from etude.errors import UserError
    from etude.text.prepare import prepare as preparation

    if not isinstance(sources, Mapping):
        sources = require_paths("sources", sources, "a file or folder of text")
    if isinstance(valid, (str, Path)):
        raise UserError(f"--valid {valid}: of text it is the share of documents held out; files go with --graph.")
    if not math.isfinite(sample_mb):
        raise UserError(f"--sample-mb {sample_mb}: say how many MB of text a tokenizer is trained on, as in 32.")
    return preparation.prepare(
        sources,
        out,
        tokenizer,
        valid=0.01 if valid is None else valid,
        workers=workers,
        on=on,
        text_field=text_field,
        where=where,
        pairs=pairs,
        target_tokenizer=target_tokenizer,
        unique=unique,
        errors=errors,
        encoding=encoding,
        weights=weights,
        one_document=one_document,
        sample_bytes=int(sample_mb * 1e6),
        seed=seed,
        ids=ids,
        force=force,
        linking=_open_linking(link, linker, anchors),
        progress=on_progress,
    )


def _open_linking(graph: str | Path | None, linker: str | None, anchors: str | None) -> GraphLinking | None:
    """Return how text is linked to a graph, if it is."""
    from etude.errors import UserError

    if graph is None:
        if linker is not None or anchors is not None:
            option = "--linker" if linker is not None else "--anchors"
            raise UserError(f"{option} goes with --link GRAPH, the graph whose entities the text mentions.")
        return None
    from etude.graph.graph import Graph
    from etude.graph.linking.graph_linking import GraphLinking

    return GraphLinking(Graph.open(graph), linker, anchors)


def world(
    *,
    out: str | Path,
    megabytes: float = 5.0,
    language: Literal["en", "ko"] = "en",
    seed: int = 0,
    tasks: bool = True,
    pairs: int = 0,
    anchored: float = 0.0,
    link_noise: float = 0.0,
    force: bool = False,
    on_progress: Callable[[str, float], None] | None = None,
) -> World:
    """Write text about the built-in town, with gold labels for every task.

    Args:
        out: Folder for text.txt, tasks/, prompts/ and knowledge/ (facts, and the triples and labels of a graph).
        megabytes: Megabytes of text to write.
        language: Language of the text: English or Korean.
        seed: Seed of the town: another seed is another town.
        tasks: Also write the labelled examples, and prompt files for some of them.
        pairs: Also write this many pairs of sentences, English and Korean, to pairs.tsv, for translation. With tasks,
            none of those that the task of translation holds out.
        anchored: Also write this many megabytes of text whose mentions are linked to the graph, to anchored.txt.
        link_noise: Share of those links that point to a wrong entity.
        force: Replace files that are already there.
        on_progress: Receives the part being written, and its share that is done.
    """
    from etude.errors import UserError
    from etude.world import World
    from etude.world import world as world_text
    from etude.world.knowledge.knowledge import Knowledge

    require_at_least("megabytes", megabytes, 0.001)
    town = World(seed, language)
    require_at_least("pairs", pairs, 0)
    require_at_least("anchored", anchored, 0)
    world_text.check_size(anchored)
    if not 0 <= link_noise < 1:
        raise UserError(f"link_noise is a share, from 0 to below 1, not {link_noise:g}.")
    if link_noise and not anchored:
        raise UserError("--link-noise is of the text with links: say how much of it with --anchored MEGABYTES.")
    if not force:
        of_options = {"tasks": tasks, "prompts": tasks, "pairs.tsv": pairs, "anchored.txt": anchored}
        _refuse_existing(Path(out), ["text.txt", "knowledge", *(name for name, asked in of_options.items() if asked)])
    report = on_progress or (lambda part, share: None)
    town.write(Path(out), megabytes, tasks, report)
    if pairs:
        # beside the tasks, none of what translation.valid and translation.test ask for
        town.write_pairs(Path(out) / "pairs.tsv", pairs, split="train" if tasks else None)
    knowledge = Knowledge(town)
    knowledge.write_graph(Path(out) / "knowledge")
    if tasks:
        knowledge.write_tasks(Path(out) / "tasks", world_text.COUNTS, report)
    if anchored:
        knowledge.write_anchored(Path(out) / "anchored.txt", anchored, link_noise, report)
    return town


def _refuse_existing(folder: Path, names: Sequence[str]) -> None:
    """Raise UserError where one of these files, or anything in one of these folders, is there."""
    from etude.errors import UserError

    for path in (folder / name for name in names):
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise UserError(f"{path} exists already. Choose another folder with -o, or replace it with --force.")
