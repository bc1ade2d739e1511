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

    monkeypatch.setattr(module, "COUNTS", {"train": 30, "valid": 100, "test": 100})
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


def test_what_is_there_is_replaced_only_by_force(tmp_path):
    words = ["world", "-o", str(tmp_path), "--megabytes", "0.01", "--no-tasks"]
    (tmp_path / "text.txt").write_text("Mine.\n", encoding="utf-8")
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UserError) and "--force" in str(result.exception)
    assert str(tmp_path / "text.txt") in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"], "nothing is written"
    assert (tmp_path / "text.txt").read_text(encoding="utf-8") == "Mine.\n"
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0
    assert (tmp_path / "text.txt").read_text(encoding="utf-8").startswith(World(0).document(0).text)
    (tmp_path / "text.txt").unlink()
    again = CliRunner().invoke(app, words)
    assert isinstance(again.exception, UserError) and "knowledge exists already" in str(again.exception)


def test_other_files_and_what_was_not_asked_for_are_not_in_the_way(tmp_path):
    for name in ("pairs.tsv", "notes.md"):
        (tmp_path / name).write_text("mine\n", encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    words = ["world", "-o", str(tmp_path), "--megabytes", "0.01", "--no-tasks"]
    refused = CliRunner().invoke(app, [*words, "--pairs", "5"])
    assert isinstance(refused.exception, UserError) and "pairs.tsv exists already" in str(refused.exception)
    assert CliRunner().invoke(app, words).exit_code == 0
    assert (tmp_path / "pairs.tsv").read_text(encoding="utf-8") == "mine\n"
