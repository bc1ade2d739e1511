"""The pipeline: same bytes whatever the workers and interruptions, exact round trips, nothing left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from etude.errors import UserError
from etude.text.corpus.corpus import Corpus
from etude.text.prepare import readers
from etude.text.prepare.corpus_report import format_report, unigram_entropy
from etude.text.prepare.prepare import Progress, prepare
from etude.text.tokenizer.tokenizer import Tokenizer

ENGLISH = ["the", "a", "king", "queen", "dog", "cat", "house", "river", "saw", "took", "gave", "built", "old", "new"]
KOREAN = ["왕은", "왕이", "개가", "고양이를", "집에", "강을", "보았다", "지었다", "오래된", "새로운"]
WORDS = [*ENGLISH, *KOREAN]


def some_text(documents: int, seed: int = 0, longest: int = 12) -> list[str]:
    draw = random.Random(seed)

    def sentence() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(2, 9))).capitalize() + draw.choice([".", "!", "?"])

    texts = []
    for number in range(documents):
        lines = [" ".join(sentence() for _ in range(draw.randint(1, 3))) for _ in range(draw.randint(1, longest))]
        texts.append(f"Title {number}\n" + "\n".join(lines))
    return texts


def as_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def documents_of(corpus: Corpus) -> list[str]:
    return [
        corpus.tokenizer.decode(corpus.tokens(corpus.documents[i], corpus.documents[i + 1]))
        for i in range(len(corpus.documents))
    ]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "town.txt"
    path.write_text("\n\n".join(some_text(120)))
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 12)


@pytest.mark.parametrize("spec", ["bpe:1500", "bytebpe:400", "unigram:1300", "char"])
def test_text_comes_back_exactly(text: Path, tmp_path: Path, spec: str) -> None:
    prepare(text, tmp_path / "c", spec, valid=0.2)
    documents = [
        document for part in ("train", "valid") for document in documents_of(Corpus.open(tmp_path / "c", part))
    ]
    assert sorted(documents) == sorted(some_text(120))
    assert sum(Corpus.open(tmp_path / "c", part).bytes for part in ("train", "valid")) == sum(
        len(document.encode()) for document in documents
    )


def test_words_keep_their_letters(text: Path, tmp_path: Path) -> None:
    corpus = prepare(text, tmp_path / "c", "word:15,lower", valid=0)
    surfaces = b" ".join(corpus.surfaces(0, corpus.total)).decode()
    assert corpus.tokenizer.special.unknown in corpus.tokens(0, corpus.total)
    assert surfaces.replace(" ", "") == "".join(some_text(120)).replace(" ", "").replace("\n", "")


def test_decomposed_korean_is_stored_composed(tmp_path: Path) -> None:
    originals = [
        "모스크바 지하철은 1935년에 개통되었다. 정말 그렇습니다!",
        "ᄒᆞᆫ글 옛말과 한글 자모 ㄱㄴㄷ, 그리고 ᄀ. 漢字도 있다 🙂",
    ]
    (tmp_path / "a.txt").write_text("\n\n".join(unicodedata.normalize("NFD", text) for text in originals))
    for spec in ("bytebpe:300", "char", "bpe:1300", "unigram:1300"):
        corpus = prepare(tmp_path / "a.txt", tmp_path / spec, spec, valid=0)
        assert documents_of(corpus) == [unicodedata.normalize("NFC", text) for text in originals]


def test_bounds_are_of_documents_and_sentences(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One here. Two there.\nThree!\n\n왕은 집에 갔다. 개가 보았다.")
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "char", valid=0)
    pieces = [
        corpus.tokenizer.decode(corpus.tokens(corpus.sentences[i], corpus.sentences[i + 1]))
        for i in range(len(corpus.sentences))
    ]
    # white space between sentences lies with the one before, so that no sentence starts with a line break
    assert pieces == ["One here. ", "Two there.\n", "Three!", "왕은 집에 갔다. ", "개가 보았다."]
    assert corpus.documents.slice(0, 3).tolist() == [0, 27, 44]


@pytest.mark.parametrize("spec", ["wordpiece:200", "word:40"])
def test_workers_do_not_show(text: Path, tmp_path: Path, spec: str) -> None:
    for workers in (0, 1, 2):
        prepare(text, tmp_path / f"c{workers}", spec, valid=0.1, workers=workers)
    first = as_bytes(tmp_path / "c0")
    assert first == as_bytes(tmp_path / "c1") == as_bytes(tmp_path / "c2")


def test_the_report_adds_up(tmp_path: Path) -> None:
    texts = some_text(50)
    odd = "0x7f 0x3a 11 22 33 44 55 66 77 88 99 == ++ -- 00"
    (tmp_path / "a.txt").write_text("\n\n".join([*texts, texts[0], texts[0], texts[1], odd]))
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "word:30", valid=0.1)
    report = corpus.manifest["report"]
    assert report["documents"] == 54 and report["duplicates"] == 3 and report["dropped"] == 0
    assert report["non_text"] == 1 and report["non_text_examples"][0][0].endswith("a.txt")
    line = report["non_text_examples"][0][1]
    assert (tmp_path / "a.txt").read_text().split("\n")[line - 1] == odd
    everything = " ".join([*texts, texts[0], texts[0], texts[1], odd])
    assert report["words"] == len(everything.split())
    counts = sum(Corpus.open(tmp_path / "c", part).token_counts() for part in ("train", "valid"))
    assert report["unknown_share"] == pytest.approx(counts[1] / counts.sum(), abs=1e-8) and counts[1] > 0
    assert report["tokens_a_word"] == pytest.approx(counts.sum() / report["words"], abs=1e-4)
    assert report["unigram_entropy_nats"] == pytest.approx(unigram_entropy(counts), abs=1e-6)
    assert unigram_entropy(np.array([1, 1, 0, 2])) == pytest.approx(1.5 * np.log(2))
    letters = [c for c in everything if c.isalpha()]
    hangul = sum("가" <= c <= "힣" for c in letters) / len(letters)
    assert report["scripts"]["Hangul"] == pytest.approx(hangul, abs=1e-6)
    assert any("Hangul" in value for _, value in format_report(corpus.manifest))


def test_equal_documents_never_straddle(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(some_text(60) * 3))
    prepare(tmp_path / "a.txt", tmp_path / "c", "bytebpe:300", valid=0.3)
    train, valid = (set(documents_of(Corpus.open(tmp_path / "c", part))) for part in ("train", "valid"))
    assert not train & valid and train | valid == set(some_text(60))
    assert 6 <= len(valid) <= 30


def test_unique_drops_what_came_before(tmp_path: Path) -> None:
    texts = some_text(30)
    (tmp_path / "a.txt").write_text("\n\n".join(texts + texts[::-1]))
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "bytebpe:300", valid=0, unique=True)
    assert documents_of(corpus) == texts
    assert corpus.manifest["report"]["duplicates"] == corpus.manifest["report"]["dropped"] == 30


def test_weights_repeat_and_thin_out(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(some_text(100, seed=1)))
    (tmp_path / "b.txt").write_text("\n\n".join(some_text(100, seed=2)))
    sources = {str(tmp_path / "a.txt"): 2.5, str(tmp_path / "b.txt"): 0.5}
    corpus = prepare(sources, tmp_path / "c", "bytebpe:300", valid=0)
    documents = documents_of(corpus)
    texts = some_text(100, seed=2)
    first = [documents.count(document) for document in some_text(100, seed=1)]
    second = [documents.count(document) for document in texts]
    assert set(first) == {2, 3} and 30 <= first.count(3) <= 70
    assert set(second) == {0, 1} and 30 <= second.count(1) <= 70
    # sources are mixed, not put one behind the other
    places = [place for place, document in enumerate(documents) if document in texts]
    assert places[0] < len(documents) / 4 and places[-1] > 3 * len(documents) / 4
    prepare(sources, tmp_path / "v", "bytebpe:300", valid=0.2)
    held_out = documents_of(Corpus.open(tmp_path / "v", "valid"))
    assert len(held_out) == len(set(held_out)) > 0


def test_a_few_documents_are_held_out_by_luck_or_by_rule(tmp_path: Path) -> None:
    for count, least in ((9, 0), (10, 1), (40, 1)):
        (tmp_path / f"{count}.txt").write_text("\n\n".join(some_text(count, seed=5)))
        corpus = prepare(tmp_path / f"{count}.txt", tmp_path / f"c{count}", "char", valid=1e-6)
        assert corpus.manifest["parts"]["valid"]["documents"] == least
    with pytest.raises(UserError, match="empty"):
        Corpus.open(tmp_path / "c9", "valid")


def test_a_given_tokenizer_is_taken_as_it_is(text: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("bytebpe:300", some_text(5))
    tokenizer.save(tmp_path)
    for number, given in enumerate((tokenizer, tmp_path, str(tmp_path / "tokenizer.json"))):
        corpus = prepare(text, tmp_path / f"c{number}", given, valid=0)
        assert corpus.tokenizer.fingerprint == tokenizer.fingerprint
        assert documents_of(corpus) == some_text(120)
        assert "sample" not in corpus.manifest["tokenizer"]


def test_the_sample_is_stated_and_kept_to(tmp_path: Path, small_blocks: None) -> None:
    texts = some_text(300)
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    (tmp_path / "b.txt").write_text("\n\n".join(texts[::-1]))
    corpora = [prepare(tmp_path / f"{n}.txt", tmp_path / n, "bytebpe:300", sample_bytes=20_000, valid=0) for n in "ab"]
    sample = corpora[0].manifest["tokenizer"]["sample"]
    assert 15_000 < sample["bytes"] <= 20_000 and 0 < sample["documents"] < 100
    # drawn by the text itself: the order of documents is no matter
    assert corpora[0].tokenizer.fingerprint == corpora[1].tokenizer.fingerprint
    other_corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "bytebpe:300", sample_bytes=20_000, valid=0, seed=1)
    assert other_corpus.tokenizer.fingerprint != corpora[0].tokenizer.fingerprint


def test_the_manifest_names_sources_and_hashes(text: Path, tmp_path: Path) -> None:
    import hashlib

    corpus = prepare(text, tmp_path / "c", "char")
    [source] = corpus.manifest["sources"]
    assert source["files"] == [
        {"path": str(text), "bytes": text.stat().st_size, "sha256": hashlib.sha256(text.read_bytes()).hexdigest()}
    ]
    assert not (tmp_path / "c.partial").exists()


def test_large_vocabularies_take_wider_ids(tmp_path: Path) -> None:
    words = " ".join(f"w{n}" for n in range(70_000))
    (tmp_path / "a.txt").write_text(words)
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", "word:100000", valid=0)
    assert corpus.tokenizer.vocab == 70_006 and (tmp_path / "c/train/00000.tokens.u32").exists()
    assert len(set(corpus.tokens(0, corpus.total).tolist())) == 70_000
    with pytest.raises(UserError, match="does not fit into uint16"):
        prepare(tmp_path / "a.txt", tmp_path / "d", "word:100000", ids="uint16")
    with pytest.raises(UserError, match="does not fit into uint16"):
        prepare(tmp_path / "a.txt", tmp_path / "d", corpus.tokenizer, ids="uint16")


BAD: list[tuple[str, bytes | None, dict[str, Any], str]] = [
    ("no.txt", None, {}, "no such file"),
    ("a.txt", b"", {}, "corpus is empty"),
    ("a.txt", b" \n\n \n", {}, "corpus is empty"),
    ("a.txt", b"good\n\nb\xffd", {}, "byte 7 is invalid"),
    ("a.txt", b"\x7fELF\0\0", {}, "not text"),
    ("a.txt", b"bin\0ary", {}, "binary"),
    ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', {}, "line 2"),
    ("a.jsonl", b'{"text": "x", "n": 1}\n', {"where": "n>5"}, "left out all 1"),
    ("a.jsonl", b'{"text": "x"}\n', {"where": "score>5"}, "no record has a field 'score'"),
    ("a.jsonl", b'{"text": "x"}\n', {"where": "score>"}, "filter"),
    ("a.txt", b"x", {"where": "n>5"}, "plain text"),
    ("a.txt", b"x", {"tokenizer": "bpe"}, "size"),
    ("a.txt", b"x", {"tokenizer": "bep:100"}, "neither"),
    ("a.txt", b"x", {"tokenizer": "no/such/tokenizer.json"}, "neither"),
    ("a.txt", b"x", {"tokenizer": "word:100000", "ids": "uint16"}, "does not fit"),
    ("a.txt", b"x", {"valid": 1.5}, "valid"),
    ("a.txt", b"x", {"errors": "ignore"}, "errors"),
    ("a.txt", b"x", {"weights": [1, 2]}, "weights"),
    ("a.txt", b"x", {"workers": -1}, "workers"),
    ("a.txt", b"x", {"ids": "int8"}, "uint16"),
]


@pytest.mark.parametrize(("name", "data", "options", "word"), BAD)
def test_bad_input_is_one_message_and_leaves_nothing(
    tmp_path: Path, name: str, data: bytes | None, options: dict[str, Any], word: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    before = as_bytes(tmp_path)
    options = {"tokenizer": "char", **options}
    with pytest.raises(UserError, match=word) as caught:
        prepare(tmp_path / name, tmp_path / "deep" / "er" / "out", **options)
    assert "\n" not in str(caught.value)
    assert as_bytes(tmp_path) == before and not (tmp_path / "deep").exists()


def test_bad_input_in_a_worker_is_the_same_message(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "a.txt").write_bytes("\n\n".join(some_text(50)).encode() + b"\n\nb\xffd\n\n" + b"x\xfe")
    messages = []
    for workers in (0, 2):
        with pytest.raises(UserError) as caught:
            prepare(tmp_path / "a.txt", tmp_path / "out", "char", workers=workers)
        messages.append(str(caught.value))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt"]
    assert messages[0] == messages[1]


def test_errors_replace_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n\nb\xffd")
    assert documents_of(prepare(tmp_path / "a.txt", tmp_path / "c", "char", valid=0, errors="replace")) == [
        "good",
        "b\ufffdd",
    ]


def test_an_existing_corpus_is_not_overwritten(text: Path, tmp_path: Path) -> None:
    prepare(text, tmp_path / "c", "char")
    before = as_bytes(tmp_path / "c")
    with pytest.raises(UserError, match="--force"):
        prepare(text, tmp_path / "c", "bytebpe:300")
    assert as_bytes(tmp_path / "c") == before
    assert prepare(text, tmp_path / "c", "bytebpe:300", force=True).tokenizer.kind == "bytebpe"
    assert not (tmp_path / "c.partial").exists()
    (tmp_path / "empty").mkdir()
    assert prepare(text, tmp_path / "empty", "char").total > 0


def test_two_at_once_are_refused(text: Path, tmp_path: Path) -> None:
    interrupts = []

    def again(_: Progress) -> None:
        if not interrupts:
            with pytest.raises(UserError, match="Another process"):
                prepare(text, tmp_path / "c", "char", workers=0)
            interrupts.append(1)

    prepare(text, tmp_path / "c", "char", workers=0, progress=again)
    assert interrupts


class Stop(Exception):
    """Ends a preparation from within, as a crash would."""


@pytest.mark.parametrize("name", ["state.json", "scan.json", "counts-train-*.npy"])
def test_what_is_damaged_while_nobody_works_is_refused_by_name(tmp_path: Path, small_blocks: None, name: str) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(some_text(100, seed=1)))
    commits = []

    def stop(progress: Progress) -> None:
        commits.append(progress.phase)
        if commits.count("encoding") >= 4:
            raise Stop

    options: dict[str, Any] = {"workers": 0, "shard_tokens": 4000, "commit_seconds": 0}
    with pytest.raises(Stop):
        prepare(tmp_path / "a.txt", tmp_path / "c", "word:25", progress=stop, **options)
    [path] = (tmp_path / "c.partial").glob(name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path.name} .*run the same command again"):
        prepare(tmp_path / "a.txt", tmp_path / "c", "word:25", **options)
    assert not (tmp_path / "c.partial").exists()
    expected = prepare(tmp_path / "a.txt", tmp_path / "whole", "word:25", **options)
    assert prepare(tmp_path / "a.txt", tmp_path / "c", "word:25", **options).total == expected.total


@pytest.mark.parametrize("problem", [Stop, KeyboardInterrupt])
def test_an_interrupted_preparation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None, problem: type[BaseException]
) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(some_text(100, seed=1)))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some_text(100, seed=2)))
    sources = {str(tmp_path / "a.txt"): 1.5, str(tmp_path / "b.jsonl"): 1.0}
    options: dict[str, Any] = {"valid": 0.2, "workers": 0, "shard_tokens": 4000, "unique": True}
    whole = prepare(sources, tmp_path / "whole", "word:25", **options)
    assert len(whole.manifest["parts"]["train"]["shards"]) > 2
    monkeypatch.setattr(os, "fsync", lambda _: None)
    seen: list[Progress] = []
    prepare(sources, tmp_path / "count", "word:25", progress=seen.append, **options)
    steps = len(seen)
    assert steps > 20
    reached: list[int] = []
    for stops in range(3, steps, 3):  # chained: each attempt is stopped after three more steps
        calls = 0

        def stop(progress: Progress) -> None:
            nonlocal calls
            calls += 1
            if progress.phase == "encoding":
                reached.append(progress.text)
            if calls >= 4:
                raise problem

        try:
            prepare(sources, tmp_path / "c", "word:25", progress=stop, commit_seconds=0, **options)
        except problem:
            assert not (tmp_path / "c").exists() and (tmp_path / "c.partial").exists(), stops
        else:
            break
    else:
        prepare(sources, tmp_path / "c", "word:25", **options)
    assert as_bytes(tmp_path / "c") == as_bytes(tmp_path / "whole") == as_bytes(tmp_path / "count")
    assert not (tmp_path / "c.partial").exists()
    assert len(reached) < 3 * steps  # it went on, and did not start anew each time


def test_changed_text_or_settings_start_anew(text: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.phase == "encoding":
            raise Stop

    for change in (lambda: None, lambda: text.write_text("\n\n".join(some_text(80, seed=9)))):
        with pytest.raises(Stop):
            prepare(text, tmp_path / "c", "char", workers=0, progress=stop)
        change()
    corpus = prepare(text, tmp_path / "c", "bytebpe:300", valid=0, workers=0)
    assert documents_of(corpus) == some_text(80, seed=9)


def test_text_that_changes_between_the_passes_is_noticed(text: Path, tmp_path: Path) -> None:
    def change(progress: Progress) -> None:
        if progress.phase == "training":
            text.write_text(text.read_text().replace("king", "ling"))

    with pytest.raises(UserError, match="changed while it was read"):
        prepare(text, tmp_path / "c", "char", workers=0, progress=change)
    assert not (tmp_path / "c.partial").exists()


KILLED = """
import sys
from etude.text.prepare import readers
from etude.text.prepare.prepare import prepare
readers.BLOCK_BYTES = 1 << 12
if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2], "wordpiece:200", workers=2, commit_seconds=0.02,
            progress=lambda p: print(p.phase, p.text, flush=True))
