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


def test_an_amount_without_an_end_is_refused_before_anything_is_written(tmp_path):
    for option in ("--megabytes", "--anchored"):
        for amount in ("inf", "nan"):
            result = CliRunner().invoke(app, ["world", "-o", str(tmp_path / "town"), "--no-tasks", option, amount])
            assert isinstance(result.exception, UserError), (option, amount)
            assert not (tmp_path / "town").exists(), (option, amount)
