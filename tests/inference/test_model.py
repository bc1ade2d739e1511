"""`etude.load`: runs, checkpoints and published folders, and results that no company changes."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import etude
from etude.errors import UserError
from etude.inference.fill import Guess, _encode_blanks, fill_texts
from etude.inference.model import LoadedModel
from etude.models import recurrent, static
from etude.nn.packed import pack
from etude.objectives import bilm, skipgram
from tests.half_precision import may_lack_bf16
from tests.tiny_models import TEXTS, decoder, encoder, finished_run, saved_run, started_run, tokenizer

WORDS = ["the cat sat", "고양이가 문으로 달렸다!", "ran", "the dog ran to the door, and the cat too"]


def sequences(vocab: int, lengths: tuple[int, ...] = (5, 1, 17, 32, 2, 9)) -> list[list[int]]:
    draw = np.random.default_rng(3)
    return [draw.integers(6, vocab, length).tolist() for length in lengths]


def elmo(spec: str = "word:60") -> LoadedModel:
    words = tokenizer(spec)
    model = recurrent.build(recurrent.Settings(width=8, cells=12, vocab=words.vocab))
    return LoadedModel(model, bilm.build(bilm.Settings(), model, words.special), words)


def word_vectors() -> LoadedModel:
    words = tokenizer("word:60")
    model = static.build(static.Settings(width=8, vocab=words.vocab))
    return LoadedModel(model, skipgram.build(skipgram.Settings(), model, words.special), words)


# --- ids in, arrays out -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [decoder, encoder, elmo], ids=["causal", "masked", "recurrent"])
def test_company_and_order_change_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """States, logits and vectors: together, backwards, alone, and in small groups."""
    model = make()
    ids = sequences(model.model.vocab)
    order = [3, 0, 5, 1, 4, 2]

    def results(chosen: list[int]) -> list[list[np.ndarray]]:
        some = [ids[number] for number in chosen]
        texts = [WORDS[number % 4] for number in chosen]
        return [model.states(some), model.states(some, layers="last"), model.logits(some), list(model.encode(texts))]

    together = results(list(range(6)))
    monkeypatch.setattr("etude.inference.base.TOKENS", 20)
    monkeypatch.setattr("etude.inference.text_vectors.TOKENS", {"cpu": 20})
    alone = [[part[0] for part in kind] for kind in zip(*(results([number]) for number in order), strict=True)]
    for result in (results(order), alone):
        for whole, part in zip(together, result, strict=True):
            for place, number in enumerate(order):
                np.testing.assert_allclose(part[place], whole[number], rtol=1e-5, atol=1e-5)


def test_states_and_logits_are_the_models_own() -> None:
    model = encoder()
    ids = sequences(model.model.vocab)
    with torch.no_grad():
        states = model.model(pack(ids), layers=True)
        scores = model.objective.logits(model.model, states)
    bounds = np.cumsum([0, *map(len, ids)])
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        whole = torch.stack(states.layers)[:, start:stop]
        np.testing.assert_allclose(model.states(ids)[number], whole, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(model.states(ids, layers="last")[number], whole[-1], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(model.logits(ids)[number], scores[start:stop], rtol=1e-5, atol=1e-5)
    assert model.states([]) == [] and model.states([[], ids[0]])[0].shape == (3, 0, 32)


@pytest.mark.parametrize("pool", ["mean", "start", "last", "max"])
def test_vectors_are_pooled_states_of_the_framed_text(pool: Any) -> None:
    model = encoder()
    special = model.tokenizer.special
    for layer in (0, 1, -1):
        result = model.encode(WORDS, layer=layer, pool=pool)
        assert result.shape == (4, 32) and result.dtype == np.float32
        for text, vector in zip(WORDS, result, strict=True):
            states = model.states([[special.start, *model.tokenizer.encode(text).ids, special.separator]])[0][layer]  # type: ignore[list-item]
            expected = {"mean": states.mean(0), "start": states[0], "last": states[-1], "max": states.max(0)}[pool]
            np.testing.assert_allclose(vector, expected, rtol=1e-5, atol=1e-5)
    assert model.encode([]).shape == (0, 32)


def test_long_texts_are_cut_at_the_context() -> None:
    model = encoder()
    long, special = TEXTS[0] * 3, model.tokenizer.special
    framed = model.frame(model.tokenizer.encode(long).ids)
    assert len(framed) == 32 and framed[0] == special.start and framed[-1] == special.separator
    assert np.isfinite(model.encode([long])).all()
    assert len(decoder().frame(np.arange(6, 100))) == 32


def test_states_of_a_batch_are_copied_to_the_host_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is waited for at each copy, and has nothing to do meanwhile."""
    model, cpu = encoder(), torch.Tensor.cpu
    copies: list[torch.Tensor] = []

    def count(self: torch.Tensor) -> torch.Tensor:
        copies.append(self)
        return cpu(self)

    monkeypatch.setattr(torch.Tensor, "cpu", count)
    for ask in (
        lambda: model.states(sequences(model.model.vocab)),
        lambda: model.states(sequences(model.model.vocab), layers="last"),
    ):
        copies.clear()
        assert len(ask()) >= 4
        assert len(copies) == 1


