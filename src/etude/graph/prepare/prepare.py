"""Preparation of a graph from files of triples: spill, merge names, sort into rows, join labels, report.

The result is a function of the files and the settings. Work in progress lies in `<out>.partial`, and the graph appears
by one rename when it is complete. An interrupted preparation starts again, unless that rename alone was left; an error
in the input leaves nothing behind.
Memory does not grow with the number of triples: chunks are spilled (spill.py), names merged (name_merge.py), triples
sorted range by range (row_sort.py), labels joined in one pass (entity_texts.py).
"""

from __future__ import annotations

import glob
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from etude.errors import UserError
from etude.graph.graph import Graph, fingerprint_arrays
from etude.graph.graph_files import FORMAT, VERSION, FindingEntry, GraphReport, MappedArrays
from etude.graph.names import Texts
from etude.graph.prepare.entity_texts import EntitySpill, JoinedTexts, join_texts
from etude.graph.prepare.graph_report import TOP_RELATIONS
from etude.graph.prepare.name_merge import DROPPED, MergedNames, merge_names, number_path
from etude.graph.prepare.row_sort import RECORD, SPLITS, Buckets, Histogram, SortedTriples, write_rows
from etude.graph.prepare.spill import KINDS, LINE_BITS, TRAIN, Finding, Shares, TripleSpill
from etude.graph.readers.base import Columns, ReadSettings, SkipCounts, parse_columns
from etude.graph.readers.formats import describe_graph_file, read_entities, read_triples
from etude.graph.readers.lines import FileWatch
from etude.graph.readers.tables import ENTITY_ROLES, TRIPLE_ROLES
from etude.text.checked_files import FileEntry
from etude.text.prepare.prepare import Progress
from etude.text.prepare.sources import SourceFile, identify_file
from etude.text.prepare.work_folder import CORPUS, WorkFolder, refuse_existing

Policy = Literal["keep", "drop"]
FileInput = str | Path | Sequence[str | Path]
HeldOut = float | str | Path | Sequence[str | Path] | None  # a share of the train triples, or files


