"""The Python file that stands beside an exported readout, so that `transformers` can open it (hub/readout.py)."""

from __future__ import annotations

FILE_NAME = "modeling_readout.py"

CODE = '''"""An encoder of transformers under a linear head that reads pooled hidden states of chosen layers.

    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    model = AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)
    probabilities = model(**tokenizer(["a text"], return_tensors="pt")).logits.softmax(-1)
"""

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput


class ReadoutConfig(PretrainedConfig):
    model_type = "etude_readout"

    def __init__(
        self, encoder=None, layers=None, layer_weights=None, pooling="mean", reading="joint", scale=1.0, vector=0,
        hidden=0, **others,
    ):
        self.encoder = encoder or {}  # the config of the encoder
        self.layers = layers  # numbers of the layers that are read, 0 the embedding; None: the last
        self.layer_weights = layer_weights  # of their sum; None: side by side
        self.pooling = pooling  # mean, start, last, max
        self.reading = reading  # joint, or apart: the two texts of a pair are read alone
        self.scale = scale  # of the pooled vector
        self.vector = vector  # width of what the head reads
        self.hidden = hidden  # width of a layer with a ReLU before the last; 0: none
        super().__init__(**others)


class Readout(PreTrainedModel):
    config_class = ReadoutConfig
    base_model_prefix = "encoder"

    def __init__(self, config):
        super().__init__(config)
        values = dict(config.encoder)
        self.encoder = AutoModel.from_config(AutoConfig.for_model(values.pop("model_type"), **values))
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # nobody reads it
        self.hidden = nn.Linear(config.vector, config.hidden) if config.hidden else None
        self.classifier = nn.Linear(config.hidden or config.vector, config.num_labels)
        self.post_init()

    def states(self, input_ids, attention_mask, token_type_ids):
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        outputs = self.encoder(**inputs, output_hidden_states=True, return_dict=True)
        if self.config.layers is None:
            return outputs.last_hidden_state
        chosen = [outputs.hidden_states[number] for number in self.config.layers]
        if self.config.layer_weights is None:
            return torch.cat(chosen, dim=-1)
        return sum(weight * state for weight, state in zip(self.config.layer_weights, chosen))

    def head(self, vectors):
        return self.classifier(vectors if self.hidden is None else torch.relu(self.hidden(vectors)))


class ReadoutForSequenceClassification(Readout):
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, **others):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if self.config.reading == "apart":
            input_ids, attention_mask = self.split_pairs(input_ids, attention_mask, token_type_ids)
            token_type_ids = torch.zeros_like(input_ids)
        states = self.states(input_ids, attention_mask, token_type_ids)
        vectors = self.config.scale * self.pool(states, attention_mask)
        if self.config.reading == "apart":
            first, second = vectors[0::2], vectors[1::2]
            vectors = torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
        logits = self.head(vectors)
        return SequenceClassifierOutput(loss=self.loss_of(logits, labels), logits=logits)

    def split_pairs(self, input_ids, mask, types):
        """[CLS] a [SEP] b [SEP] of each pair as [CLS] a [SEP] and [CLS] b [SEP]."""
        rows = []
        for ids, kept, second in zip(input_ids, mask.bool(), types.bool()):
            rows += [ids[kept & ~second], torch.cat([ids[:1], ids[kept & second]])]
        lengths = torch.tensor([len(row) for row in rows], device=input_ids.device)
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        places = torch.arange(padded.shape[1], device=input_ids.device)
        return padded, (places < lengths[:, None]).long()

    def pool(self, states, mask):
        if self.config.pooling == "start":
            return states[:, 0]
        if self.config.pooling == "last":
            last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(1)
            return states[torch.arange(len(states), device=states.device), last]
        weights = mask[..., None].to(states.dtype)
        if self.config.pooling == "max":
            return states.masked_fill(weights == 0, float("-inf")).amax(1)
        return (states * weights).sum(1) / weights.sum(1)

    def loss_of(self, logits, labels):
        if labels is None:
            return None
        if self.config.num_labels == 1:
            return nn.functional.mse_loss(logits[:, 0], labels.to(logits.dtype))
        return nn.functional.cross_entropy(logits, labels)


class ReadoutForTokenClassification(Readout):
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, **others):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        logits = self.head(self.states(input_ids, attention_mask, token_type_ids))
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)
'''
