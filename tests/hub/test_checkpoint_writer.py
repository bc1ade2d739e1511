"""Our own runs: written under the published names, read back bit for bit, exported, and the same in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from etude import hub
from etude.errors import UserError
from etude.hub.exporter import export_run
from etude.hub.families import electra
from etude.hub.importer import import_folder
from etude.hub.run_weights import load_learner
from etude.models import transformer
from etude.objectives.parts.discriminator import Detector
from etude.recipes.document import Document
from etude.recipes.schema import Recipe
from tests.hub import published_models as reference
from tests.hub.published_models import CASES, Case, equal, finished

transformers = pytest.importorskip("transformers", reason="what is written is opened by the package transformers")
transformers.logging.set_verbosity_error()

SIZE = {"layers": 2, "width": 32, "heads": 4, "feedforward": 48, "context": reference.CONTEXT}
BERT = {**SIZE, "norm": "post", "embedding_norm": True, "segments": 2, "epsilon": 1e-12}
GPT2 = {**SIZE, "direction": "causal", "activation": "gelu_tanh"}
MODERN = {"positions": "rotary", "gated": True, "feedforward": 40}
NEXT, ORDER = {"kind": "masked", "sentence": "next"}, {"kind": "masked", "sentence": "order"}
MASKED, CAUSAL = {"kind": "masked"}, {"kind": "causal"}

# name: model, objective, the class that must come out
OWN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bert": ({**BERT, "pooler": True}, NEXT, "BertForPreTraining"),
    "bert-order": ({**BERT, "pooler": True, "activation": "gelu_tanh"}, ORDER, "BertForPreTraining"),
    "bert-masked": (BERT, MASKED, "BertForMaskedLM"),
    "bert-pooler": ({**BERT, "pooler": True}, MASKED, "BertForMaskedLM"),
    "distilbert": ({**BERT, "segments": 0}, MASKED, "DistilBertForMaskedLM"),
    "albert": ({**BERT, "embedding_width": 8, "share": "all", "pooler": True}, ORDER, "AlbertForPreTraining"),
    "albert-wide": ({**BERT, "share": "all", "pooler": True}, NEXT, "AlbertForPreTraining"),
    "electra": ({**BERT, "embedding_width": 8}, MASKED, "ElectraForMaskedLM"),
    "gpt1": (
        {**GPT2, "norm": "post", "feedforward": None, "embedding_dropout_on": "table"},
        CAUSAL,
        "OpenAIGPTLMHeadModel",
    ),
    "gpt2": (GPT2, CAUSAL, "GPT2LMHeadModel"),
    "modernbert": (
        {**SIZE, **MODERN, "embedding_norm": True, "first_norm": False, "window": 3, "rotary_window_base": 5000.0},
        {"kind": "masked", "activation": "silu"},
        "ModernBertForMaskedLM",
    ),
    "llama": (
        {**GPT2, **MODERN, "norm_kind": "rms", "bias": False, "activation": "silu", "rotary_base": 5000.0},
        CAUSAL,
        "LlamaForCausalLM",
    ),
}


def recipe_of(model: dict[str, Any], objective: dict[str, Any], vocab: int | None = None) -> Recipe:
    kind = model.get("kind", "transformer")
    values = {"name": "toy", "tokenizer": "bytebpe:262", "train": {"steps": 1}, "objective": objective}
    return Recipe.from_document(Document({**values, "model": {**model, "kind": kind}})).resolve(vocab=vocab)


@pytest.mark.parametrize("name", OWN)
def test_a_run_is_read_back_exactly_and_exported(name: str, tmp_path: Path) -> None:
    model, objective, architecture = OWN[name]
    tokenizer = reference.byte_tokenizer()
    recipe = recipe_of(model, objective, tokenizer.vocab)
    run, learner = finished(tmp_path / "run", recipe, tokenizer)
    config = json.loads((run.folder / "config.json").read_text())
    assert config["architectures"] == [architecture]
    assert equal(load_learner(run)[:2], learner)

    published = export_run(run, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"README.md", "tokenizer.json", "model.safetensors"}
    opener = getattr(transformers, published.auto_class)
    there, info = opener.from_pretrained(tmp_path / "out", output_loading_info=True, attn_implementation="eager")
    assert not info["missing_keys"]
    assert {key.partition(".")[2].partition(".")[0] for key in info["unexpected_keys"]} <= {"pooler"}  # bert-pooler
    given = reference.inputs(segments=bool(model.get("segments")))
    with torch.no_grad():
        theirs = reference.run_reference(there.eval(), given, {})
        scores = theirs.prediction_logits if "prediction_logits" in theirs else theirs.logits
        found = reference.logits(learner, given.packed)
    torch.testing.assert_close(found, scores[given.mask.bool()], rtol=1e-5, atol=1e-5)

    again = import_folder(tmp_path / "out", tmp_path / "again")
    assert again.recipe.objective_kind == recipe.objective_kind
    assert getattr(again.recipe.objective, "sentence", None) == getattr(recipe.objective, "sentence", None)
    assert equal(load_learner(again)[:2], learner)


def test_the_order_task_in_the_class_of_the_next_task_is_remembered(tmp_path: Path) -> None:
    tokenizer = reference.byte_tokenizer()
    run, _ = finished(tmp_path / "run", recipe_of({**BERT, "pooler": True}, ORDER, tokenizer.vocab), tokenizer)
    assert json.loads((run.folder / "config.json").read_text())["etude"] == {"sentence": "order"}


def test_export_trims_the_padding_of_the_vocabulary_and_the_run_keeps_it(tmp_path: Path) -> None:
    tokenizer = reference.byte_tokenizer()
    run, learner = finished(tmp_path / "run", recipe_of({**BERT, "vocab": 320}, MASKED), tokenizer)
    assert equal(load_learner(run)[:2], learner)
    published = export_run(run, tmp_path / "out")
    assert published.notes == ("left out 58 rows of the vocabulary (320 to 262): the tokenizer has no such tokens",)
    there = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    given = reference.inputs(segments=True)
    with torch.no_grad():
        theirs = reference.run_reference(there, given, {}).logits[given.mask.bool()]
        found = reference.logits(learner, given.packed)[:, :262]
    torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-5)


REFUSED = {
    "partial sharing": ({**BERT, "share": "attention"}, MASKED, r"model\.share=attention \(partial sharing"),
    "partial sharing, narrow": (
        {**BERT, "share": "feedforward", "embedding_width": 8, "pooler": True},
        ORDER,
        r"AlbertForPreTraining.*model\.share=feedforward \(partial sharing\)",
    ),
    "banded layers": ({**GPT2, "window": 4}, CAUSAL, r"GPT2LMHeadModel.*model\.window=4 \(banded layers"),
    "sinusoids": ({**BERT, "positions": "sinusoidal"}, MASKED, r"model\.positions=sinusoidal"),
    "no segments, pooled": ({**BERT, "segments": 0, "pooler": True}, NEXT, r"model\.segments=0"),
    "a bias on the logits": (GPT2, {"kind": "causal", "bias": True}, r"objective\.bias=true"),
    "another head": (BERT, {"kind": "masked", "activation": "relu"}, r"objective\.activation=relu"),
    "gpt1, wider": ({**GPT2, "norm": "post"}, CAUSAL, r"model\.feedforward=48 \(GPT-1 has 4 \* width = 128\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_class_there_keeps_our_names_and_is_refused_by_name(name: str, tmp_path: Path) -> None:
    model, objective, message = REFUSED[name]
    tokenizer = reference.byte_tokenizer()
    run, learner = finished(tmp_path / "run", recipe_of(model, objective, tokenizer.vocab), tokenizer)
    assert json.loads((run.folder / "config.json").read_text())["model_type"] == "etude-transformer"
    assert equal(load_learner(run)[:2], learner)
    with pytest.raises(UserError, match=message):
        export_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"under etude's own names: open it as a run"):
        hub.read_checkpoint(run.folder)


MODERN_ENCODER = {**SIZE, **MODERN, "embedding_norm": True, "first_norm": False, "window": 3, "bias": False}
DISCRIMINATORS = {
    "another variant": (BERT, {"variant": "replace_mlm"}, "BertModel"),
    "untied parts": (BERT, {"tie": "tokens"}, "BertModel"),
    "another generator": ({**BERT, "activation": "relu"}, {}, "BertModel"),
    "modern layers": (MODERN_ENCODER, {}, "ModernBertModel"),
}


@pytest.mark.parametrize("name", DISCRIMINATORS)
def test_the_encoder_of_a_discriminator_without_a_class(name: str, tmp_path: Path) -> None:
    model, changes, architecture = DISCRIMINATORS[name]
    tokenizer = reference.byte_tokenizer()
    recipe = recipe_of({**model, "vocab": 320}, {"kind": "replaced", **changes})
    run, learner = finished(tmp_path / "run", recipe, tokenizer)
    assert json.loads((run.folder / "config.json").read_text())["model_type"] == "etude-transformer"
    assert equal(load_learner(run)[:2], learner)
    published = export_run(run, tmp_path / "out")
    assert published.architecture == architecture
    assert [note.partition(":")[0] for note in published.notes] == [
        "left out 58 rows of the vocabulary (320 to 262)", "left out the head of the objective replaced",
    ]  # fmt: skip
    there = transformers.AutoModel.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    given = reference.inputs(segments=bool(model.get("segments")))
    with torch.no_grad():
        theirs = reference.run_reference(there, given, {}).last_hidden_state[given.mask.bool()]
        found = learner["model"].eval()(given.packed).last
    torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-5)


def test_a_modern_encoder_without_biases(tmp_path: Path) -> None:
    """It has a class there where the head has no biases either; a head with them is refused by name."""
    tokenizer = reference.byte_tokenizer()
    run, learner = finished(tmp_path / "run", recipe_of(MODERN_ENCODER, MASKED, tokenizer.vocab), tokenizer)
    assert equal(load_learner(run)[:2], learner)
    if learner["objective"].head.dense.bias is not None:
        with pytest.raises(UserError, match=r"ModernBertForMaskedLM has no place for objective\.head\.dense\.bias"):
            export_run(run, tmp_path / "out")
        return
    export_run(run, tmp_path / "out")
    there = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    given = reference.inputs(segments=False)
    with torch.no_grad():
        theirs = reference.run_reference(there, given, {}).logits[given.mask.bool()]
        torch.testing.assert_close(reference.logits(learner, given.packed), theirs, rtol=1e-5, atol=1e-5)


def test_an_unfinished_run_and_a_folder_in_use_are_refused(tmp_path: Path) -> None:
    tokenizer = reference.byte_tokenizer()
    run, _ = finished(tmp_path / "run", recipe_of(GPT2, CAUSAL, tokenizer.vocab), tokenizer)
    with pytest.raises(UserError, match="exists already"):
        export_run(run, tmp_path / "run")
    (run.folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="is not finished"):
        export_run(run, tmp_path / "out")


def test_a_damaged_run_is_not_exported_with_new_checksums(tmp_path: Path) -> None:
    tokenizer = reference.byte_tokenizer()
    run, _ = finished(tmp_path / "run", recipe_of(GPT2, CAUSAL, tokenizer.vocab), tokenizer)
    weights = bytearray((run.folder / "model.safetensors").read_bytes())
    weights[-1] ^= 64
    (run.folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match=r"model\.safetensors was altered"):
        export_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- ELECTRA: two parts in one run --------------------------------------------------------------------


REPLACED = {"kind": "replaced", "generator_share": 0.5, "generator_heads": 2}


@pytest.mark.parametrize("narrow", [8, None])
def test_both_parts_of_electra(narrow: int | None, tmp_path: Path) -> None:
    tokenizer = reference.byte_tokenizer()
    recipe = recipe_of({**BERT, "embedding_width": narrow}, REPLACED, tokenizer.vocab)
    run, learner = finished(tmp_path / "run", recipe, tokenizer)
    assert (run.folder / "generator" / "model.safetensors").is_file()
    assert equal(load_learner(run)[:2], learner)
    export_run(run, tmp_path / "out")
    assert equal(load_learner(import_folder(tmp_path / "out", tmp_path / "again"))[:2], learner)

    given = reference.inputs(segments=True)
    real = given.mask.bool()
    judge = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    writer = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "out" / "generator", attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        model, objective = learner["model"], learner["objective"]
        found = objective.discriminator(model(given.packed).last)
        theirs = reference.run_reference(judge, given, {}).logits[real]
        torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-5)
        theirs = reference.run_reference(writer, given, {}).logits[real]
        found = objective.logits(model, objective.hidden_for_logits(model, given.packed))
        torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-5)


def test_a_discriminator_alone_and_a_pair_that_does_not_share_its_embedding(tmp_path: Path) -> None:
    case = Case("ElectraConfig", "ElectraForPreTraining", {**reference.NARROW, "hidden_size": 64})
    folder = reference.save(reference.reference_model(case), tmp_path / "judge", case)
    taken = hub.read_checkpoint(folder)
    assert any(name.startswith("objective.generator.attention.0") for name in taken.untrained)
    run = import_folder(folder, tmp_path / "run")  # a discriminator alone: it goes back as it came
    assert not (run.folder / "generator").exists()
    assert load_file(run.folder / "model.safetensors").keys() == load_file(folder / "model.safetensors").keys()
    load_learner(run)
    small = CASES["electra generator"]
    reference.save(reference.reference_model(small), folder / "generator", small)
    with pytest.raises(UserError, match=r"the generator's embedding\.tokens\.weight differs from the discriminator's"):
        hub.read_checkpoint(folder)


def test_the_discriminator_by_its_table_alone(tmp_path: Path) -> None:
    """ElectraForPreTraining through the family's table, without the objective."""
    case = Case("ElectraConfig", "ElectraForPreTraining", reference.NARROW)
    there = reference.reference_model(case)
    folder = reference.save(there, tmp_path / "judge", case)
    family = electra.DISCRIMINATOR
    settings = family.parse_config(json.loads((folder / "config.json").read_text()), "config.json")
    tensors = load_file(folder / "model.safetensors")
    ours = hub.mapping.to_own_names(family.table, settings, tensors, {}, "the file")
    model = transformer.build(settings).eval()
    head = Detector(model, weight=1.0, everywhere=True)
    model.load_state_dict({name[6:]: one for name, one in ours.items() if name.startswith("model.")})
    start = "objective.discriminator."
    head.load_state_dict({name.removeprefix(start): one for name, one in ours.items() if name.startswith(start)})
    given = reference.inputs(segments=True)
    theirs = reference.run_reference(there, given, {}).logits[given.mask.bool()]
    torch.testing.assert_close(head(model(given.packed).last), theirs, rtol=1e-5, atol=1e-5)
    assert hub.mapping.to_published_names(family.table, settings, ours, "the model").keys() == tensors.keys()
