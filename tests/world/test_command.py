import json

from typer.testing import CliRunner

from etude.cli.main import app
from etude.errors import UserError
from etude.world import World


def test_the_command_writes_what_python_gives(tmp_path, monkeypatch):
    from etude.world import world as module

    monkeypatch.setattr(module, "COUNTS", {"train": 3, "valid": 2, "test": 2})
    folder = tmp_path / "town"
    words = ["world", "-o", str(folder), "--megabytes", "0.01", "--language", "ko", "--seed", "5"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    world = World(5, "ko")
    assert (folder / "text.txt").read_text(encoding="utf-8").split("\n\n")[0].strip() == world.document(0).text
    lines = (folder / "tasks" / "choices.valid.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == world.task("choices", "valid", 2)
    assert not list(folder.rglob("*.part"))


def test_text_alone(tmp_path):
    result = CliRunner().invoke(app, ["world", "-o", str(tmp_path / "town"), "--megabytes", "0.01", "--no-tasks"])
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "town" / "tasks").exists()


def test_pairs_beside_the_tasks_hold_none_of_their_test_sentences(tmp_path, monkeypatch):
    from etude.world import world as module

    monkeypatch.setattr(module, "COUNTS", {"train": 300, "valid": 100, "test": 100})
    words = ["world", "-o", str(tmp_path), "--megabytes", "0.01", "--pairs", "2000"]
    assert CliRunner().invoke(app, words).exit_code == 0
    lines = (tmp_path / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) == 2001
    pairs = {tuple(line.split("\t")) for line in lines}
    for split in ("valid", "test"):
        examples = (tmp_path / "tasks" / f"translation.{split}.jsonl").read_text(encoding="utf-8").splitlines()
        assert not pairs & {(example["en"], example["ko"]) for example in map(json.loads, examples)}
    alone = CliRunner().invoke(app, [*words[:2], str(tmp_path / "alone"), *words[3:], "--no-tasks"])
    assert alone.exit_code == 0
    rows = (tmp_path / "alone" / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    assert [tuple(row.split("\t")) for row in rows[1:]] == list(World(0).pairs(2000))


def test_an_amount_without_an_end_is_refused_before_anything_is_written(tmp_path):
    for option in ("--megabytes", "--anchored"):
        for amount in ("inf", "nan"):
            result = CliRunner().invoke(app, ["world", "-o", str(tmp_path / "town"), "--no-tasks", option, amount])
            assert isinstance(result.exception, UserError), (option, amount)
            assert not (tmp_path / "town").exists(), (option, amount)
