"""What `etude generate` and `etude fill` print."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from etude.cli.inference import present_fill, present_translate, read_references
from etude.cli.main import app
from etude.errors import UserError
from etude.inference.fill import Guess

Bases = Callable[[str], Path]


@pytest.fixture
def run(base: Bases) -> Callable[..., str]:
    def invoke(kind: str, command: str, *words: str) -> str:
        done = CliRunner().invoke(app, [command, str(base(kind)), *words, "--device", "cpu"])
        if done.exception is not None:
            raise done.exception
        return done.stdout

    return invoke


def test_a_stream_prints_what_is_printed_at_once(run: Callable[..., str]) -> None:
    words = ("good", "bad", "--samples", "2", "--tokens", "5", "--past-end")
    printed = run("gpt", "generate", *words)
    assert printed.count("---\n") == 3 and printed.startswith("good")
    assert run("gpt", "generate", *words, "--stream") == printed


def test_a_full_context_is_said(run: Callable[..., str], base: Bases) -> None:
    words = ["generate", str(base("gpt")), "good", "--tokens", "80", "--past-end", "--device", "cpu"]
    assert "went on past 64 tokens" in CliRunner().invoke(app, words).output
    stopped = CliRunner().invoke(app, [*words, "--overflow", "stop"]).output
    assert "! 1 of 1 stopped at the end of the context (64 tokens)" in stopped


def test_options_that_exclude_each_other(run: Callable[..., str]) -> None:
    with pytest.raises(UserError, match="leave out --stream and --samples"):
        run("gpt", "generate", "good", "--beams", "2", "--stream")


def test_blanks_are_parted_by_an_empty_line(run: Callable[..., str]) -> None:
    lines = run("bert", "fill", "[MASK] film [MASK]", "--top", "2").split("\n")
    assert [bool(line) for line in lines] == [True, True, False, True, True, False]


def test_a_token_of_white_space_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Unigram tokenizers and those of characters have such: the column of a space was empty."""
    guesses = [
        Guess(" ", 0.2, "그는 에서 일한다."),
        Guess("는", 0.1, "그는는에서 일한다."),
        Guess("\t", 0.1, "그는\t에서"),
    ]
    present_fill(lambda: [guesses])  # type: ignore[arg-type]
    assert capsys.readouterr().out.split("\n")[:3] == [
        " 20.00%  (space)      그는 에서 일한다.", " 10.00%  는           그는는에서 일한다.",
        " 10.00%  (\\t)         그는\t에서",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "command", "advice"),
    [
        ("recurrent", "generate", "use features"),
        ("recurrent", "fill", "use features"),
        ("static", "fill", "use features"),
        ("bert", "generate", "use fill"),
        ("gpt", "fill", "use generate"),
    ],
)
def test_a_model_asked_for_the_wrong_thing_is_sent_to_one_that_works(
    run: Callable[..., str], kind: str, command: str, advice: str
) -> None:
    with pytest.raises(UserError, match=advice):
        run(kind, command, "good [MASK]")


def test_references_end_where_the_lines_of_a_source_do(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    path = tmp_path / "reference.txt"
    path.write_bytes("\ufeffone\rstill one\r\n둘\n".encode())
    assert read_references(path) == ["one\rstill one", "둘"]


def test_references_in_decomposed_hangul_are_composed(tmp_path: Path) -> None:
    """What a model writes is composed: no n-gram of a decomposed reference would be in it."""
    pytest.importorskip("sacrebleu")
    path = tmp_path / "reference.txt"
    path.write_text(unicodedata.normalize("NFD", "고양이가 앉았다.\n"), encoding="utf-8")
    assert read_references(path) == ["고양이가 앉았다."]


def test_a_tokenizer_of_bleu_is_looked_up_before_anything_is_translated(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    path = tmp_path / "reference.txt"
    path.write_text("one\n", encoding="utf-8")

    def translate() -> None:
        raise AssertionError("it was called")

    with pytest.raises(UserError, match="'14a' is not a tokenizer of BLEU"):
        present_translate(translate, reference=path, tokenizer="14a")  # type: ignore[arg-type]
