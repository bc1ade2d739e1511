"""The modern recipes as transformers sees them; and the token that a Llama's text stands behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors, trainers

import etude
from etude import hub
from etude.errors import UserError
from etude.hub.exporter import export_run
from etude.hub.families import match_recipe
from etude.hub.importer import import_folder
from etude.hub.run_weights import load_learner
from etude.recipes.schema import Recipe
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.hub import published_models as reference
from tests.hub.published_models import equal, finished

transformers = pytest.importorskip("transformers", reason="what is written is opened by the package transformers")
transformers.logging.set_verbosity_error()

SMALL = {
    "model.layers": 4,
    "model.width": 32,
    "model.heads": 4,
    "model.feedforward": 40,
    "model.context": reference.CONTEXT,
}
RECIPES = {
    "encoder-modern": (SMALL | {"objective.length": 16, "model.window": 3}, "ModernBertForMaskedLM"),
    "encoder-modern-toy": ({}, "ModernBertForMaskedLM"),
    "decoder-modern": (SMALL, "LlamaForCausalLM"),
    "decoder-modern-toy": ({}, "LlamaForCausalLM"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_modern_recipe_is_the_same_model_there(name: str, tmp_path: Path) -> None:
    changes, architecture = RECIPES[name]
    tokenizer = reference.byte_tokenizer()
    recipe = Recipe.load(name, changes).resolve(vocab=tokenizer.vocab)
    run, learner = finished(tmp_path / "run", recipe, tokenizer)
    published = export_run(run, tmp_path / "out")
    assert published.architecture == architecture
    opener = getattr(transformers, published.auto_class)
    there, info = opener.from_pretrained(tmp_path / "out", output_loading_info=True, attn_implementation="eager")
    assert type(there).__name__ == architecture
    assert not info["missing_keys"] and not info["unexpected_keys"]
    given = reference.inputs(segments=False)
    with torch.no_grad():
        theirs = reference.run_reference(there.eval(), given, {}).logits[given.mask.bool()]
        found = reference.logits(learner, given.packed)
    torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-5)

    again = import_folder(tmp_path / "out", tmp_path / "again")
    assert equal(load_learner(again)[:2], learner)
    if recipe.objective_kind == "causal":
        assert again.recipe.objective.documents == recipe.objective.documents == "split"


def test_the_encoder_at_full_size_is_modernbert_base() -> None:
    """What is written is what transformers takes for ModernBERT-base when it is told nothing."""
    recipe = Recipe.load("encoder-modern").resolve()
    family, why = match_recipe(recipe)
    assert family is not None, why
    written = transformers.ModernBertConfig(**family.make_config(recipe.model, {"masked"})).to_dict()
    expected = transformers.ModernBertConfig().to_dict()
    others = {"architectures", "dtype", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"}
    others |= {key for key in expected if key.endswith("_token_id")}
    assert {key: value for key, value in written.items() if key not in others} == {
        key: value for key, value in expected.items() if key not in others
    }


# --- how a text begins --------------------------------------------------------------------------------

TEXT = "one two three"


def llama_tokenizer(template: str | None) -> Tokenizer:
    """As Llama's: <unk>, <s> and </s> first; the step that puts <s> before a text is part of tokenizer.json."""
    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", "<odd>"]
    backend.train_from_iterator(
        ["one two three four five six"] * 20, trainers.BpeTrainer(vocab_size=60, special_tokens=special)
    )
    if template is not None:
        named = [(name, backend.token_to_id(name)) for name in special]
        step = processors.TemplateProcessing(single=template, special_tokens=named)
        backend.post_processor = processors.Sequence([processors.ByteLevel(), step])  # as Llama 3 has it
    return Tokenizer(backend.to_str())


def llama(folder: Path, template: str | None) -> tuple[Any, Any]:
    """A folder with a random Llama, opened by transformers: model and tokenizer."""
    tokenizer = llama_tokenizer(template)
    values = {**reference.ENCODER, "vocab_size": tokenizer.vocab, "tie_word_embeddings": True}
    model = reference.reference_model(reference.Case("LlamaConfig", "LlamaForCausalLM", values))
    model.save_pretrained(folder)
    tokenizer.save(folder)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("template", [None, "<s> $A", "<s> $A </s>"])
