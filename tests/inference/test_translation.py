"""Beam search against exhaustive search, greedy decoding against whole passes, and the command line."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import etude
from etude.cli.main import app
from etude.errors import UserError
from etude.inference import translation
from etude.inference.model import LoadedModel
from etude.inference.translation import Search, translate
from etude.models import encoder_decoder, recurrent_seq2seq
from etude.nn.packed import pack
from etude.objectives import translate as objective_kind
from etude.tasks.translate import decoding
from etude.world import World
from tests.half_precision import may_lack_bf16
from tests.objectives.small_corpus import tokenizer

VOCAB, CONTEXT, END, START, PAD = 9, 5, 5, 2, 0
TEXTS = ["w6 w7", "w8", "w7 w7 w6 w8"]


def make(seed: int = 0, context: int = CONTEXT, vocab: int = VOCAB) -> LoadedModel:
    """A random model whose guesses are uneven."""
    torch.manual_seed(seed)
    settings = encoder_decoder.Settings(layers=1, width=16, heads=2, vocab=vocab, context=context, dropout=0.0)
    model = encoder_decoder.build(settings)
    objective = objective_kind.build(objective_kind.Settings(tied=False), model, tokenizer(vocab).special)
    assert objective.output is not None
    torch.nn.init.normal_(objective.output, std=0.6)
    return LoadedModel(model, objective, tokenizer(vocab))


@torch.no_grad()
def log_probs(loaded: LoadedModel, text: str, targets: list[tuple[int, ...]]) -> np.ndarray:
    """Of whole targets and their ends, by passes without a cache."""
    model, objective = translation.require_translator(loaded)
    source = objective.frame(loaded.tokenizer.encode(text).ids, None)
    packed = pack([[START, *target] for target in targets])
    last = model(packed, source=pack([source] * len(targets))).last
    each = objective.decoder_logits(model, last).double().log_softmax(-1)
    labels = torch.tensor([token for target in targets for token in (*target, END)])
    picked = each.gather(1, labels[:, None])[:, 0].numpy()
    return np.add.reduceat(picked, packed.layout.host[:-1])


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_wide_beam_is_an_exhaustive_search(penalty: float, seed: int) -> None:
    loaded = make(seed)
    words = [token for token in range(VOCAB) if token not in (END, PAD)]
    targets = [target for length in range(CONTEXT) for target in itertools.product(words, repeat=length)]
    for text in TEXTS[:2]:
        scores = log_probs(loaded, text, targets) / [((6 + len(target)) / 6) ** penalty for target in targets]
        order = np.argsort(-scores)[:3]
        best = translate(loaded, [text], Search(beams=5000, penalty=penalty, best=3))[0]
        assert [each.ids for each in best] == [targets[number] for number in order]
        np.testing.assert_allclose([each.score for each in best], scores[order], atol=1e-4)
        assert all(each.finished for each in best)


def test_one_beam_takes_the_likeliest_token_each_time() -> None:
    loaded = make(3, context=12)
    model, objective = translation.require_translator(loaded)
    for text in TEXTS:
        source = pack([objective.frame(loaded.tokenizer.encode(text).ids, None)])
        ids: list[int] = []
        with torch.no_grad():
            while len(ids) < 12:
                last = model(pack([[START, *ids]]), source=source).last[-1:]
                logits = objective.decoder_logits(model, last)[0]
                token = int(logits[1:].argmax()) + 1  # padding is never written
                if token == END:
                    break
                ids.append(token)
        [greedy] = translate(loaded, [text], Search(beams=1))[0]
        assert greedy.ids == tuple(ids[:12]) and greedy.finished == (len(ids) < 12)


def test_a_translation_does_not_depend_on_company(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = make(4, context=10)
    together = translate(loaded, [*TEXTS, "", "  "], Search(beams=3, coverage=0.2, best=2))
    alone = [translate(loaded, [text], Search(beams=3, coverage=0.2, best=2))[0] for text in TEXTS]
    assert [[each.ids for each in some] for some in together[:3]] == [[each.ids for each in some] for some in alone]
    assert [some[0].text for some in together[3:]] == ["", ""]
    monkeypatch.setattr(decoding, "HYPOTHESES", {"cpu": 3})
    apart = translate(loaded, TEXTS, Search(beams=3, coverage=0.2, best=2))
    assert [[each.ids for each in some] for some in apart] == [[each.ids for each in some] for some in alone]


def test_the_best_come_first_and_scores_are_those_of_whole_passes() -> None:
    loaded = make(5, context=9)
    best = translate(loaded, TEXTS[:1], Search(beams=4, penalty=0.6, best=4))[0]
    assert [each.score for each in best] == sorted((each.score for each in best), reverse=True)
    finished = [each for each in best if each.finished]
    expected = log_probs(loaded, TEXTS[0], [each.ids for each in finished])
    np.testing.assert_allclose([each.log_prob for each in finished], expected, atol=1e-4)


def test_coverage_is_the_sum_over_source_tokens() -> None:
    search = Search(penalty=0.0, coverage=0.5)
    attended = torch.tensor([[0.2, 1.7, 0.5], [1.0, 1.0, 1.0]])
    scores = search.score(torch.tensor([-3.0, -2.0]), torch.tensor(search.divisor(4)), attended)
    assert scores.tolist() == pytest.approx([-3.0 + 0.5 * (np.log(0.2) + np.log(0.5)), -2.0])
    assert Search(penalty=0.6).divisor(4) == pytest.approx(1.5**0.6)
    assert Search(penalty=0.6, convention="generate").divisor(4) == pytest.approx(4**0.6)


def test_coverage_is_refused_without_attention() -> None:
    """It would change nothing: there is no attention to sum."""
    torch.manual_seed(0)
    settings = recurrent_seq2seq.Settings(width=16, embedding_width=16, vocab=VOCAB, attention="none")
    model = recurrent_seq2seq.build(settings)
    objective = objective_kind.build(objective_kind.Settings(length=8), model, tokenizer(VOCAB).special)
    loaded = LoadedModel(model, objective, tokenizer(VOCAB))
    assert len(loaded.translate(TEXTS)) == len(TEXTS)
    with pytest.raises(UserError, match="this model has none: leave coverage out"):
        loaded.translate(TEXTS, coverage=0.2)


def test_mistakes_are_told() -> None:
    loaded = make()
    with pytest.raises(UserError, match="Text 2 has 5 tokens, and this model reads at most 4"):
        loaded.translate(["w6", "w6 w6 w6 w6 w6"])
    with pytest.raises(UserError, match=r"write translate\(\[text\]\)"):
        loaded.translate("w6")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="best=3: 2 beams give"):
        loaded.translate(["w6"], beams=2, best=3)
    for wrong in ({"beams": 0}, {"penalty": -1.0}, {"coverage": -0.1}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            Search(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="coverage belongs to the convention wu"):
        Search(coverage=0.1, convention="generate")
    with pytest.raises(UserError, match="use translate"):
        loaded.logits([[6]])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    World(0).write_pairs(folder / "pairs.tsv", 200)
    etude.prepare(folder / "pairs.tsv", out=folder / "c", tokenizer="bytebpe:400", pairs="en,ko", valid=0.1)
    settings = {"train.steps": 3, "train.warmup": 1, "train.eval_every": 0, "model.width": 16, "model.heads": 2}
    etude.pretrain("transformer-toy", folder / "c", out=folder / "run", settings=settings, quiet=True)
    return folder / "run"


def test_lines_are_translated_in_order_from_the_command_line(run: Path, tmp_path: Path) -> None:
    lines = [pair[0] for pair in World(0).pairs(4)]
    (tmp_path / "in.txt").write_text("\n".join([lines[0], "", *lines[1:]]) + "\n")
    command = ["translate", str(run), str(tmp_path / "in.txt"), "--beams", "2"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    expected = [some[0].text for some in etude.load(run).translate([lines[0], "", *lines[1:]], beams=2)]
    printed = result.stdout.removesuffix("\n").split("\n")
    assert printed[: len(expected)] == expected and expected[1] == ""
    result = CliRunner().invoke(app, [*command, "--best", "2"])
    scores = [float(line.split("\t")[0]) for line in result.stdout.split("\n")[:2]]
    assert scores == sorted(scores, reverse=True)


def test_options_that_the_other_way_of_translating_has_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("A cat.\n")
    with pytest.raises(UserError, match="--seed applies to random draws"):
        list(etude.translate(run, tmp_path / "in.txt", seed=1))
    for option in ({"beams": 2}, {"penalty": 1.0}, {"coverage": 0.1}):
        with pytest.raises(UserError, match=f"--{next(iter(option))} applies to a beam search"):
            list(etude.translate(run, tmp_path / "in.txt", temperature=0.5, **option))
    [drawn] = etude.translate(run, tmp_path / "in.txt", top_k=2, seed=1, best=2)
    assert len(drawn) == 2


def test_a_line_that_is_too_long_is_told_by_its_number(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.verbs.inference.LINES", 2)
    (tmp_path / "in.txt").write_text("\n" * 4 + "cat " * 500 + "\n")
    with pytest.raises(UserError, match="Text 5 has"):
        list(etude.translate(run, tmp_path / "in.txt"))


@may_lack_bf16
def test_half_precision_translates(run: Path, tmp_path: Path) -> None:
    lines = [pair[0] for pair in World(0).pairs(4)]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    result = CliRunner().invoke(app, ["translate", str(run), str(tmp_path / "in.txt"), "--dtype", "bfloat16"])
    assert result.exit_code == 0, result.output
    expected = [some[0].text for some in etude.load(run, dtype="bfloat16").translate(lines)]
    assert result.stdout.removesuffix("\n").split("\n")[: len(expected)] == expected


def test_a_run_gives_states_of_its_encoder_and_no_logits(run: Path) -> None:
    model = etude.load(run)
    assert model.encode(["The cat sat.", "A dog."]).shape == (2, 16)
    with pytest.raises(UserError):
        model.generate("The cat")
