"""Reading folders: strict, old formats too, heads that are missing, and what is refused by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from etude import hub
from etude.errors import UserError
from etude.hub import elmo_files, ernie_files, openai_gpt, sentencepiece_files
from etude.hub.importer import import_folder, write_run
from etude.hub.run_weights import load_learner
from etude.hub.weights import DOWNLOAD_PATTERNS
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.hub import published_models as reference
from tests.hub.published_models import CASES, Case

transformers = pytest.importorskip("transformers", reason="the folders are written by the package transformers")
transformers.logging.set_verbosity_error()

Change = Callable[[dict[str, Tensor]], None]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            case = CASES[name]
            made[name] = reference.save(reference.reference_model(case), tmp_path_factory.mktemp("folder") / "m", case)
        return made[name]

    return folder


def changed(folder: Path, out: Path, change: Change | None = None, config: dict[str, Any] | None = None) -> Path:
    """A copy of a folder with other tensors or other keys in its config.json."""
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    tensors = load_file(out / "model.safetensors")
    if change is not None:
        change(tensors)
        save_file(tensors, out / "model.safetensors")
    if config is not None:
        values = json.loads((out / "config.json").read_text()) | config
        (out / "config.json").write_text(json.dumps(values))
    return out


def same(one: hub.ImportedModel, other: hub.ImportedModel) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )


def test_heads_of_tasks_are_refused_by_the_name_of_their_class(folders: Any, tmp_path: Path) -> None:
    def add_head(tensors: dict[str, Tensor]) -> None:
        tensors |= {"classifier.weight": torch.ones(2, 32), "classifier.bias": torch.ones(2)}

    tuned = {"architectures": ["BertForSequenceClassification"]}
    with pytest.raises(UserError, match=r"classifier\.weight is unexpected\. It is of the class Bert.*take the run"):
        hub.read_checkpoint(changed(folders("bert"), tmp_path / "tuned", add_head, tuned))
    for kind in ("etude_run", "etude_readout"):
        with pytest.raises(UserError, match=r"with a class of its own, for transformers\. Heads of tasks are not read"):
            hub.read_checkpoint(changed(folders("bert"), tmp_path / kind, config={"model_type": kind}))


def test_a_missing_an_added_and_a_misshapen_tensor_are_named(folders: Any, tmp_path: Path) -> None:
    bert = folders("bert")
    key = "bert.encoder.layer.1.attention.self.key.weight"
    with pytest.raises(UserError, match=rf"{key} is missing"):
        hub.read_checkpoint(changed(bert, tmp_path / "a", lambda tensors: tensors.pop(key)))
    with pytest.raises(UserError, match=r"classifier\.weight is unexpected"):
        hub.read_checkpoint(
            changed(bert, tmp_path / "b", lambda tensors: tensors.update({"classifier.weight": torch.ones(2)}))
        )
    with pytest.raises(UserError, match=rf"{key} has the shape \(32, 31\), and \(32, 32\) is expected"):
        hub.read_checkpoint(changed(bert, tmp_path / "c", lambda tensors: tensors.update({key: torch.ones(32, 31)})))
    with pytest.raises(UserError, match=r"word_embeddings\.weight has the shape \(60, 32\), and \(61, 32\)"):
        hub.read_checkpoint(changed(bert, tmp_path / "d", config={"vocab_size": 61}))


def test_tied_copies_must_be_equal(folders: Any, tmp_path: Path) -> None:
    gpt2 = folders("gpt2")
    table = load_file(gpt2 / "model.safetensors")["transformer.wte.weight"]
    tied = changed(gpt2, tmp_path / "a", lambda tensors: tensors.update({"lm_head.weight": table.clone()}))
    assert same(hub.read_checkpoint(tied), hub.read_checkpoint(gpt2))
    with pytest.raises(UserError, match=r"lm_head\.weight differs from transformer\.wte\.weight"):
        hub.read_checkpoint(
            changed(gpt2, tmp_path / "b", lambda tensors: tensors.update({"lm_head.weight": table + 1}))
        )
    with pytest.raises(UserError, match=r"lm_head\.weight is missing, and config\.json says that it is not tied"):
        hub.read_checkpoint(changed(gpt2, tmp_path / "c", config={"tie_word_embeddings": False}))


def test_files_of_the_first_years_are_read(folders: Any, tmp_path: Path) -> None:
    """No prefix, TensorFlow's names of norms, buffers among the parameters, half precision."""

    def age_bert(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            one = tensors.pop(name)
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[name.removeprefix("bert.")] = one
        tensors["embeddings.position_ids"] = torch.arange(reference.CONTEXT)[None]

    def age_gpt2(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for layer in range(3):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(24, 24, dtype=torch.uint8).tril()[None, None]
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    assert same(
        hub.read_checkpoint(changed(folders("bert"), tmp_path / "a", age_bert)), hub.read_checkpoint(folders("bert"))
    )
    assert same(
        hub.read_checkpoint(changed(folders("gpt2"), tmp_path / "b", age_gpt2)), hub.read_checkpoint(folders("gpt2"))
    )
    half = changed(folders("gpt2"), tmp_path / "c", lambda t: t.update({name: one.half() for name, one in t.items()}))
    taken, full = hub.read_checkpoint(half), hub.read_checkpoint(folders("gpt2"))
    assert {one.dtype for one in taken.tensors.values()} == {torch.float32}
    assert all(torch.allclose(one, full.tensors[name], atol=1e-3) for name, one in taken.tensors.items())


def test_bin_files_and_shards(folders: Any, tmp_path: Path) -> None:
    whole = hub.read_checkpoint(folders("bert"))
    old = changed(folders("bert"), tmp_path / "old")
    tensors = load_file(old / "model.safetensors")
    (old / "model.safetensors").unlink()
    torch.save(tensors, old / "pytorch_model.bin")
    assert same(hub.read_checkpoint(old), whole)
    torch.save(tensors, old / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert same(hub.read_checkpoint(old), whole)

    (old / "pytorch_model.bin").unlink()
    names = sorted(tensors)
    shards = {"model-1-of-2.safetensors": names[:10], "model-2-of-2.safetensors": names[10:]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, old / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (old / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same(hub.read_checkpoint(old), whole)
    (old / "model-2-of-2.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-2-of-2\.safetensors.*no such file"):
        hub.read_checkpoint(old)


class Harmful:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("harm-was-done"),)


def test_a_bin_file_runs_nothing(folders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old = changed(folders("bert"), tmp_path / "old")
    (old / "model.safetensors").unlink()
    torch.save({"bert.embeddings.LayerNorm.bias": Harmful()}, old / "pytorch_model.bin")
    with pytest.raises(UserError, match="does not hold plain tensors alone"):
        hub.read_checkpoint(old)
    assert not (tmp_path / "harm-was-done").exists()
    (old / "pytorch_model.bin").write_bytes(b"no zip and no pickle")
    with pytest.raises(UserError, match=r"pytorch_model\.bin does not hold plain tensors"):
        hub.read_checkpoint(old)


def test_an_encoder_without_heads_keeps_fresh_ones_and_says_so(tmp_path: Path) -> None:
    case = Case("BertConfig", "BertModel", reference.ENCODER)
    there = reference.reference_model(case)
    taken = hub.read_checkpoint(reference.save(there, tmp_path / "bare", case))
    assert taken.untrained == {
        "objective.head." + n for n in ("dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias")
    }
    assert "objective.head.dense.weight" in taken.notes[0]
    assert taken.recipe.model.pooler
    run = import_folder(tmp_path / "bare", tmp_path / "run")
    model, objective, _ = load_learner(run)
    assert bool((objective.head.norm.weight == 1).all())  # as it begins
    assert json.loads((run.folder / "config.json").read_text())["architectures"] == ["BertModel"]
    given = reference.inputs(segments=True)
    theirs = reference.run_reference(there, given, {})
    with torch.no_grad():
        last = model(given.packed).last
        torch.testing.assert_close(last, theirs.last_hidden_state[given.mask.bool()], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model.pool(last, given.packed.layout), theirs.pooler_output, rtol=1e-5, atol=1e-5)
        again = transformers.AutoModel.from_pretrained(run.folder, attn_implementation="eager").eval()
        found = reference.run_reference(again, given, {})
    torch.testing.assert_close(found.pooler_output, theirs.pooler_output, rtol=1e-6, atol=1e-6)


def test_padding_of_the_vocabulary_is_trimmed_and_told(tmp_path: Path) -> None:
    case = Case("BertConfig", "BertForMaskedLM", {**reference.ENCODER, "vocab_size": 64})
    there = reference.reference_model(case)
    taken = hub.read_checkpoint(reference.save(there, tmp_path / "padded", case))
    assert taken.recipe.model.vocab == 60
    assert taken.notes == ("left out 4 rows of the vocabulary (64 to 60): the tokenizer has no such tokens",)
    given = reference.inputs(segments=True)
    theirs = reference.run_reference(there, given, {}).logits[given.mask.bool()]
    torch.testing.assert_close(
        reference.logits(reference.ours(taken), given.packed), theirs[:, :60], rtol=1e-5, atol=1e-5
    )

    (tmp_path / "padded" / "vocab.txt").write_text("\n".join([*reference.WORDS, *"abcdefgh"]))
    with pytest.raises(UserError, match="the tokenizer has 68 tokens, and the model has rows for 64"):
        hub.read_checkpoint(tmp_path / "padded")


@pytest.mark.parametrize(("end", "note"), [
    (5, ()),
    ([3, 5], ()),
    (50256, ()),  # the default of its class, beyond this vocabulary
    (3, ("ends its texts with [SEP] (eos_token_id=3), and here [EOT] ends one: generation goes on behind it",)),
])  # fmt: skip
def test_another_end_of_a_text_is_told(folders: Any, tmp_path: Path, end: Any, note: tuple[str, ...]) -> None:
    assert hub.read_checkpoint(changed(folders("gpt2"), tmp_path / "ends", config={"eos_token_id": end})).notes == note


@pytest.mark.parametrize("names", [None, [], -1, {"a": 1}])
def test_a_model_without_the_name_of_its_class_is_read(folders: Any, tmp_path: Path, names: Any) -> None:
    taken = hub.read_checkpoint(changed(folders("gpt2"), tmp_path / "nameless", config={"architectures": names}))
    assert taken.architecture == "GPT2LMHeadModel"


@pytest.mark.parametrize("config", [None, {"do_lower_case": True}, {"do_lower_case": False}])
def test_a_corpus_has_the_tokenizer_of_the_folder_it_was_prepared_with(
    folders: Any, tmp_path: Path, config: dict[str, Any] | None
) -> None:
    """etude prepare --tokenizer FOLDER, then etude pretrain FOLDER: also where it holds a vocab.txt alone."""
    folder = changed(folders("bert"), tmp_path / "words")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.open(folder).fingerprint == hub.read_checkpoint(folder).tokenizer.fingerprint


def test_the_card_names_where_a_model_came_from(folders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = changed(folders("gpt2"), tmp_path / "toy model")
    monkeypatch.chdir(folder)
    card = (import_folder(".", tmp_path / "here").folder / "README.md").read_text(encoding="utf-8")
    assert "imported from `toy model`" in card
    run = write_run(hub.read_checkpoint(folder), "hf:someone/gpt2", tmp_path / "there")
    assert "imported from `hf:someone/gpt2`" in (run.folder / "README.md").read_text(encoding="utf-8")


REFUSED = [
    ("bert", {"is_decoder": True}, "is_decoder=True is not supported"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ("bert", {"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu' is not supported"),
    ("bert", {"num_attention_heads": 5}, "heads=5 do not divide width=32"),
    ("bert", {"model_type": "roberto"}, "models of the type 'roberto' are not supported"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups=2 of 3 layers"),
    ("albert", {"inner_group_num": 2}, "inner_group_num=2 is not supported"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    ("modernbert", {"mlp_bias": False}, "mlp_bias=False"),
    ("modernbert", {"layer_types": ["sliding_attention"] * 3}, "layer_types must be dense at layers 0"),
    ("llama", {"num_key_value_heads": 2}, "num_key_value_heads=2 for 4 heads"),
    ("llama", {"head_dim": 16}, "head_dim=16"),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rotary positions of the type 'yarn'"),
    # a head with another activation than the layers would answer otherwise
    ("modernbert", {"classifier_activation": "tanh"}, "classifier_activation='tanh' is not supported"),
    ("bert", {"hidden_act": ["gelu"]}, r"hidden_act=\['gelu'\] is not supported"),
    ("gpt2", {"n_embd": None}, "n_embd=None is no whole number"),
    ("modernbert", {"num_hidden_layers": 10**12}, "num_hidden_layers=1000000000000 is no whole number"),
    ("modernbert", {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers=0 is no whole number"),
    ("modernbert", {"layer_types": 3}, "config.json describes no model"),
    ("llama", {"num_attention_heads": 0}, "num_attention_heads=0 is no whole number"),
    ("llama", {"rope_parameters": 7}, "config.json describes no model"),
]


@pytest.mark.parametrize(("name", "config", "message"), REFUSED, ids=lambda value: str(value)[:24])
def test_what_has_no_counterpart_is_refused_by_name(
    folders: Any, tmp_path: Path, name: str, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        hub.read_checkpoint(changed(folders(name), tmp_path / "changed", config=config))


def test_a_discriminator_with_another_activation_than_gelu_is_refused(tmp_path: Path) -> None:
    """Its head there has that of its layers; the one here has the generator's, which is gelu there in any model."""
    case = Case("ElectraConfig", "ElectraForPreTraining", {**reference.NARROW, "hidden_act": "relu"})
    folder = reference.save(reference.reference_model(case), tmp_path / "relu", case)
    with pytest.raises(UserError, match=r"hidden_act='relu' is not supported\. Known: gelu, gelu_python"):
        hub.read_checkpoint(folder)


def test_an_encoder_without_heads_has_no_output_layer_to_miss(tmp_path: Path) -> None:
    case = Case("BertConfig", "BertModel", {**reference.ENCODER, "tie_word_embeddings": False})
    taken = hub.read_checkpoint(reference.save(reference.reference_model(case), tmp_path / "bare", case))
    assert "objective.head.bias" in taken.untrained


def test_albert_with_a_wide_embedding_and_a_real_projection_is_refused(tmp_path: Path) -> None:
    case = Case("AlbertConfig", "AlbertForMaskedLM", {**reference.ENCODER, "embedding_size": 32})
    folder = reference.save(reference.reference_model(case), tmp_path / "wide", case)
    with pytest.raises(UserError, match=r"embedding_hidden_mapping_in\.weight has other values"):
        hub.read_checkpoint(folder)


def test_folders_that_are_not_whole(folders: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no folder .*nowhere"):
        hub.read_checkpoint(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"holds no config\.json"):
        hub.read_checkpoint(empty)
    bare = changed(folders("bert"), tmp_path / "bare")
    (bare / "vocab.txt").unlink()
    (bare / "spiece.model").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds no tokenizer\. A SentencePiece file alone"):
        hub.read_checkpoint(bare)
    (bare / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no weights"):
        hub.read_checkpoint(bare)
    cut = changed(folders("bert"), tmp_path / "cut")
    whole = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"model\.safetensors is not a whole safetensors file"):
        hub.read_checkpoint(cut)


def test_a_hub_id_is_fetched_or_says_what_to_install(folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, "*.safetensors" in allow_patterns))
        return str(folders("gpt2"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    taken = hub.read_checkpoint("hf:someone/gpt2")
    assert taken.recipe.name == "gpt2"  # not that of the folder, which is a commit
    assert same(taken, hub.read_checkpoint(folders("gpt2")))
    assert asked == [("someone/gpt2", True)]
    with pytest.raises(UserError, match="hf:org/name"):
        hub.read_checkpoint("someone/gpt2")  # a mistyped folder is not told to anybody
    assert len(asked) == 1
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"needs huggingface_hub: pip install 'etude\[hub\]', or download the folder"):
        hub.read_checkpoint("hf:someone/gpt2")


def test_all_files_that_a_reader_needs_are_downloaded() -> None:
    names = [
        sentencepiece_files.SOURCE,
        sentencepiece_files.TARGET,
        sentencepiece_files.VOCABULARY,
        ernie_files.CONFIG,
        ernie_files.WEIGHTS,
        ernie_files.VECTORS,
    ]
    names += ["entity2id.txt", "tokenizer.json", "merges.txt", "generator/model.safetensors", "params_0.npy"]
    names += [elmo_files.OPTIONS, elmo_files.WEIGHTS, openai_gpt.MERGES, openai_gpt.TOKENS]
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in DOWNLOAD_PATTERNS)] == []


# --- OpenAI's release of GPT-1 ------------------------------------------------------------------------


def release(folder: Path, model: Any, vocab: list[str], merges: list[str]) -> Path:
    """A folder as openai/finetune-transformer-lm has it: arrays in one row, cut into ten files."""
    folder.mkdir()
    state = {name.removeprefix("transformer."): one for name, one in model.state_dict().items()}
    tensors = [state["positions_embed.weight"], state["tokens_embed.weight"]]
    for layer in range(model.config.n_layer):
        for name in ("attn.c_attn", "attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2"):
            weight = state[f"h.{layer}.{name}.weight"]
            tensors += [weight[None] if weight.dim() == 2 else weight, state[f"h.{layer}.{name}.bias"]]
    (folder / "params_shapes.json").write_text(json.dumps([list(one.shape) for one in tensors]))
    flat = torch.cat([one.reshape(-1) for one in tensors]).numpy()
    for number, piece in enumerate(np.array_split(flat, 10)):
        np.save(folder / f"params_{number}.npy", piece)
    (folder / "encoder_bpe_40000.json").write_text(json.dumps({token: id for id, token in enumerate(vocab)}))
    (folder / "vocab_40000.bpe").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return folder


@pytest.fixture(scope="module")
def gpt1() -> tuple[Any, list[str], list[str]]:
    letters = list("abcdefghijklmnopqrstuvwxyz")
    vocab = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), "th", "the</w>", "ca", "cat</w>"]
    merges = ["t h", "th e</w>", "c a", "ca t</w>"]
    values = {"vocab_size": len(vocab), "n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": reference.CONTEXT}
    return reference.reference_model(Case("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", values)), vocab, merges


def test_the_arrays_of_openai(gpt1: Any, tmp_path: Path) -> None:
    model, vocab, merges = gpt1
    taken = hub.read_checkpoint(release(tmp_path / "model", model, vocab, merges))
    assert (taken.recipe.model.heads, taken.recipe.model.layers) == (2, 2)
    assert taken.recipe.model.embedding_dropout_on == "table"
    assert [taken.tokenizer.token(id) for id in taken.tokenizer.encode("The cat").ids] == ["the</w>", "cat</w>"]
    given = reference.inputs(segments=False, vocab=len(vocab))
    theirs = reference.run_reference(model, given, {}).logits[given.mask.bool()]
    torch.testing.assert_close(reference.logits(reference.ours(taken), given.packed), theirs, rtol=1e-5, atol=1e-5)


def test_faults_of_a_release_are_named(gpt1: Any, tmp_path: Path) -> None:
    folder = release(tmp_path / "model", *gpt1)
    objects = np.array([None, {}], dtype=object)
    last = np.load(folder / "params_9.npy")
    np.save(folder / "params_9.npy", objects, allow_pickle=True)
    with pytest.raises(UserError, match="is no array"):
        hub.read_checkpoint(folder)
    np.save(folder / "params_9.npy", last[:-3])
    with pytest.raises(UserError, match=r"the arrays hold \d+ numbers, and params_shapes\.json asks for"):
        hub.read_checkpoint(folder)
    (folder / "params_4.npy").unlink()
    with pytest.raises(UserError, match="without a gap"):
        hub.read_checkpoint(folder)
    (folder / "params_shapes.json").write_text("[[24, 128], [57, 128], [1, 2]]")
    with pytest.raises(UserError, match="lists 3 tensors"):
        hub.read_checkpoint(folder)


@pytest.mark.parametrize("shape", [[], [2, 768, 8], [1, 1, 1, 8]])
def test_shapes_of_another_release_are_named(tmp_path: Path, shape: list[int]) -> None:
    shapes = [[8, 64], [100, 64], *([[64]] * 11), shape]
    (tmp_path / "params_shapes.json").write_text(json.dumps(shapes))
    np.save(tmp_path / "params_0.npy", np.zeros(sum(int(np.prod(sizes)) for sizes in shapes), np.float32))
    with pytest.raises(UserError, match=r"params_shapes\.json is not a list of shapes of GPT-1"):
        hub.read_checkpoint(tmp_path)
