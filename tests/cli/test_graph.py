"""`etude prepare --graph` and `etude show graph`: the report, and one message with exit code 2 for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from etude.cli.main import app, main
from etude.graph.graph import Graph


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_graph_is_prepared_and_looked_at(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", "isa\tdog\tanimal\nisa\tcat\tanimal\nchases\tdog\tcat\n")
    valid = write(tmp_path / "v.tsv", "chases\tcat\tdog\n")
    labels, more = write(tmp_path / "e.tsv", "dog\tDog\n"), write(tmp_path / "f.tsv", "cat\t고양이\n")
    words = ["prepare", train, "--graph", "-o", str(tmp_path / "g"), "--valid", valid]
    words += ["--entities", labels, "--entities", more]
    result = CliRunner().invoke(app, [*words, "--triple-columns", "relation,head,tail"])
    assert result.exit_code == 0, result.output
    assert "3 train, 1 valid" in result.output and "3, 2 with a label" in result.output
    assert "etude pretrain transe" in result.output
    graph = Graph.open(tmp_path / "g")
    assert graph.splits == ("train", "valid") and graph.label(1) == "고양이"
    result = CliRunner().invoke(app, ["show", "graph", str(tmp_path / "g"), "--top", "1"])
    assert result.exit_code == 0 and "isa" in result.output and "and 1 more" in result.output


def test_the_next_steps_can_be_typed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is there is not proposed again; an export names all that it writes."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.tsv", "".join(f"a{i}\tr\tb{i % 5}\n" for i in range(200)))
    for folder, run in (("g", "runs/transe"), ("h", "runs/transe-2")):
        result = CliRunner().invoke(app, ["prepare", "t.tsv", "--graph", "-o", folder])
        assert f"etude pretrain transe {folder} -o {run}\n" in result.output
        (tmp_path / run).parent.mkdir(exist_ok=True)
        words = ["pretrain", "transe-toy", folder, "-o", run, "-q", "train.steps=1"]
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    result = CliRunner().invoke(app, ["export", "runs/transe", "-o", "x.vec"])
    assert [line.partition("  ")[0] for line in result.output.splitlines()] == ["x.vec", "x.relations.vec"]


def test_a_share_is_held_out(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", "".join(f"a{i}\tr\tb{i % 5}\n" for i in range(200)))
    words = ["prepare", train, "--graph", "-o", str(tmp_path / "g"), "--valid", "0.2", "--test", "0.1"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert Graph.open(tmp_path / "g").splits == ("train", "valid", "test")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--graph", "--tokenizer", "bpe:50"], "--tokenizer is an option of text"),
        (["--test", "0.1"], "--test is an option of graphs. Add --graph"),
        (["--self-loops", "drop"], "--self-loops is an option of graphs"),
        (["--valid", "x.tsv"], "files go with --graph"),
        (["--graph", "--valid", "x.tsv"], "x.tsv: no such file"),
        (["--graph"], "t.tsv:2: 2 columns, not 3"),
    ],
)
def test_mistakes_are_one_message(
    tmp_path: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write(tmp_path / "t.tsv", "a\tr\tb\na\tr\n")
    monkeypatch.setattr("sys.argv", ["etude", "prepare", train, "-o", str(tmp_path / "g"), *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["t.tsv"]
