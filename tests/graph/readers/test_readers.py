"""Every format of triples and entities: what is read, and one message with file and line for what is wrong."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.graph.readers.base import EntityRow, ReadSettings, SkipCounts, parse_columns
from etude.graph.readers.formats import describe_graph_file, read_entities, read_triples
from etude.graph.readers.tables import ENTITY_ROLES, TRIPLE_ROLES

Triples = list[tuple[str, str, str]]
names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=8)
many_triples = st.lists(st.tuples(names, names, names), min_size=1, max_size=20)
IN_MEMORY = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def triple_columns(text: str | None):
    return parse_columns(text, "--triple-columns", TRIPLE_ROLES, ("head", "relation", "tail")) if text else None


def read(path: Path, columns: str | None = None, language: str | None = None, counts: SkipCounts | None = None):
    """All triples with lines and weights, and all rows on entities."""
    triples: Triples = []
    lines: list[int] = []
    weights: list[float] = []
    rows: list[EntityRow] = []
    options = ReadSettings(triple_columns(columns), language)
    for block in read_triples(describe_graph_file(path), options, SkipCounts() if counts is None else counts):
        triples += zip(block.heads, block.relations, block.tails, strict=True)
        lines += block.lines
        weights += block.weights or []
        rows += block.rows
    return triples, lines, weights, rows


def entities(path: Path, columns: str | None = None, language: str | None = None) -> list[EntityRow]:
    parsed = parse_columns(columns, "--entity-columns", ENTITY_ROLES, ("id",)) if columns else None
    options = ReadSettings(parsed, language)
    return [row for block in read_entities(describe_graph_file(path), options, SkipCounts()) for row in block]


def write(folder: Path, name: str, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    if name.endswith(".gz"):
        data = gzip.compress(data)
    elif name.endswith(".xz"):
        data = lzma.compress(data)
    (folder / name).write_bytes(data)
    return folder / name


@IN_MEMORY
@given(many_triples, st.sampled_from(["t.tsv", "t.txt", "t.tsv.gz", "t.tsv.xz", "t.jsonl", "t.csv"]), st.booleans())
def test_what_is_written_is_read(tmp_path: Path, triples: Triples, name: str, windows: bool) -> None:
    form = name.split(".")[1]
    if form == "jsonl":
        keys = ("head", "relation", "tail")
        lines = [json.dumps(dict(zip(keys, triple, strict=True)), ensure_ascii=False) for triple in triples]
    elif form == "csv":
        lines = [",".join('"' + field.replace('"', '""') + '"' for field in triple) for triple in triples]
    else:
        lines = ["\t".join(triple) for triple in triples]
    path = write(tmp_path, name, ("\r\n" if windows else "\n").join(lines) + "\n")
    if form != "jsonl" and {"head", "subject"} & {field.lower() for field in triples[0]}:
        return  # it may look like a header
    assert read(path)[:2] == (triples, list(range(1, len(triples) + 1)))


@IN_MEMORY
@given(many_triples)
def test_ntriples_with_every_letter_escaped(tmp_path: Path, triples: Triples) -> None:
    def escape(name: str) -> str:
        return "".join(f"\\U{ord(letter):08X}" if ord(letter) > 0xFFFF else f"\\u{ord(letter):04x}" for letter in name)

    lines = [" ".join(f"<{escape(name)}>" for name in triple) + " ." for triple in triples]
    assert read(write(tmp_path, "t.nt", "\n".join(lines)))[0] == triples


def test_ntriples(tmp_path: Path) -> None:
    text = r"""# a comment
<http://x/seoul> <http://x/capital> <http://x/korea> . # behind it