def test_word_vectors_and_recurrent_models_encode_too() -> None:
    assert word_vectors().encode(["the cat", "cat"]).shape == (2, 8)
    assert elmo().encode(["the cat", ""]).shape == (2, 16)
    assert elmo().logits([[7, 8, 9]])[0].shape == (3, elmo().model.vocab)
    with pytest.raises(UserError, match="Text 1 has no tokens"):
        word_vectors().encode(["the", ""])
    with pytest.raises(UserError, match="no language-model head"):
        word_vectors().logits([[7]])


# --- blanks -----------------------------------------------------------------------------------------


def favouring(word: str, spec: str = "wordpiece:200", second: str | None = None) -> LoadedModel:
    """A masked model that likes one token best."""
    model = encoder(spec)
    for number, token in enumerate([word, second]):
        if token is not None:
            id = model.tokenizer.id(token)
            assert id is not None, token
            with torch.no_grad():
                model.objective.head.bias[id] = 60.0 - 30 * number
    return model


def test_a_blank_is_filled_with_the_likeliest_tokens() -> None:
    model = favouring("cat", second="dog")
    result = model.fill("The [MASK] sat.", top=2)
    assert [(guess.token, guess.text) for guess in result if isinstance(guess, Guess)] == [
        ("cat", "The cat sat."),
        ("dog", "The dog sat."),
    ]
    special = model.tokenizer.special
    ids = [*model.tokenizer.encode("The").ids, special.mask, *model.tokenizer.encode("sat.").ids]
    scores = torch.from_numpy(model.logits([[special.start, *ids, special.separator]])[0])  # type: ignore[list-item]
    shares = scores[1 + len(ids) - 1 - len(model.tokenizer.encode("sat.").ids)].softmax(-1)
    assert [guess.probability for guess in result] == pytest.approx(shares.topk(2).values.tolist(), abs=1e-5)  # type: ignore[union-attr]


def test_several_blanks_have_guesses_each() -> None:
    first, second = favouring("cat").fill_blanks("the [MASK] and the [MASK]", top=3)
    assert first[0].text == "the cat and the [MASK]" and second[0].text == "the [MASK] and the cat"
    assert len(first) == len(second) == 3
    with pytest.raises(UserError, match="has 2 blanks, and fill guesses one: fill_blanks"):
        favouring("cat").fill("the [MASK] and the [MASK]")


def test_a_list_of_texts_has_a_list_of_guesses_each() -> None:
    model = favouring("cat")
    texts = ["the [MASK] sat", "a [MASK]"]
    filled = model.fill(texts, top=2)
    assert [[guess.text for guess in guesses] for guesses in filled] == [
        [guess.text for guess in model.fill(text, top=2)] for text in texts
    ]
    assert model.fill(tuple(texts), 2) == filled and model.fill([]) == []


@pytest.mark.parametrize(
    ("spec", "token", "text", "filled"),
    [
        ("wordpiece:200", "##n", "ra[MASK] too", "ran too"),
        ("wordpiece:200", "##n", "ra [MASK] too", "ran too"),
        ("wordpiece:200", ".", "the cat [MASK] the", "the cat. the"),
        ("wordpiece:200", "cat", "[MASK] sat", "cat sat"),
        ("word:60", "cat", "the [MASK] sat", "the cat sat"),
        ("bytebpe:300", "Ġthe", "ran to [MASK] door", "ran to the door"),
        ("bytebpe:300", "s", "cat[MASK] ran", "cats ran"),
        ("bytebpe:300", "s", "cat [MASK] ran", "cats ran"),
        ("char:100", "a", "c[MASK]t", "cat"),
        ("char:100", "a", "the [MASK]nd", "the and"),
    ],
)
def test_a_guess_reads_as_it_stands_in_the_text(spec: str, token: str, text: str, filled: str) -> None:
    guess = favouring(token, spec).fill(text)[0]
    assert isinstance(guess, Guess)
    assert guess.token == token and guess.text == filled


