"""The peers of the benchmark of training speed: the `transformers` Trainer, a plain loop and an expert's loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from training_speed.workloads import Work, peak_memory, timed


def peer_model(work: Work, dropout: float, attention: str = "sdpa") -> nn.Module:
    import transformers as tf

    shape: dict[str, Any] = {"vocab_size": work.vocab, "attn_implementation": attention}
    drop = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if work.peer == "bert":
        if work.small:
            shape |= {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
        return tf.BertForMaskedLM(tf.BertConfig(**shape, **drop))
    if work.peer == "albert":
        shape |= {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
        return tf.AlbertForMaskedLM(tf.AlbertConfig(**shape, **drop))
    if work.peer == "electra":
        return electra_peer(shape, drop)
    return tf.GPT2LMHeadModel(tf.GPT2Config(**shape, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout))


def electra_peer(shape: dict[str, Any], drop: dict[str, float]) -> nn.Module:
    """ELECTRA-small's joint step (Clark et al. 2020, section 2) with the model classes of transformers, as they are."""
    import transformers as tf

    small = {"embedding_size": 128, "num_hidden_layers": 12, **shape, **drop}
    narrow = {"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 256}
    wide = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}

    class Joint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = tf.ElectraForMaskedLM(tf.ElectraConfig(**small, **narrow))
            self.discriminator = tf.ElectraForPreTraining(tf.ElectraConfig(**small, **wide))
            self.generator.electra.embeddings = self.discriminator.electra.embeddings
            self.generator.generator_lm_head.weight = self.discriminator.electra.embeddings.word_embeddings.weight

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
            spoken = self.generator(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            masked = labels >= 0
            with torch.no_grad():
                noise = -torch.log(-torch.log(torch.rand_like(spoken.logits, dtype=torch.float32)))
                drawn = (spoken.logits + noise).argmax(-1)
            text = torch.where(masked, drawn, input_ids)
            replaced = (masked & (drawn != labels)).long()
            judged = self.discriminator(input_ids=text, attention_mask=attention_mask, labels=replaced)
            return tf.modeling_outputs.MaskedLMOutput(loss=spoken.loss + 50 * judged.loss)

    return Joint()


def peer_batch(work: Work, count: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(6, work.vocab, (count, work.length), generator=chance)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if work.peer != "gpt2":
        masked = torch.rand(ids.shape, generator=chance) < 0.15
        batch["labels"] = ids.masked_fill(~masked, -100)
        batch["input_ids"] = ids.masked_fill(masked, 4)
    return batch


def loop_speed(work: Work, dropout: float, steps: int, device: torch.device, precision: str) -> dict[str, float]:
    """The best a careful user writes: bf16 autocast, SDPA, torch.compile on a GPU, fused AdamW."""
    torch.manual_seed(0)
    model = peer_model(work, dropout).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    call = torch.compile(model) if device.type == "cuda" else model
    batch = {name: tensor.to(device) for name, tensor in peer_batch(work, work.batch).items()}

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = call(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds, memory = timed(step, steps, device)
    return {"tokens_per_second": work.tokens / seconds, "memory": memory}


def expert_loss(work: Work, model: nn.Module) -> Callable[..., torch.Tensor]:
    """Return the loss as an expert writes it: states of the trunk, and the output layer at the places that count."""
    cross_entropy = nn.functional.cross_entropy

    def causal(input_ids: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        states = model.transformer(input_ids=input_ids)[0][:, :-1]
        return cross_entropy(model.lm_head(states).flatten(0, 1).float(), labels[:, 1:].flatten())

    def bert(input_ids: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        states = model.bert(input_ids=input_ids)[0].flatten(0, 1)[places]
        return cross_entropy(model.cls(states).float(), labels.flatten()[places])

    def albert(input_ids: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        states = model.albert(input_ids=input_ids)[0].flatten(0, 1)[places]
        return cross_entropy(model.predictions(states).float(), labels.flatten()[places])

    def electra(input_ids: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        generator, wanted = model.generator, labels.flatten()[places]
        states = generator.electra(input_ids=input_ids)[0].flatten(0, 1)[places]
        logits = generator.generator_lm_head(generator.generator_predictions(states)).float()
        with torch.no_grad():
            drawn = (logits - torch.log(-torch.log(torch.rand_like(logits)))).argmax(-1)
            text = input_ids.flatten().index_copy(0, places, drawn).view_as(input_ids)
            replaced = torch.zeros_like(text.flatten(), dtype=torch.float32)
            replaced = replaced.index_copy(0, places, (drawn != wanted).float())
        judged = model.discriminator(input_ids=text).logits.flatten().float()
        detection = nn.functional.binary_cross_entropy_with_logits(judged, replaced)
        return cross_entropy(logits, wanted) + 50 * detection

    return {"gpt2": causal, "bert": bert, "albert": albert, "electra": electra}[work.peer]


def use_no_mask() -> str:
    """Register scaled-dot-product attention for which no mask is ever built; returns its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("sdpa_without_mask", sdpa_attention_forward)
    AttentionMaskInterface.register("sdpa_without_mask", lambda *_, **__: None)
    return "sdpa_without_mask"


def expert_speed(work: Work, dropout: float, steps: int, device: torch.device, precision: str) -> dict[str, float]:
    """What an expert writes who knows where the time goes."""
    torch.manual_seed(0)
    padded = replace(work, vocab=-(-work.vocab // 64) * 64)
    model = peer_model(padded, dropout, use_no_mask()).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss_of = expert_loss(work, model)
    call = torch.compile(loss_of) if device.type == "cuda" else loss_of
    batch = peer_batch(work, work.batch)
    places = (batch["labels"].flatten() >= 0).nonzero()[:, 0].to(device)
    input_ids, labels = batch["input_ids"].to(device), batch["labels"].to(device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = call(input_ids, labels, places)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds, memory = timed(step, steps, device)
    return {"tokens_per_second": work.tokens / seconds, "memory": memory}


def trainer_speed(work: Work, dropout: float, steps: int, device: torch.device, precision: str) -> dict[str, float]:
    import transformers as tf

    data = peer_batch(work, work.batch)
    examples = [{name: tensor[i] for name, tensor in data.items()} for i in range(work.batch)]
    warm, stamps = 5, []

    class Clock(tf.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (warm, warm + steps):
                if device.type == "cuda":
                    torch.cuda.synchronize()
                stamps.append(time.perf_counter())

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        arguments = tf.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=work.batch,
            bf16=precision == "bf16",
            max_steps=warm + steps,
            report_to=[],
            save_strategy="no",
            logging_steps=10**6,
            dataloader_num_workers=8 if device.type == "cuda" else 0,
            use_cpu=device.type == "cpu",
            disable_tqdm=True,
        )
        endless = examples * (warm + steps)
        tf.Trainer(model=peer_model(work, dropout), args=arguments, train_dataset=endless, callbacks=[Clock()]).train()
    return {"tokens_per_second": work.tokens * steps / (stamps[1] - stamps[0]), "memory": peak_memory(device)}