_:b0 <http://x/caf\u00E9>	_:b1.
<http://x/seoul> <http://www.w3.org/2000/01/rdf-schema#label> "서울"@ko .
<http://x/seoul> <http://www.w3.org/2000/01/rdf-schema#label> "The \"Soul\" \\ \t of Asia"@en-GB .
<http://x/seoul> <http://www.w3.org/2004/02/skos/core#altLabel> "Hanyang" .
<http://x/seoul> <http://schema.org/description> "a city\nin Korea"@en .
<http://x/seoul> <http://x/people> "9"^^<http://www.w3.org/2001/XMLSchema#int> .
"""
    counts = SkipCounts()
    triples, lines, _, rows = read(write(tmp_path, "t.nt.gz", text), language="en", counts=counts)
    assert triples == [("http://x/seoul", "http://x/capital", "http://x/korea"), ("_:b0", "http://x/café", "_:b1")]
    assert lines == [2, 4]
    assert [(row.label, row.aliases, row.description) for row in rows] == [
        ('The "Soul" \\ of Asia', [], ""), ("", ["Hanyang"], ""), ("", [], "a city in Korea"),
    ]  # fmt: skip
    assert counts == {"literals of another language": 1, "literals": 1}
    assert read(tmp_path / "t.nt.gz")[3][0].label == "서울"


def test_conceptnet(tmp_path: Path) -> None:
    def line(relation: str, head: str, tail: str, facts: str) -> str:
        return f"/a/[{relation}/,{head}/,{tail}/]\t{relation}\t{head}\t{tail}\t{facts}"

    lines = [
        line("/r/AtLocation", "/c/en/guide_dog/n", "/c/en/kennel", '{"sources": [], "weight": 2.828}'),
        line("/r/Synonym", "/c/ko/개", "/c/en/dog", '{"weight": 1.0}'),
        line("/r/ExternalURL", "/c/en/dog", "http://dbpedia.org/Dog", '{"weight": 1.0}'),
        line("/r/IsA", "/c/en/dog/n/wn/animal", "/c/en/animal", '{"weight": 0.5, "surfaceText": "x \\"weight\\": 7"}'),
        line("/r/IsA", "/c/ko/개/n", "/c/ko/동물", '{"weight": 1.0}'),
    ]
    path = write(tmp_path, "assertions.csv.gz", "\n".join(lines))
    counts = SkipCounts()
    triples, places, weights, _ = read(path, counts=counts)
    assert triples == [("guide dog", "AtLocation", "kennel"), ("dog", "IsA", "animal")]
    assert places == [1, 4] and weights == [2.828, 0.5] and counts == {"of another language": 3}
    assert read(path, language="ko")[0] == [("개", "IsA", "동물")]
    with pytest.raises(UserError, match=r"no edge with both ends in 'fr' \(--language\)\. Languages .*: en, ko"):
        read(path, language="fr")
    with pytest.raises(UserError, match="the columns of this format are fixed"):
        read(path, columns="head,relation,tail")
    damaged = write(tmp_path, "other.csv", lines[0] + "\n" + lines[0].replace("}", ""))
    with pytest.raises(UserError, match=r"other.csv:2: the last column is no JSON object with a weight"):
        read(damaged)


def test_columns_by_order_name_and_header(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a.tsv", "IsA\tdog\tanimal\t0.5\n"), "relation,head,tail,weight")[::2] == (
        [("dog", "IsA", "animal")], [0.5],
    )  # fmt: skip
    table = write(tmp_path, "b.tsv", "to\tnote\tfrom\ttype\nx\t-\ty\tr\n\n")
    assert read(table, "head=from,relation=type,tail=to")[:2] == ([("y", "r", "x")], [2])
    assert read(write(tmp_path, "c.csv", 'Subject,Predicate,Object\n"a, b",r,c\n'))[0] == [("a, b", "r", "c")]
    records = write(tmp_path, "d.jsonl", '{"s": "a", "p": "r", "o": 7, "w": 2}\n')
    assert read(records, "head=s,relation=p,tail=o,weight=w")[::2] == ([("a", "r", "7")], [2.0])
    with pytest.raises(UserError, match="fields have names and no order"):
        read(records, "head,relation,tail")
    with pytest.raises(UserError, match=r"b.tsv:1: no column 'form' for head .*Did you mean 'from'"):
        read(table, "head=form,relation=type,tail=to")


def test_entity_files(tmp_path: Path) -> None:
    rows = entities(write(tmp_path, "a.tsv", "/m/1\tQ5\tSeoul\tcity  in Korea\n"), "id,-,label,description")
    assert rows == [EntityRow("/m/1", "Seoul", [], "city in Korea", 1)]
    rows = entities(write(tmp_path, "b.tsv", "description\tid\taliases\tlabel\nbig\te\tx| y|\tE\n"))
    assert rows == [EntityRow("e", "E", ["x", "y"], "big", 2)]
    assert entities(write(tmp_path, "c.tsv", "e\tE\n"))[0].label == "E"
    rows = entities(write(tmp_path, "d.tsv", "e\tx\ty\nf\tz\ng\n"), "id,aliases...")
    assert [row.aliases for row in rows] == [["x", "y"], ["z"], []]
    rows = entities(write(tmp_path, "e.jsonl", '{"id": "e", "label": "E", "aliases": ["에"], "description": null}\n'))
    assert rows == [EntityRow("e", "E", ["에"], "", 1)]
    nt = '<e> <http://www.w3.org/2000/01/rdf-schema#label> "E" .'
    assert entities(write(tmp_path, "f.nt", nt))[0].label == "E"
    with pytest.raises(UserError, match=r"g.tsv:1: 3 columns without a header that names id and label\. Say which"):
        entities(write(tmp_path, "g.tsv", "e\tE\tx\n"))
    with pytest.raises(UserError, match=r"h.tsv:2: the id is empty"):
        entities(write(tmp_path, "h.tsv", "e\tE\n\tF\n"))


def test_labels_in_ntriples_are_of_the_language(tmp_path: Path) -> None:
    label = "<e> <http://www.w3.org/2000/01/rdf-schema#label>"
    path = write(tmp_path, "labels.nt", f'{label} "Seoul"@en .\n{label} "서울"@ko .\n')
    assert [row.label for row in entities(path, language="ko")] == ["서울"]
    assert [row.label for row in entities(path)] == ["Seoul", "서울"]
    with pytest.raises(UserError, match="the columns of this format are fixed; leave --entity-columns out"):
        entities(path, "id,label")


def test_a_json_object_may_leave_fields_out(tmp_path: Path) -> None:
    lines = ['{"id": "e"}', '{"id": "f", "label": "F"}', '{"id": "g", "aliases": ["지"], "label": null}']
    lines += ['{"id": "h", "aliases": null, "description": "big"}']
    rows = entities(write(tmp_path, "e.jsonl", "\n".join(lines)))
    assert [(row.label, row.aliases, row.description) for row in rows] == [
        ("", [], ""), ("F", [], ""), ("", ["지"], ""), ("", [], "big"),
    ]  # fmt: skip
    weighted = GOOD + GOOD.replace("}", ', "weight": 0.5}') + GOOD
    assert read(write(tmp_path, "w.jsonl", weighted))[2] == [1.0, 0.5, 1.0]


def test_a_field_that_an_option_names_and_no_object_has_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "e.jsonl", '{"id": "e", "title": "E"}\n')
    assert entities(path, "id=id,label=title")[0].label == "E"
    with pytest.raises(UserError, match=r"no object has the field 'titel' for label \(--entity-columns\)"):
        entities(path, "id=id,label=titel")


GOOD = '{"head": "a", "relation": "r", "tail": "b"}\n'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.tsv", "a\tr\tb\na\tr\n", r"x\.tsv:2: 2 columns, not 3\. Is a tab missing\?"),
        ("x.tsv", "a\tr\tb\na\tr\tb\tc\n", r"x\.tsv:2: 4 columns, not 3\."),
        ("x.tsv", "a r b\n", r"x\.tsv:1: 1 column, not head, relation and tail\. Are its columns separated by tabs"),
        ("x.tsv", "a\tr\tb\t1\n", r"x\.tsv:1: 4 columns.* --triple-columns head,relation,tail,-\."),
        ("x.tsv", "a\tr\tb\n\n \tr\tb\n", r"x\.tsv:3: the head is empty\. Fill it in, or remove the line"),
        ("x.tsv", "a\tr\tb\na\t\tb\n", r"x\.tsv:2: the relation is empty"),
        ("x.tsv", "a\tr\t\n", r"x\.tsv:1: the tail is empty"),
        ("x.tsv", "a\tr\tb\na\tr\tcaf\xe9\n".encode("latin-1"), r"x\.tsv:2: byte 8 of the line is not UTF-8"),
        ("x.tsv", "a\tr\tb\n".encode("utf-16"), r"x\.tsv is not text but UTF-16"),
        ("x.tsv", b"a\tr\tb\0\n", r"x\.tsv is a binary file"),
        ("x.tsv.gz", b"", ""),
        ("x.jsonl", '{"head": "a"}\n', r"x\.jsonl:1: no field 'relation'"),
        ("x.jsonl", GOOD + '{"head": "a", "relation": "r"}\n', r":2: no field 'tail'"),
        ("x.jsonl", GOOD.replace('"b"', '["b"]'), r"x\.jsonl:1: the field 'tail' is \[\"b\"\], not a name"),
        ("x.jsonl", '{"head": "a\\nb", "relation": "r", "tail": "b"}\n', r"x\.jsonl:1: the head .* line break"),
        ("x.jsonl", '{"head": "\\ud800", "relation": "r", "tail": "b"}\n', r"x\.jsonl:1: .* surrogate"),
        ("x.jsonl", "{}\n\n[1]\n", r"x\.jsonl:3: not a JSON object"),
        ("x.jsonl", "a\tr\tb\n", r"x\.jsonl:1: not JSON.*with tabs: if the file is one, name it \.tsv\."),
        ("x.jsonl", "{\n", r"x\.jsonl:1: not JSON"),
        ("x.csv", 'a,r,b\na,r,"b\n', r"x\.csv:\d: not readable as CSV"),
        ("x.nt", "<a> <r> <b>\n", r"x\.nt:1: not a triple of N-Triples"),
        ("x.nt", '<a> <r> <b> .\n<a> "r" <b> .\n', r"x\.nt:2: not a triple of N-Triples"),
        ("x.nt", "<a> <> <b> .\n", r"x\.nt:1: the relation is empty"),
        ("x.nt", "<a\\q> <r> <b> .\n", r"x\.nt:1: \\q is no escape"),
        ("x.nt", "<a\\uD800> <r> <b> .\n", r"x\.nt:1: \\uD800 is no character"),
    ],
)  # fmt: skip
def test_damage_is_told_with_its_line(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    path = write(tmp_path, name, text)
    if not message:
        path.write_bytes(gzip.compress(b"a\tr\tb\n")[:-4])
        message = "damaged and cannot be unpacked"
    with pytest.raises(UserError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("head,tail", "'relation' is missing"), ("head,relation,tail,tail", "named twice"),
        ("head,relation,tial", "'tial' is none of head, relation, tail, weight"),
        ("head=a,relation,tail=b", "no column"), ("head,relation,tail...", "only aliases"),
    ],
)  # fmt: skip
def test_columns_are_checked(columns: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        triple_columns(columns)


@pytest.mark.parametrize("weight", ["much", "nan", "1e999"])
def test_weights_are_finite(tmp_path: Path, weight: str) -> None:
    with pytest.raises(UserError, match=r"x.tsv:1: the weight .* is no finite number"):
        read(write(tmp_path, "x.tsv", f"a\tr\tb\t{weight}\n"), "head,relation,tail,weight")


def test_other_formats_are_named(tmp_path: Path) -> None:
    for name, kind in (("x.ttl", "Turtle"), ("x.json", "JSON"), ("x.nq.gz", "N-Quads")):
        with pytest.raises(UserError, match=f"{kind} is not read. Convert it to N-Triples"):
            describe_graph_file(write(tmp_path, name, "x"))
    with pytest.raises(UserError, match="is a folder"):
        describe_graph_file(tmp_path)


def test_blocks_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.graph.readers import lines

    triples = [(f"머리{i}", "r", f"꼬리{i % 7}") for i in range(50)]
    path = write(tmp_path, "x.tsv", b"\xef\xbb\xbf" + "".join("\t".join(triple) + "\n" for triple in triples).encode())
    for size in (3, 7, 64):
        monkeypatch.setattr(lines, "BLOCK_BYTES", size)
        assert read(path)[:2] == (triples, list(range(1, 51)))