def test_the_space_before_a_blank_belongs_to_it_where_tokens_have_spaces() -> None:
    model = encoder("bytebpe:300")
    mask = model.tokenizer.special.mask
    assert mask is not None
    before, after = (model.tokenizer.encode(part).ids.tolist() for part in ("ran to", " door"))
    [ids] = _encode_blanks(model, [["ran to ", " door"]], mask)
    assert ids.tolist() == [*before, mask, *after]


def test_blanks_of_many_texts_are_filled_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of blanks, of guesses, and of logits that fit into memory."""
    model = encoder()
    texts = ["the [MASK] sat", "[MASK] and the [MASK] ran to [MASK]", "a dog [MASK]"]
    alone = [fill_texts(model, [text], [top])[0] for text, top in zip(texts, (2, 3, 1), strict=True)]
    for logits in (1, 10**9):
        monkeypatch.setattr("etude.inference.fill.LOGITS", logits)
        together = fill_texts(model, texts, (2, 3, 1))
        assert [[len(guesses) for guesses in rows] for rows in together] == [[2], [3, 3, 3], [1]]
        for rows, wanted in zip(together, alone, strict=True):
            for guesses, best in zip(rows, wanted, strict=True):
                assert [guess.token for guess in guesses] == [guess.token for guess in best]
                assert [guess.probability for guess in guesses] == pytest.approx(
                    [guess.probability for guess in best],
                    abs=1e-5,  # float32 in another shape
                )


def test_what_cannot_be_filled_is_said() -> None:
    model = encoder()
    with pytest.raises(UserError, match=r"no \[MASK\] in: the cat"):
        model.fill("the cat")
    with pytest.raises(UserError, match="The text is empty: write one with"):
        model.fill(" ")
    with pytest.raises(UserError, match="shorten the text"):
        model.fill("the cat " * 20 + "[MASK]")
    with pytest.raises(UserError, match="top=0"):
        model.fill("the [MASK]", top=0)
    for causal, advice in ((decoder(), "use generate"), (elmo(), "use features, or finetune")):
        with pytest.raises(UserError, match=advice):
            causal.fill("the [MASK] sat")


def test_wrong_ids_and_names_are_said() -> None:
    model = encoder()
    wrong: list[tuple[Any, str]] = [
        ([[1, 2], [3, 999]], "Sequence 1 has ids from 3 to 999"),
        ([[-1]], "ids from -1"),
        ([[7] * 33], "33 tokens, and the model sees at most 32"),
        ([7, 8], "list of lists"),
        ([[0.5]], "list of lists"),
    ]
    for ids, word in wrong:
        with pytest.raises(UserError, match=word):
            model.states(ids)
    with pytest.raises(UserError, match=r"write encode\(\[text\]\)"):
        model.encode("the cat")
    with pytest.raises(UserError, match="layer=3"):
        model.encode(["the"], layer=3)
    with pytest.raises(UserError, match="Text 1 is None, not a text"):
        model.encode(["the cat", None])  # type: ignore[list-item]
    with pytest.raises(UserError, match="pool is one of"):
        model.encode(["the"], pool="sum")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="layers is"):
        model.states([[7]], layers="first")  # type: ignore[arg-type]


# --- folders ----------------------------------------------------------------------------------------

SYSTEMS = [("gpt2-toy", "bytebpe:300"), ("bert-toy", "wordpiece:200"), ("electra-toy", "wordpiece:200")]


def test_texts_come_from_any_iterable_and_a_table_is_none() -> None:
    """Iterating a table gives the names of its columns, which are texts, too."""
    masked, causal = encoder(), decoder()
    table = pytest.importorskip("pandas").DataFrame({"text": WORDS})
    assert np.array_equal(masked.encode(word for word in WORDS), masked.encode(WORDS))
    assert np.array_equal(masked.encode(table["text"]), masked.encode(WORDS))
    assert causal.generate((word for word in WORDS[:2]), tokens=2) == causal.generate(WORDS[:2], tokens=2)
    for wrong in (table, {"text": WORDS}):
        for use in (masked.encode, causal.generate):
            with pytest.raises(UserError, match=r"a table is several columns: give one, as table\['text'\]"):
                use(wrong)
    for use, wrong in ((masked.fill_blanks, WORDS), (masked.fill, None), (causal.perplexity, Path("text.txt"))):
        with pytest.raises(UserError, match="takes one text, not"):
            use(wrong)
    with pytest.raises(UserError, match="layer='last': give the number of one"):
        masked.encode(WORDS, layer="last")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Text 0 is None, not a text"):
        causal.generate([None])  # type: ignore[list-item]
    assert repr(masked).startswith("LoadedModel(Transformer, parameters ")


@pytest.mark.parametrize(("name", "spec"), SYSTEMS)
def test_a_run_its_checkpoint_and_its_published_form_are_one_model(name: str, spec: str, tmp_path: Path) -> None:
    finished_run(tmp_path / "run", name, spec)
    saved_run(tmp_path / "saved", name, spec)
    shutil.copytree(tmp_path / "run", tmp_path / "published")
    for file in ("recipe.yaml", "checksums.json"):
        (tmp_path / "published" / file).unlink()
    models = [etude.load(tmp_path / folder) for folder in ("run", "saved", "published")]
    ids = sequences(models[0].model.vocab)
    for other in models[1:]:
        assert not other.model.training and not other.untrained
        for mine, theirs in zip(models[0].logits(ids), other.logits(ids), strict=True):
            np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(other.encode(WORDS), models[0].encode(WORDS), rtol=1e-5, atol=1e-5)
    if name == "gpt2-toy":
        assert models[0].generate("the", tokens=5) == models[2].generate("the", tokens=5)
    else:
        assert models[0].fill("the [MASK] sat") == models[1].fill("the [MASK] sat")


@pytest.mark.parametrize(("name", "spec"), SYSTEMS)
@may_lack_bf16
def test_half_precision_is_the_same_model_roughly(name: str, spec: str, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", name, spec).folder
    whole, half = etude.load(run), etude.load(run, dtype="bfloat16")
    assert {weight.dtype for weight in half.model.parameters()} == {torch.bfloat16}
    ids = sequences(whole.model.vocab)
    for mine, theirs in zip(whole.logits(ids), half.logits(ids), strict=True):
        assert theirs.dtype == np.float32 and 0 < np.abs(theirs - mine).max() < 0.05 * np.abs(mine).max()
    np.testing.assert_allclose(half.encode(WORDS), whole.encode(WORDS), atol=0.1)
    if name == "gpt2-toy":
        assert len(half.generate("the", tokens=5, past_end=True).ids) == 5
        assert abs(half.perplexity("the cat sat").bits_per_byte - whole.perplexity("the cat sat").bits_per_byte) < 0.05
    else:
        assert len(half.fill("the [MASK] sat", top=3)) == 3
    with pytest.raises(UserError, match="dtype is one of float32, bfloat16, float16, not 'int8'"):
        etude.load(run, dtype="int8")  # type: ignore[arg-type]


def without(folder: Path, start: str) -> Path:
    """A published folder without the tensors whose names begin so, and without a recipe."""
    (folder / "recipe.yaml").unlink()
    (folder / "checksums.json").unlink()
    file = folder / "model.safetensors"
    tensors = {name: item for name, item in load_file(file).items() if not name.startswith(start)}
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def test_an_encoder_without_its_head_is_refused_by_name(tmp_path: Path) -> None:
    finished_run(tmp_path / "bert", "bert-toy", "wordpiece:200")
    bare = etude.load(without(tmp_path / "bert", "cls."))
    assert bare.encode(WORDS).shape == (4, 32)
    for ask in (lambda: bare.fill("the [MASK]"), lambda: bare.logits([[7]])):
        with pytest.raises(UserError, match=r"nothing was given for objective\.head\.bias, objective\.head"):
            ask()


def test_a_run_that_was_imported_without_a_head_remembers_it(tmp_path: Path) -> None:
    from etude.hub.importer import import_folder

    finished_run(tmp_path / "bert", "bert-toy", "wordpiece:200")
    import_folder(without(tmp_path / "bert", "cls."), tmp_path / "run")
    with pytest.raises(UserError, match="without a trained language-model head"):
        etude.load(tmp_path / "run").fill("the [MASK]")


def test_only_the_sentence_head_missing_leaves_the_words(tmp_path: Path) -> None:
    finished_run(tmp_path / "bert", "bert-toy", "wordpiece:200")
    bare = etude.load(without(tmp_path / "bert", "cls.seq_relationship"))
    if bare.untrained:  # the recipe of a folder without the task has no such head at all
        assert all(name.startswith("objective.sentence") for name in bare.untrained)
    assert len(bare.fill("the [MASK]")) == 5


def test_a_discriminator_alone_has_states_and_no_logits(tmp_path: Path) -> None:
    finished_run(tmp_path / "electra", "electra-toy", "wordpiece:200")
    shutil.rmtree(tmp_path / "electra" / "generator")
    (tmp_path / "electra" / "recipe.yaml").unlink()
    (tmp_path / "electra" / "checksums.json").unlink()
    bare = etude.load(tmp_path / "electra")
    assert bare.encode(WORDS).shape[0] == 4
    with pytest.raises(UserError, match=r"objective\.generator"):
        bare.fill("the [MASK]")


def test_what_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no weights yet"):
        etude.load(started_run(tmp_path / "new", "gpt2-toy", "bytebpe:300").folder)
    with pytest.raises(UserError, match="There is no folder"):
        etude.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no config\.json"):
        etude.load(tmp_path / "empty")


# --- the command line -------------------------------------------------------------------------------


def etude_says(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    from etude.cli import main as cli

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as done:
        patch.setattr("sys.argv", ["etude", *words])
        cli.main()
    out, error = capsys.readouterr()
    return int(done.value.code or 0), out, error


def test_generate_and_perplexity_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(finished_run(tmp_path / "run", "gpt2-toy", "bytebpe:300").folder)
    options = ["--tokens", "12", "--temperature", "0.8", "--top-k", "40", "--top-p", "0.9", "--seed", "1"]
    loaded = etude.load(run)
    wanted = loaded.generate("Once upon", tokens=12, temperature=0.8, top_k=40, top_p=0.9, seed=1, samples=3)
    assert isinstance(wanted, list)
    shown = "---\n".join(f"{item}\n" for item in wanted)
    assert etude_says(capsys, "generate", run, "Once upon", *options, "--samples", "3") == (0, shown, "")
    assert etude_says(capsys, "generate", run, "Once upon", *options, "--samples", "3", "--stream") == (0, shown, "")
    code, out, _ = etude_says(capsys, "generate", run, "the", "고양이", "--beams", "2", "--tokens", "4")
    assert code == 0 and out == "---\n".join(f"{loaded.search(text, 4, beams=2)[0]}\n" for text in ("the", "고양이"))
    half = etude.load(run, dtype="bfloat16").generate("the", tokens=4)
    assert etude_says(capsys, "generate", run, "the", "--tokens", "4", "--dtype", "bfloat16") == (0, f"{half}\n", "")
    code, _, error = etude_says(capsys, "generate", run, "--tokens", "70", "--past-end")
    assert code == 0 and "1 of 1 went on past 64 tokens" in error
    code, out, error = etude_says(capsys, "generate", run, "the", "--top-p", "2")
    assert code == 2 and out == "" and error.startswith("Error: top_p=2.0 is not a share")

    (tmp_path / "text.txt").write_text(TEXTS[0], encoding="utf-8")
    code, out, _ = etude_says(capsys, "perplexity", run, str(tmp_path / "text.txt"), "--stride", "8")
    result = loaded.perplexity(TEXTS[0], stride=8)
    assert code == 0 and f"perplexity {result.perplexity:.4g} a token" in out and "64 tokens, 8 apart" in out
    assert f"{result.bits_per_byte:.4f} bits a byte" in out
    (tmp_path / "bad.txt").write_bytes(b"the \xff cat")
    for file, word in ((tmp_path / "none.txt", "There is no file"), (tmp_path / "bad.txt", "line 1, is not UTF-8")):
        code, _, error = etude_says(capsys, "perplexity", run, str(file))
        assert code == 2 and word in error.replace("\n", " ")


def test_fill_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(finished_run(tmp_path / "run", "bert-toy", "wordpiece:200").folder)
    best = etude.load(run).fill("the [MASK] sat.", top=3)
    code, out, _ = etude_says(capsys, "fill", run, "the [MASK] sat.", "--top", "3")
    assert code == 0 and [line.split("%")[1].split()[0] for line in out.splitlines()] == [item.token for item in best]  # type: ignore[union-attr]
    code, out, _ = etude_says(capsys, "fill", run, "[MASK] and [MASK]", "--top", "2")
    assert code == 0 and len(out.split("\n\n")) == 2
    (tmp_path / "text.txt").write_text("the cat sat", encoding="utf-8")
    code, out, _ = etude_says(capsys, "perplexity", run, str(tmp_path / "text.txt"))
    assert code == 0 and out.startswith("pseudo-perplexity") and "not comparable" in out
    code, _, error = etude_says(capsys, "generate", run, "the")
    assert code == 2 and "use fill" in error
