"""Corpora of a study: a name for everything that they depend on."""

from __future__ import annotations

import functools
import hashlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from etude.study import altered_corpus
from etude.study.sections import Text
from etude.study.text_source import TextSource, world_texts
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE
from etude.text.tokenizer.training import KINDS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = Path(tmp_path_factory.mktemp("files"))
    paths = {language: folder / f"{language}.txt" for language in ("en", "ko")}
    for language, path in paths.items():
        path.write_text("\n\n".join(world_texts(0, language, 0.1)), encoding="utf-8")
    return paths


def test_another_seed_holds_out_other_documents(files: dict[str, Path], tmp_path: Path) -> None:
    """The split of files is drawn by the seed, so a corpus of one seed must not be taken for another's."""
    sources = [TextSource(Text(files=[str(files["en"])], valid=0.2, seed=seed), tmp_path) for seed in (0, 1)]
    first, second = (source.open_corpus("word:500") for source in sources)
    assert first.folder != second.folder and first.fingerprint != second.fingerprint


def test_text_of_a_server_counts_by_its_version(files: dict[str, Path], tmp_path: Path) -> None:
    """What `prepare` reads, a study reads; and a file that has changed there is another text."""
    pytest.importorskip("aiohttp")
    (tmp_path / "books.txt").write_bytes(files["en"].read_bytes())
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            text = Text(files=[f"http://127.0.0.1:{server.server_port}/books.txt"], valid=0.2)
            first, again = (TextSource(text, tmp_path / "study") for _ in range(2))
            assert first.fingerprint == again.fingerprint and first.open_corpus("word:500").total > 1000
            (tmp_path / "books.txt").write_bytes(files["ko"].read_bytes())
            assert TextSource(text, tmp_path / "study").fingerprint != first.fingerprint
        finally:
            server.shutdown()


def test_files_are_hashed_once_while_they_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "books.txt"
    path.write_text("one\n")
    first = TextSource(Text(files=[str(path)]), tmp_path).fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        assert TextSource(Text(files=[str(path)]), tmp_path).fingerprint == first
    path.write_text("two\n")
    assert TextSource(Text(files=[str(path)]), tmp_path).fingerprint != first


def test_a_tokenizer_that_is_given_counts_by_its_content(files: dict[str, Path], tmp_path: Path) -> None:
    """The file of a tokenizer is trained again in the same place: its corpus is another one."""
    source = TextSource(Text(files=[str(files["en"])]), tmp_path)
    given = tmp_path / "given.json"
    places = []
    for size in (300, 400):
        given.write_bytes((source.open_corpus(f"word:{size}").folder / TOKENIZER_FILE).read_bytes())
        places.append(source.corpus_folder(str(given)))
    assert places[0] != places[1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "char"])
@pytest.mark.parametrize("language", ["en", "ko"])
def test_pseudo_words_are_words_of_every_tokenizer(
    kind: str, language: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that stand inside words alone would be chosen and never merged; words of Hangul have few signs."""
    monkeypatch.setattr(altered_corpus, "FIRST_RANK", 5)  # the town has few words
    source = TextSource(Text(files=[str(files[language])], valid=0.2, pseudo_words=4), tmp_path)
    whole = source.base.open_corpus(f"{kind}:800") if source.base is not None else None
    assert whole is not None
    pairs = altered_corpus.choose_pseudo_words(whole, 4)
    tokens, starts = whole.tokens(0, whole.total), whole.word_starts(0, whole.total)
    merged = tokens[altered_corpus._whole_words(starts)]
    chosen = [*pairs, *pairs.values()]
    assert np.isin(merged, chosen).sum() > 0.5 * np.isin(tokens, chosen).sum()
    tags = {tag for record in source.label_senses(f"{kind}:800") for tag in record["tags"]} - {"O"}
    assert tags and all(tag[2:].isalpha() for tag in tags), "words as people read them"