"""


def test_a_killed_preparation_goes_on(tmp_path: Path, small_blocks: None) -> None:
    """SIGKILL at arbitrary moments, workers and all, then the same call again: byte for byte the undisturbed corpus."""
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(some_text(800)))
    prepare(text, tmp_path / "whole", "wordpiece:200", workers=0)
    kills = 0
    for lines in (40, 115, 25, 25):  # of progress before the kill: in the scan, then three times in the encoding
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(text), str(tmp_path / "c")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        last = [process.stdout.readline() for _ in range(lines)][-1]
        assert last.startswith("reading" if lines == 40 else "encoding")
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
        assert not (tmp_path / "c").exists() and (tmp_path / "c.partial").exists()
    assert kills == 4
    prepare(text, tmp_path / "c", "wordpiece:200", workers=0)
    assert as_bytes(tmp_path / "c") == as_bytes(tmp_path / "whole")


MEASURED = """
import re, resource, sys
from pathlib import Path
from etude.text.prepare.prepare import prepare
if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2], sys.argv[3], workers=1)
    # ru_maxrss of this process would begin at the peak of the process that started it, which exec keeps
    own = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
    print(int(own) // 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("bpe:500", some_text(100))
    tokenizer.save(tmp_path)
    peaks = []
    for megabytes in (5, 20):
        path = tmp_path / f"{megabytes}.txt"
        block = some_text(2000, longest=40)
        draw = random.Random(megabytes)
        with path.open("w") as file:
            while file.tell() < megabytes * 1e6:
                words = [f"{draw.choice(WORDS)}{draw.randrange(10**6)}" for _ in range(200)]  # few words come again
                file.write(draw.choice(block) + " " + " ".join(words) + "\n\n")
        command = [sys.executable, "-c", MEASURED, str(path), str(tmp_path / f"c{megabytes}"), str(tmp_path)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append([int(number) for number in answer.stdout.split()])
    (parent_small, worker_small), (parent_large, worker_large) = peaks
    assert parent_large <= parent_small + 15 and worker_large <= worker_small + 60, peaks
    assert parent_large + worker_large < 650, peaks


def test_the_command(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.cli.main import app

    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    arguments = [
        "prepare",
        "town.txt",
        "-o",
        "data/town",
        "-t",
        "bytebpe:300",
        "--valid",
        "0.1",
        "--unique",
        "--workers",
        "0",
    ]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "bits a byte" in result.output and "etude pretrain" in result.output
    assert Corpus.open("data/town").tokenizer.kind == "bytebpe"
    again = runner.invoke(app, arguments)
    assert isinstance(again.exception, UserError)
    wrong = runner.invoke(app, ["prepare", "town.txt", "-o", "x", "--weights", "1,a"])
    assert isinstance(wrong.exception, UserError)


def test_the_command_says_how_to_go_on(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.cli.main import app

    def interrupt(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr("etude.text.prepare.prepare.prepare", interrupt)
    result = CliRunner().invoke(app, ["prepare", str(text), "-o", str(tmp_path / "c")])
    assert result.exit_code == 3 and "goes on from there" in result.output


def test_workers_import_no_torch() -> None:
    modules = "etude.text.prepare.worker, etude.text.prepare.prepare, etude.cli.corpus"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
