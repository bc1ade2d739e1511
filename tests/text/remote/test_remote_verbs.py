"""Verbs take the URL of a corpus wherever they take its folder, with the same answers and messages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.text.prepare.test_prepare import some_text
from tests.text.remote.s3_server import S3Server

import etude
from etude.errors import UserError
from etude.pretraining.cluster_check import check_cluster
from etude.study.references import load_reference
from etude.study.sections import Text
from etude.study.text_source import TextSource, holds_corpus
from etude.text.prepare.prepare import prepare
from etude.verbs.comparison import read_study
from etude.verbs.inference import perplexity
from etude.verbs.verify import verify

if TYPE_CHECKING:
    from s3fs import S3FileSystem

STUDY = Path(__file__).parents[3] / "studies" / "batch-size.yaml"
SMALL = {
    "model.layers": 1, "model.width": 32, "model.heads": 2, "model.context": 32, "train.steps": 2,
    "train.device": "cpu", "train.batch_tokens": 128, "train.precision": "float32", "model.window": None,
    "train.batch_ramp": None, "train.micro_tokens": None, "objective.row_tokens": 64,
}  # fmt: skip


@pytest.fixture
def corpora(bucket: str, files: S3FileSystem, tmp_path: Path, s3: S3Server) -> tuple[Path, str]:
    """A small corpus, here and in the store."""
    (tmp_path / "town.txt").write_text("\n\n".join(some_text(60, longest=8)), encoding="utf-8")
    prepare(tmp_path / "town.txt", tmp_path / "local", "bytebpe:400", valid=0.1)
    files.put(str(tmp_path / "local"), f"{bucket}/c", recursive=True)
    return tmp_path / "local", f"{bucket}/c"


def test_check_and_perplexity(corpora: tuple[Path, str], tmp_path: Path) -> None:
    local, remote = corpora
    run = etude.pretrain("gpt3-small", remote, out=tmp_path / "run", settings=SMALL, quiet=True).folder
    assert perplexity(run, remote) == perplexity(run, local) == perplexity(run, f"file://{local}")
    plans = [check_cluster("gpt3-small", place, SMALL, nodes=1, gpus=2, fake=False) for place in (local, remote)]
    assert plans[0].plans == plans[1].plans
    with pytest.raises(UserError, match=r"nothing/manifest\.json|nothing"):
        perplexity(run, f"{remote.rpartition('/')[0]}/nothing")
    with pytest.raises(UserError, match="there is no scheme 's4'"):
        perplexity(run, "s4://lab/c")
    with pytest.raises(UserError, match="There is no file"):
        perplexity(run, tmp_path / "nothing")


def test_verify_reads_every_file(corpora: tuple[Path, str], files: S3FileSystem) -> None:
    local, remote = corpora
    here, there = verify(local), verify(remote)
    assert (there.kind, there.files, there.folder) == ("corpus", here.files, remote)
    assert verify(f"file://{local}") == here
    name = f"{remote}/valid/00000.tokens.u16"
    content = files.cat_file(name)
    files.pipe_file(name, content[:-2] + b"\0\0")
    shutil.rmtree(local.parent / "cache")
    with pytest.raises(UserError, match=r"valid/00000\.tokens\.u16 was altered"):
        verify(remote)


def test_a_study_reads_it(corpora: tuple[Path, str], tmp_path: Path) -> None:
    local, remote = corpora
    assert holds_corpus(remote) and holds_corpus(str(local)) and holds_corpus(f"file://{local}")
    assert not holds_corpus(f"{remote}/train") and not holds_corpus(f"{remote}/*.txt")
    sources = [TextSource(Text(corpus=str(place)), tmp_path / "study") for place in (local, remote)]
    assert sources[0].fingerprint == sources[1].fingerprint and sources[0].size == sources[1].size
    assert [source.is_ready("bytebpe:400") for source in sources] == [True, True]
    assert sources[1].corpus_folder("bytebpe:400") == remote
    assert sources[1].open_held_out("bytebpe:400").location == remote
    left, right = (source.open_corpus("bytebpe:400") for source in sources)
    assert load_reference(left.location, tmp_path / "a") == load_reference(right.location, tmp_path / "b") is not None
    study = read_study(STUDY, text=[remote])
    assert (study.text.corpus, study.text.files, study.text.world) == (remote, None, None)
    altered = TextSource(Text(corpus=remote, share=0.5), tmp_path / "study")
    with pytest.raises(UserError, match="Copy the corpus to a folder"):
        altered.open_corpus("bytebpe:400")
