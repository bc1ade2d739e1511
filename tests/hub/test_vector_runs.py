"""Files of vectors as runs and back: what the file says of unknown words stays, and a failed export leaves nothing."""

from __future__ import annotations

import bz2
import gzip
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.errors import UserError
from etude.hub import vector_runs
from etude.hub.fasttext_files import FastText, FastTextTraining, read_fasttext, write_fasttext
from etude.hub.run_weights import load_learner
from etude.hub.vector_files import read_vectors, write_vectors
from etude.hub.vector_runs import export_vectors, import_vectors, open_vectors
from etude.hub.word_vectors import WordVectors
from etude.models.static import Static
from etude.objectives.word_vectors import windows
from etude.objectives.word_vectors.kernels import windows_plain
from etude.objectives.word_vectors.kernels.tables import huffman_paths
from etude.pretraining.pretrain import pretrain
from etude.runs.run import Run
from etude.text.prepare.prepare import prepare


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    words = [f"w{number}" for number in range(130)]
    matrix = np.random.default_rng(0).normal(size=(130, 4)).astype(np.float32)
    unknown = np.array([9, 8, 7, 6], np.float32)  # not the mean of the rarest
    write_vectors(WordVectors(words, matrix, unknown_row=unknown), tmp_path / "glove.txt", "glove")
    return tmp_path / "glove.txt"


def test_the_row_of_unknown_words_of_a_file_stays(glove: Path, tmp_path: Path) -> None:
    run = import_vectors(glove, tmp_path / "run")
    assert open_vectors(run.folder).vectors(["never"], "rarest").tolist() == [[9, 8, 7, 6]]
    export_vectors(run, tmp_path / "again.txt", "glove")
    assert (tmp_path / "again.txt").read_bytes() == glove.read_bytes()
    unknown = read_vectors(tmp_path / "again.txt").unknown_row
    assert unknown is not None and unknown.tolist() == [9, 8, 7, 6]


def test_an_export_that_fails_leaves_nothing(glove: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = import_vectors(glove, tmp_path / "run")
    before = set(tmp_path.iterdir())

    def fail(vectors: Any, path: Path, form: str) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(vector_runs, "write_vectors", fail)
    with pytest.raises(KeyboardInterrupt):
        export_vectors(run, tmp_path / "out.vec")
    assert set(tmp_path.iterdir()) == before


def test_an_export_makes_the_folder_of_its_file(glove: Path, tmp_path: Path) -> None:
    run = import_vectors(glove, tmp_path / "run")
    export_vectors(run, tmp_path / "new" / "deep" / "out.vec")
    assert len(read_vectors(tmp_path / "new" / "deep" / "out.vec").words) == 130


def test_words_typed_as_jamo_are_words_of_a_text(tmp_path: Path) -> None:
    """Every text is composed before it is cut into words: a vocabulary that is not would know none of them."""
    words = [unicodedata.normalize("NFD", word) for word in ("빵집", "시장")]
    write_vectors(WordVectors(words, np.eye(2, dtype=np.float32)), tmp_path / "jamo.vec", "word2vec")
    assert read_vectors(tmp_path / "jamo.vec").vectors(["시장", words[0]]).tolist() == [[0, 1], [1, 0]]
    run = import_vectors(tmp_path / "jamo.vec", tmp_path / "run")
    tokenizer = run.tokenizer
    assert [tokenizer.token(id) for id in tokenizer.encode(f"시장 {words[0]}").ids] == ["시장", "빵집"]
    assert open_vectors(run.folder).vectors(["빵집"]).tolist() == [[1, 0]]


def test_ngrams_from_none_on_are_ngrams_from_one_on(tmp_path: Path) -> None:
    """fastText -minn 0 -maxn 3: its n-grams of no character are none."""
    words, draw = ["the", "a", "서울"], np.random.default_rng(0)
    inputs, outputs = (draw.normal(size=(rows, 5)).astype(np.float32) for rows in (23, 3))
    imported = []
    for shortest in (0, 1):
        model = FastText(words, np.arange(3) + 1, inputs, outputs, (shortest, 3), FastTextTraining())
        write_fasttext(model, tmp_path / f"{shortest}.bin")
        run = import_vectors(tmp_path / f"{shortest}.bin", tmp_path / f"run{shortest}")
        imported.append(open_vectors(run.folder).vectors(["서울", "서울시"], "subwords"))
    np.testing.assert_array_equal(*imported)
    plain = read_vectors(tmp_path / "0.bin").vectors(["서울", "서울시"], "subwords")
    np.testing.assert_allclose(imported[0], plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "pack", "command"), [
    ("cc.ko.300.vec.gz", gzip.compress, "gunzip"), ("vectors.bin.bz2", bz2.compress, "bunzip2"),
])  # fmt: skip
def test_a_packed_file_says_what_unpacks_it(tmp_path: Path, name: str, pack: Any, command: str) -> None:
    (tmp_path / name).write_bytes(pack(b"1 2\na 1 2\n"))
    with pytest.raises(UserError, match=f"is packed. Unpack it first: {command} "):
        import_vectors(tmp_path / name, tmp_path / "run")


