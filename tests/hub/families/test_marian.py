"""Encoder-decoders of transformers, both ways: logits, gradients of a loss, beam search, tokenizers and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import etude
from etude import hub
from etude.errors import UserError
from etude.hub.exporter import export_run
from etude.hub.importer import import_folder
from etude.inference.model import LoadedModel
from etude.inference.translation import Search, translate
from etude.nn.packed import pack
from etude.world import World
from tests.hub import published_models as reference

transformers = pytest.importorskip("transformers", reason="parity needs the package transformers")
transformers.logging.set_verbosity_error()

PAD, START, END, VOCAB = 0, 2, 5, reference.BYTES
SIZE = {
    "vocab_size": VOCAB, "d_model": 16, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 34,
    "pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": START, "forced_eos_token_id": None,
    "scale_embedding": True,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("Marian", {"activation_function": "swish"}),
    "marian starts with padding": ("Marian", {"decoder_start_token_id": PAD, "scale_embedding": False}),
    "marian two tables": ("Marian", {"share_encoder_decoder_embeddings": False, "activation_function": "relu"}),
    "marian own output": ("Marian", {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
    "pegasus": ("Pegasus", {"activation_function": "relu"}),
}
MODELS = {"Marian": "MarianMTModel", "Pegasus": "PegasusForConditionalGeneration"}


def make(name: str, sharp: float = 1.0, bias: float = 0.5) -> Any:
    """A model of transformers with weights that no initialisation gives."""
    system, values = CASES[name]
    torch.manual_seed(0)
    model = getattr(transformers, MODELS[system])(getattr(transformers, f"{system}Config")(**{**SIZE, **values})).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "embed_positions" not in key:
                parameter.add_(torch.randn_like(parameter) * 0.1 * sharp)
        model.final_logits_bias += torch.randn_like(model.final_logits_bias) * bias
    return model


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    reference.byte_tokenizer().save(folder)
    return folder


def padded(sequences: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """(S, L) ids, and where tokens are."""
    ids = torch.full((len(sequences), max(map(len, sequences))), PAD)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.from_numpy(sequence)
        mask[row, : len(sequence)] = 1
    return ids, mask


def draw(lengths: list[int], seed: int) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    return [np.append(chance.integers(6, VOCAB, length - 1), END) for length in lengths]


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any, hub.ImportedModel]:
    model = make(request.param)
    return request.param, model, hub.read_checkpoint(save(model, tmp_path / "there"))


def test_logits_and_gradients_agree(pair: tuple[str, Any, hub.ImportedModel]) -> None:
    name, there, imported = pair
    here = reference.ours(imported)
    model, objective = here["model"], here["objective"]
    sources, targets = draw([9, 2, 30, 5], 1), draw([4, 33, 11, 2], 2)
    start = SIZE["decoder_start_token_id"] if "padding" not in name else PAD
    inputs = [np.append(start, target[:-1]) for target in targets]
    source_ids, source_mask = padded(sources)
    target_ids, target_mask = padded(inputs)
    theirs = there(
        input_ids=source_ids, attention_mask=source_mask, decoder_input_ids=target_ids,
        decoder_attention_mask=target_mask,
    ).logits[target_mask.bool()]  # fmt: skip
    assert objective.start_token == start and objective.end == END
    ours = objective.decoder_logits(model, model(pack(inputs), source=pack(sources)).last)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    labels = torch.from_numpy(np.concatenate(targets))
    F.cross_entropy(theirs, labels).backward()
    F.cross_entropy(ours, labels).backward()
    for layer in (0, 2):
        slope = there.model.encoder.layers[layer].fc1.bias.grad
        torch.testing.assert_close(model.encoder_feedforward[layer].up.bias.grad, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_files_in_half_precision_are_read(precision: torch.dtype, tmp_path: Path) -> None:
    """Their tables of positions are rounded: those of opus-mt-tc-big are float16."""
    there = make("pegasus").to(precision)
    assert "model.encoder.embed_positions.weight" in there.state_dict()
    taken = hub.read_checkpoint(save(there, tmp_path / "half"))
    table = there.model.shared.weight.float()
    order = torch.cat([torch.arange(0, 16, 2), torch.arange(1, 16, 2)])
    assert torch.equal(taken.tensors["model.embedding.tokens.weight"][:, order], table)
    with torch.no_grad():
        there.model.decoder.embed_positions.weight[3, 1] += 0.5
    with pytest.raises(UserError, match=r"decoder\.embed_positions\.weight is a buffer with other values"):
        hub.read_checkpoint(save(there, tmp_path / "other"))


def test_written_back_it_is_the_same_folder(pair: tuple[str, Any, hub.ImportedModel], tmp_path: Path) -> None:
    _, there, _ = pair
    run = import_folder(tmp_path / "there", tmp_path / "run")
    published = export_run(run, tmp_path / "back")
    again, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert type(again) is type(there) and published.auto_class == "AutoModelForSeq2SeqLM"
    for key, value in there.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], value, rtol=0, atol=0, msg=key)


@pytest.mark.parametrize(
    ("name", "penalty", "ends"), [("marian", 1.0, 4.0), ("marian", 0.0, 0.0), ("pegasus", 1.0, 0.0)]
)
def test_beam_search_is_that_of_generate_token_by_token(name: str, penalty: float, ends: float, tmp_path: Path) -> None:
    there = make(name, sharp=4.0)
    with torch.no_grad():
        there.final_logits_bias[0, END] += ends
    imported = hub.read_checkpoint(save(there, tmp_path / "there"))
    here = reference.ours(imported)
    loaded = LoadedModel(here["model"], here["objective"], imported.tokenizer)
    texts = ["one two", "three", "nine ten four five six"]
    best = translate(loaded, texts, Search(beams=4, best=4, penalty=penalty, convention="generate"))
    for text, ours in zip(texts, best, strict=True):  # alone: the greatest length depends on the source here
        source = np.append(imported.tokenizer.encode(text).ids, END)
        theirs = there.generate(
            torch.from_numpy(source)[None], num_beams=4, num_return_sequences=4, length_penalty=penalty,
            max_new_tokens=min(34, len(source) + 50), bad_words_ids=[[PAD]], do_sample=False, output_scores=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        sequences = [tuple(token for token in row[1:].tolist() if token not in (PAD, END)) for row in theirs.sequences]
        assert [target.ids for target in ours] == sequences
        torch.testing.assert_close(torch.tensor([target.score for target in ours]), theirs.sequences_scores, rtol=1e-4,
                                   atol=1e-4)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy of the published form, trained for a while."""
    folder = tmp_path_factory.mktemp("translator")
    World(0).write_pairs(folder / "pairs.tsv", 300)
    etude.prepare(folder / "pairs.tsv", out=folder / "c", tokenizer="bytebpe:400", pairs="en,ko", valid=0.1)
    settings = {
        "train.steps": 40, "train.warmup": 8, "train.eval_every": 0, "model.width": 16, "model.heads": 2,
        "model.norm": "post", "train.lr": 3e-3,
    }  # fmt: skip
    etude.pretrain("transformer-toy", folder / "c", out=folder / "run", settings=settings, quiet=True)
    export_run(folder / "run", folder / "out")
    return folder