def test_a_text_begins_as_the_tokenizer_says(template: str | None, tmp_path: Path) -> None:
    model, there = llama(tmp_path / "llama", template)
    here = etude.load(tmp_path / "llama")
    ids = here.tokenizer.encode(TEXT).ids
    begun = template is not None
    assert here.objective.start_token == (1 if begun else None)
    framed = here.frame(ids).tolist()
    assert framed == ([1] if begun else []) + ids.tolist()
    assert there(TEXT).input_ids == framed + ([2] if template and "</s>" in template else [])

    written = here.generate(TEXT, 6, temperature=0, past_end=True)
    assert isinstance(written, etude.inference.generation.Continuation)
    theirs = model.generate(torch.tensor([framed]), max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert list(written.ids) == theirs[0, len(framed) :].tolist()

    read = [1, *ids.tolist()] if begun else [2, *ids.tolist()]  # behind something: every token is scored
    labels = torch.tensor([read])
    assert here.perplexity(TEXT).nats_per_token == pytest.approx(model(labels, labels=labels).loss.item(), rel=1e-5)


def test_how_a_text_begins_travels(tmp_path: Path) -> None:
    llama(tmp_path / "llama", "<s> $A")
    run = import_folder(tmp_path / "llama", tmp_path / "run")
    export_run(run, tmp_path / "out")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert there(TEXT).input_ids[0] == there.bos_token_id == 1 and there.eos_token_id == 2
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert import_folder(tmp_path / "out", tmp_path / "again").recipe.objective.start


def test_a_token_that_is_no_start_is_refused(tmp_path: Path) -> None:
    llama(tmp_path / "llama", "<odd> $A")
    with pytest.raises(UserError, match=r"puts <odd> before every text"):
        hub.read_checkpoint(tmp_path / "llama")


@pytest.mark.parametrize("documents", ["join", "split"])
def test_a_decoder_of_split_documents_gets_end_of_text_there_too(documents: str, tmp_path: Path) -> None:
    tokenizer = reference.byte_tokenizer()
    recipe = Recipe.load("decoder-modern", SMALL | {"objective.documents": documents}).resolve(vocab=tokenizer.vocab)
    run, _ = finished(tmp_path / "run", recipe, tokenizer)
    export_run(run, tmp_path / "out")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    here = etude.load(tmp_path / "run")
    assert there(TEXT).input_ids == here.frame(np.asarray(tokenizer.encode(TEXT).ids)).tolist()
    assert import_folder(tmp_path / "out", tmp_path / "again").recipe.objective.documents == documents


@pytest.mark.parametrize("objective", [{"start": False}, {"start": True}, {"start": False, "documents": "split"}])
def test_a_decoder_trained_with_a_published_tokenizer_begins_there_as_here(
    objective: dict[str, Any], tmp_path: Path
) -> None:
    """The tokenizer puts <s> before a text; whether the model was trained so is a setting of its objective."""
    tokenizer = llama_tokenizer("<s> $A")
    settings = SMALL | {f"objective.{name}": value for name, value in objective.items()}
    recipe = Recipe.load("decoder-modern", settings).resolve(vocab=tokenizer.vocab)
    run, _ = finished(tmp_path / "run", recipe, tokenizer)
    export_run(run, tmp_path / "out")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    here = etude.load(tmp_path / "run")
    assert there(TEXT).input_ids == here.frame(np.asarray(tokenizer.encode(TEXT).ids)).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("base", "is_read"), [(10_000.0, True), (11_000.0, False)])
def test_frequencies_in_old_llama_files_are_those_computed_here(
    tmp_path: Path, base: float, is_read: bool, dtype: torch.dtype
) -> None:
    """Old versions of transformers wrote `rotary_emb.inv_freq` of each layer, as they computed it."""
    tokenizer = reference.byte_tokenizer()
    recipe = Recipe.load("decoder-modern", SMALL).resolve(vocab=tokenizer.vocab)
    run, learner = finished(tmp_path / "run", recipe, tokenizer)
    export_run(run, tmp_path / "out")
    (tmp_path / "out" / "checksums.json").unlink()
    file = tmp_path / "out" / "model.safetensors"
    size = SMALL["model.width"] // SMALL["model.heads"]
    frequencies = (1.0 / base ** (torch.arange(0, size, 2).float() / size)).to(dtype)
    names = [f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(SMALL["model.layers"])]
    save_file(load_file(file) | {name: frequencies.clone() for name in names}, file, {"format": "pt"})
    if is_read:
        assert equal(load_learner(import_folder(tmp_path / "out", tmp_path / "again"))[:2], learner)
        return
    with pytest.raises(UserError, match=r"layers\.0\.self_attn\.rotary_emb\.inv_freq is a buffer with other values"):
        import_folder(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()