def test_a_file_without_words_is_told(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("<unk> 1 2 3\n")
    with pytest.raises(UserError, match=r"none\.txt has no words"):
        import_vectors(tmp_path / "none.txt", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def hierarchical(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A few steps over a Huffman tree: words as frequent as others, ids that do not fall in frequency, absent words."""
    folder = tmp_path_factory.mktemp("hierarchical")
    once, text = folder / "once.txt", folder / "text.txt"
    once.write_text(" ".join(f"rare{number}" for number in range(9)) + " gone mat dog dog dog the\n", encoding="utf-8")
    lines = "the cat sat on the mat .\n\n" + "rare1 rare2 rare3 rare4 rare5 a dog lay on a rug .\n\n"
    text.write_text(lines * 30, encoding="utf-8")
    tokenizer = prepare([once, text], folder / "words", tokenizer="word:60", valid=0.0).tokenizer
    corpus = prepare([text], folder / "data", tokenizer=tokenizer, valid=0.0)
    settings = {
        "objective.output": "hierarchical", "model.width": 6, "model.buckets": 40, "train.lr": 0.5, "train.steps": 3
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "inner_loops", lambda name: windows_plain)  # to compile the others takes longer
        return pretrain("fasttext-toy", corpus, out=folder / "run", overrides=settings, quiet=True)


def path_scores(outputs: np.ndarray, hidden: np.ndarray, nodes: Any, labels: Any) -> float:
    """log P of a word whose way through the tree is `nodes`: each says sigmoid(score) of label 1."""
    signs = 2 * np.asarray(labels, np.float64) - 1
    return float(-np.log1p(np.exp(-signs * (outputs[np.asarray(nodes)] @ hidden))).sum())


def run_scores(run: Run, hidden: np.ndarray) -> dict[str, float]:
    """log P of every word, as the run was trained."""
    model = load_learner(run)[0]
    assert isinstance(model, Static)
    counts, outputs = model.counts.numpy().copy(), model.output.weight.detach().numpy()
    unknown = run.tokenizer.special.unknown
    assert unknown is not None
    counts[unknown] = 0
    paths = huffman_paths(counts)
    spans = {id: slice(paths.bounds[id], paths.bounds[id + 1]) for id in np.flatnonzero(counts).tolist()}
    return {
        str(run.tokenizer.token(id)): path_scores(outputs, hidden, paths.nodes[span], paths.labels[span])
        for id, span in spans.items()
    }


def build_published_tree(counts: list[int]) -> list[tuple[list[int], list[float]]]:
    """buildTree of fastText's loss.cc: of two queues the smaller, an inner node where they are equal.

    Its label is true (`binary`) for the second of two children; word2vec's is 1 for the first.
    """
    size = len(counts)
    weights = [*counts, *[10**15] * (size - 1)]
    parent, right = [-1] * (2 * size - 1), [False] * (2 * size - 1)
    leaf, node = size - 1, size
    for new in range(size, 2 * size - 1):
        children = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                children.append(leaf)
                leaf -= 1
            else:
                children.append(node)
                node += 1
        weights[new] = weights[children[0]] + weights[children[1]]
        parent[children[0]] = parent[children[1]] = new
        right[children[1]] = True
    ways = []
    for word in range(size):
        nodes, labels, at = [], [], word
        while parent[at] != -1:
            nodes.append(parent[at] - size)
            labels.append(1.0 if right[at] else 0.0)
            at = parent[at]
        ways.append((nodes, labels))
    return ways


def test_nodes_of_a_huffman_tree_are_where_fasttext_looks_for_them(hierarchical: Run, tmp_path: Path) -> None:
    """Rows of the output table are nodes, numbered by the tree that the counts of the file give, and not words."""
    export_vectors(hierarchical, tmp_path / "h.bin")
    file = read_fasttext(tmp_path / "h.bin")
    assert file.counts.tolist() == sorted(file.counts.tolist(), reverse=True), "the program takes them as sorted"
    assert len(file.outputs) == len(file.words) and file.training.output == "hierarchical"
    hidden = np.linspace(-2, 3, 6)
    ours = run_scores(hierarchical, hidden)
    ways = zip(file.words, build_published_tree(file.counts.tolist()), strict=True)
    theirs = {word: path_scores(file.outputs, hidden, *way) for word, way in ways}
    assert theirs == pytest.approx(ours, rel=1e-9) and len(set(map(tuple, file.outputs.tolist()))) > 10


def test_gensim_scores_words_by_the_tree_of_our_file(tmp_path: Path) -> None:
    """Counts without ties: between equal ones gensim's order is its own.

    It takes the nodes of a .bin as they are, but labels as word2vec does: those of the released program's files, too,
    come with the other sign there.
    """
    reader = pytest.importorskip("gensim.models.fasttext")
    words, draw = [f"w{number}" for number in range(8)], np.random.default_rng(0)
    inputs, outputs = (draw.normal(size=(rows, 5)).astype(np.float32) for rows in (28, 8))
    training = FastTextTraining(output="hierarchical", negatives=0)
    write_fasttext(FastText(words, 3 ** np.arange(8)[::-1], inputs, outputs, (3, 6), training), tmp_path / "a.bin")
    run = import_vectors(tmp_path / "a.bin", tmp_path / "run")
    export_vectors(run, tmp_path / "again.bin")
    theirs, hidden = reader.load_facebook_model(str(tmp_path / "again.bin")), np.linspace(-2, 3, 5)
    for word, score in run_scores(run, hidden).items():
        nodes, code = (theirs.wv.get_vecattr(word, name) for name in ("point", "code"))
        assert path_scores(-theirs.syn1, hidden, nodes, 1 - code) == pytest.approx(score, rel=1e-9)


def test_nodes_of_a_huffman_tree_come_back(hierarchical: Run, tmp_path: Path) -> None:
    export_vectors(hierarchical, tmp_path / "h.bin")
    again = import_vectors(tmp_path / "h.bin", tmp_path / "again")
    hidden = np.linspace(-2, 3, 6)
    assert run_scores(again, hidden) == pytest.approx(run_scores(hierarchical, hidden), rel=1e-9)
    export_vectors(again, tmp_path / "twice.bin")
    first, second = (read_fasttext(tmp_path / name) for name in ("h.bin", "twice.bin"))
    assert first.words == second.words and np.array_equal(first.outputs, second.outputs)