def test_an_exported_run_translates_there_as_here(run: Path) -> None:
    """With our tokenizer, from a batch of padded texts to text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "out")
    there = transformers.AutoModelForSeq2SeqLM.from_pretrained(run / "out").eval()
    assert type(there).__name__ == "MarianMTModel" and there.generation_config.num_beams == 4
    texts = [pair[0] for pair in World(3).pairs(6)]
    model = etude.load(run / "run")
    limit = 30
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    assert batch.keys() == {"input_ids", "attention_mask"}
    for text, ids, mask in zip(texts, batch["input_ids"], batch["attention_mask"], strict=True):
        assert ids[mask.bool()].tolist() == [*model.tokenizer.encode(text).ids.tolist(), END]
    theirs = tokenizer.batch_decode(there.generate(**batch, max_new_tokens=limit), skip_special_tokens=True)
    ours = model.translate(texts, penalty=1.0, convention="generate")
    finished = [place for place, best in enumerate(ours) if len(best[0].ids) < limit]
    assert finished, "the toy has learnt to end"
    assert [theirs[place].strip() for place in finished] == [ours[place][0].text for place in finished]
    again = import_folder(run / "out", run / "again")
    assert [best[0].text for best in etude.load(again.folder).translate(texts)] == [
        best[0].text for best in model.translate(texts)
    ]


def test_an_exported_run_translates_in_a_pipeline(run: Path) -> None:
    """transformers 5 has no pipeline for translation any more; 4 has."""
    if int(transformers.__version__.split(".")[0]) >= 5:
        pytest.skip("transformers 5 has no pipeline 'translation'")
    texts = [pair[0] for pair in World(3).pairs(3)]
    pipeline = transformers.pipeline("translation", model=str(run / "out"))
    theirs = [answer["translation_text"].strip() for answer in pipeline(texts)]
    ours = etude.load(run / "run").translate(texts, penalty=1.0, convention="generate")
    assert theirs == [best[0].text for best in ours]


def test_what_has_no_class_there_is_told(run: Path, tmp_path: Path) -> None:
    for settings, message in (
        ({"model.positions": "learned"}, "nearest class is Pegasus.*model.positions=learned"),
        ({"model.tables": "separate"}, "model.tables=separate"),
        ({"model.norm": "post", "model.epsilon": 1e-6}, "nearest class is Marian.*model.epsilon=1e-06"),
    ):
        folder = tmp_path / str(len(message))
        steps = {"train.steps": 1, "train.warmup": 0, "train.eval_every": 0, "model.width": 16, "model.heads": 2}
        etude.pretrain("transformer-toy", run / "c", out=folder, settings={**steps, **settings}, quiet=True)
        with pytest.raises(UserError, match=message):
            export_run(folder, tmp_path / "none")


@pytest.mark.parametrize("system", ["T5", "Bart", "MBart"])
def test_other_encoder_decoders_are_refused(system: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{system}Config")()
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"type '{config.model_type}' are not supported: .*marian and pegasus are read"):
        hub.read_checkpoint(tmp_path)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = save(make("marian"), tmp_path / "there")
    config = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"encoder_ffn_dim": 32}, "encoder_ffn_dim=32 and decoder_ffn_dim=24"),
        ({"decoder_vocab_size": 100}, "one vocabulary serves both"),
        ({"tie_word_embeddings": False}, "share_encoder_decoder_embeddings=false"),
        ({"decoder_start_token_id": 77}, "decoder_start_token_id=77 is no special token"),
        ({"eos_token_id": 4}, "eos_token_id=4"),
        ({"encoder_layers": 4}, r"model.encoder.layers.3.self_attn.q_proj.weight is missing"),
        ({"encoder_layers": 2}, r"model.encoder.layers.2.* is unexpected"),
        ({"d_model": 32}, r"has the shape"),
        ({"activation_function": "mish"}, "activation_function='mish'"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(UserError, match=message):
            hub.read_checkpoint(folder)