def prepare_graph(
    sources: FileInput,
    out: str | Path,
    *,
    valid: HeldOut = None,
    test: HeldOut = None,
    entities: FileInput | None = None,
    triple_columns: str | None = None,
    entity_columns: str | None = None,
    language: str | None = None,
    self_loops: Policy = "keep",
    unseen: Policy = "keep",
    seed: int = 0,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Graph:
    """Turn files of triples into a graph at `out`, and open it.

    sources: .tsv, .csv, .jsonl, .nt or ConceptNet's assertions.csv, also packed; patterns too.
    valid, test: files of held-out triples, or a share of the train triples, drawn by hash.
    entities: files of labels, aliases and descriptions.
    triple_columns, entity_columns: the columns by order ("relation,head,tail") or by name ("head=from,...").
    language: of ConceptNet's concepts (en if None), and of labels in N-Triples (all if None).
    self_loops: triples of an entity with itself: "keep" or "drop".
    unseen: held-out triples with a name that no train triple has: "keep" or "drop".
    force: replaces what is already at `out`.
    """
    out = Path(out)
    for name, value in (("self_loops", self_loops), ("unseen", unseen)):
        if value not in get_args(Policy):
            raise UserError(f"{name} is 'keep' or 'drop', not '{value}'.")
    read_settings = ReadSettings(
        _parse_columns(triple_columns, "--triple-columns", TRIPLE_ROLES, ("head", "relation", "tail")), language
    )
    files = {"train": _list_files(sources), "valid": _held_out_files(valid), "test": _held_out_files(test)}
    if not -(1 << 63) <= seed < 1 << 63:
        raise UserError(f"The seed {seed} does not fit into 64 bits. Take a smaller one.")
    shares = Shares(_share("valid", valid), _share("test", test), seed)
    if shares.valid + shares.test >= 1:
        raise UserError(f"valid and test hold out {shares.valid + shares.test:g} of the triples; nothing is left.")
    splits = tuple(
        split for split in SPLITS if split == "train" or files[split] or {"valid": valid, "test": test}[split]
    )
    entity_files = _list_files(entities) if entities is not None else []
    entity_settings = ReadSettings(_parse_columns(entity_columns, "--entity-columns", ENTITY_ROLES, ("id",)), language)
    refuse_existing(out, force)
    preparation = _Preparation(files, entity_files, progress or (lambda _: None))
    settings: dict[str, object] = {
        "version": VERSION, "valid": shares.valid, "test": shares.test, "triple_columns": triple_columns,
        "entity_columns": entity_columns, "language": language, "self_loops": self_loops, "unseen": unseen,
        "seed": seed,
    }  # fmt: skip
    inputs = {
        name: [identify_file(file) for file in listed] for name, listed in (*files.items(), ("entities", entity_files))
    }
    work_folder = WorkFolder(out, settings | {"graph": inputs})
    if work_folder.finish():
        return Graph.open(out)
    with work_folder as work:
        for name in (CORPUS, "chunks"):  # of an interrupted preparation
            shutil.rmtree(work.path(name), ignore_errors=True)
        work.path(CORPUS).mkdir()
        spill = TripleSpill(work.path("chunks"), drop_self_loops=self_loops == "drop")
        texts = EntitySpill(work.path("chunks") / "texts")
        preparation.read(spill, texts, read_settings, entity_settings, shares)
        preparation.build(spill, texts, work, splits, drop_unseen=unseen == "drop")
        work.publish({
            "format": FORMAT, "version": VERSION,
            "fingerprint": fingerprint_arrays(
                {name.rpartition(".")[0]: entry["sha256"] for name, entry in preparation.files.items()}
            ),
            "settings": settings,
            "sources": [
                {"path": file.path, "bytes": file.size, "sha256": watch.sha256}
                for file, watch in zip(preparation.sources, preparation.watches, strict=True)
            ],
            "files": preparation.files,
            "report": preparation.report,
        })  # fmt: skip
    return Graph.open(out)


def _parse_columns(text: str | None, option: str, roles: tuple[str, ...], required: tuple[str, ...]) -> Columns | None:
    return parse_columns(text, option, roles, required) if text is not None else None


def _list_files(names: FileInput) -> list[SourceFile]:
    """Return the files that names and patterns stand for, in order."""
    files = []
    for name in [names] if isinstance(names, (str, Path)) else names:
        if not Path(name).exists() and glob.has_magic(str(name)):
            matches = sorted(glob.glob(str(name), recursive=True))  # noqa: PTH207 (takes absolute patterns)
            if not matches:
                raise UserError(f"{name}: no file matches the pattern.")
            files += [describe_graph_file(match) for match in matches]
        elif not Path(name).exists():
            raise UserError(f"{name}: no such file.")
        else:
            files.append(describe_graph_file(name))
    if not files:
        raise UserError("No triples were named. Give files such as train.tsv.")
    return files


def _held_out_files(held_out: HeldOut) -> list[SourceFile]:
    return [] if held_out is None or isinstance(held_out, (int, float)) else _list_files(held_out)


def _share(name: str, held_out: HeldOut) -> float:
    if not isinstance(held_out, (int, float)):
        return 0.0
    if not 0 <= held_out < 1:
        raise UserError(f"{name} is a file, or the share of triples held out, from 0 to below 1, not {held_out:g}.")
    return float(held_out)


@dataclass
class _Preparation:
    """The passes over one set of files."""

    split_files: dict[str, list[SourceFile]]
    entity_files: list[SourceFile]
    progress: Callable[[Progress], None]
    skipped: SkipCounts = field(default_factory=SkipCounts)
    files: dict[str, FileEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sources = [file for split in SPLITS for file in self.split_files[split]] + self.entity_files
        self.watches = [FileWatch() for _ in self.sources]
        self.start_time = time.monotonic()
        self.report: GraphReport | None = None

    def read(
        self, spill: TripleSpill, texts: EntitySpill, settings: ReadSettings, entity_settings: ReadSettings,
        shares: Shares,
    ) -> None:  # fmt: skip
        """Read all files into chunks."""
        number = 0
        for split_number, split in enumerate(SPLITS):
            for file in self.split_files[split]:
                before = spill.triples
                for block in read_triples(file, settings, self.skipped, self.watches[number]):
                    file_split = np.full(len(block.heads), split_number, np.uint8)
                    spill.add(block, number, shares.draw(block) if split == "train" else file_split)
                    texts.add(block.rows, number)
                    self._report_progress("reading", spill.triples)
                if spill.triples == before:
                    raise UserError(f"{file.path} has no triple. Is it the right file?")
                number += 1
        for file in self.entity_files:
            for rows in read_entities(file, entity_settings, self.skipped, self.watches[number]):
                texts.add(rows, number)
                self._report_progress("reading", spill.triples)
            number += 1
        spill.flush()

    def build(
        self, spill: TripleSpill, texts: EntitySpill, work: WorkFolder, splits: tuple[str, ...], drop_unseen: bool
    ) -> None:
        """Write the arrays of the graph, and the report."""
        out, scratch = work.path(CORPUS), work.path("chunks")
        self._report_progress("sorting", spill.triples)
        merged = {kind: merge_names(spill, kind, out, drop_unseen) for kind in KINDS}
        entities, relations = merged["entities"].count, merged["relations"].count
        by_head, by_tail = Histogram(entities), Histogram(entities)
        unseen_triples = dict.fromkeys((split for split in splits if split != "train"), 0)
        for chunk in range(spill.chunks):
            self._number_chunk(spill, chunk, unseen_triples, by_head, by_tail)
        heads = Buckets(scratch / "heads", by_head.cut())
        for chunk in range(spill.chunks):
            heads.scatter(np.load(scratch / f"{chunk:05}.records.npy", allow_pickle=False))
            (scratch / f"{chunk:05}.records.npy").unlink()
        triples = write_rows(
            heads, Buckets(scratch / "tails", by_tail.cut()), out, relations, splits, spill.has_weights
        )
        for names in merged.values():
            self.files |= names.files
        self.files |= triples.files
        joined = JoinedTexts()
        if texts.total:
            arrays = MappedArrays(out, self.files, verify=False)
            joined = join_texts(texts, Texts(arrays["entities.letters"], arrays["entities.bounds"]), out)
            self.files |= joined.files
        self.files = dict(sorted(self.files.items()))
        self.report = self._describe(spill, merged, triples, joined, unseen_triples, drop_unseen, out)
        self._report_progress("sorting", spill.triples)

    def _number_chunk(
        self, spill: TripleSpill, chunk: int, unseen: dict[str, int], by_head: Histogram, by_tail: Histogram
    ) -> None:
        """Write a chunk's triples as records with the numbers of the graph."""
        local = spill.load(chunk, "triples")
        splits, places = spill.load(chunk, "splits"), spill.load(chunk, "places")
        numbers = {kind: np.fromfile(number_path(spill, chunk, kind), np.int32) for kind in KINDS}
        triples = np.stack(
            [numbers[kind][local[:, column]] for column, kind in enumerate(("entities", "relations", "entities"))], 1
        )
        is_unseen = triples.min(axis=1) < 0
        for number, split in enumerate(SPLITS):
            if split in unseen:
                unseen[split] += int(is_unseen[splits == number].sum())
        is_kept = (triples != DROPPED).all(axis=1)
        records = np.zeros(int(is_kept.sum()), RECORD)
        triples = triples[is_kept]
        triples = np.where(triples < 0, -2 - triples, triples)
        records["row"], records["relation"], records["neighbour"] = triples.T
        records["weight"] = spill.load(chunk, "weights")[is_kept]
        records["split"], records["place"] = splits[is_kept], places[is_kept]
        by_head.add(records["row"])
        by_tail.add(records["neighbour"][records["split"] == TRAIN])
        np.save(spill.folder / f"{chunk:05}.records.npy", records, allow_pickle=False)

    def _describe(
        self, spill: TripleSpill, merged: dict[str, MergedNames], triples: SortedTriples, joined: JoinedTexts,
        unseen: dict[str, int], drop_unseen: bool, out: Path,
    ) -> GraphReport:  # fmt: skip
        graph = Graph(MappedArrays(out, self.files, verify=False), None)
        top = np.argsort(-triples.relation_counts, kind="stable")[:TOP_RELATIONS].tolist()
        dangling: FindingEntry = {"count": joined.dangling}
        if joined.dangling:
            dangling["first"] = f"{self._place(joined.dangling_first)} ({joined.dangling_name})"
        if not triples.counts["train"]:
            raise UserError("The graph has no train triple: everything was dropped or held out.")
        return {
            "triples": triples.counts,
            "entities": merged["entities"].count,
            "relations": merged["relations"].count,
            "duplicates": self._finding(triples.duplicates),
            "self_loops": self._finding(spill.self_loops),
            "self_loops_dropped": spill.drop_self_loops,
            "leaks": self._finding(triples.leaks),
            "unseen_entities": _unseen(merged["entities"]),
            "unseen_relations": _unseen(merged["relations"]),
            "unseen_triples": unseen,
            "unseen_dropped": drop_unseen,
            "skipped": dict(self.skipped),
            "labelled": joined.labelled,
            "entity_rows": joined.rows,
            "dangling": dangling,
            "max_degree": triples.max_degree,
            "max_degree_entity": graph.entities[triples.max_degree_entity],
            "top_relations": [[graph.relations[number], int(triples.relation_counts[number])] for number in top],
        }

    def _finding(self, finding: Finding) -> FindingEntry:
        return {"count": finding.count, "first": self._place(finding.first)} if finding.count else {"count": 0}

    def _place(self, place: int) -> str:
        return f"{self.sources[place >> LINE_BITS].path}:{place & ((1 << LINE_BITS) - 1)}"

    def _report_progress(self, phase: str, triples: int) -> None:
        total = sum(file.size for file in self.sources)
        done = sum(watch.position for watch in self.watches)
        self.progress(Progress(phase, done, total, done, triples, time.monotonic() - self.start_time, "triples"))


def _unseen(names: MergedNames) -> FindingEntry:
    return {"count": names.unseen, "name": names.example} if names.unseen else {"count": 0}
