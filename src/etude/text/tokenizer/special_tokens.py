"""Special tokens: their roles, and their names in published and in trained tokenizers."""

from __future__ import annotations

from dataclasses import dataclass

TRAINED_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOT]")  # ids 0..5 of every trained tokenizer

# The names under which published tokenizers keep each role; the first that a vocabulary holds counts.
ROLES = {
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<PAD>"),
    "unknown": ("[UNK]", "<unk>", "<|unk|>", "<UNK>"),
    "start": ("[CLS]", "<s>", "<bos>", "<cls>", "<|startoftext|>", "<|begin_of_text|>", "_start_"),
    "separator": ("[SEP]", "</s>", "<sep>", "<|sep|>", "_delimiter_"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "end": ("[EOT]", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]"),
}


# The markers that GPT-1's fine-tuning adds (Radford et al. 2018, section 3.3), under the names of its released code.
TASK_MARKERS = {"task_start": "_start_", "task_delimiter": "_delimiter_", "extract": "_classify_"}


@dataclass(frozen=True)
class Specials:
    """The ids of special tokens by role; None where the tokenizer has no such token."""

    pad: int | None = None
    unknown: int | None = None
    start: int | None = None
    separator: int | None = None
    mask: int | None = None
    end: int | None = None
    task_start: int | None = None  # these three where a fine-tuning added them, all or none
    task_delimiter: int | None = None
    extract: int | None = None

    def ids(self) -> list[int]:
        """The distinct ids, ascending."""
        return sorted({role for role in vars(self).values() if role is not None})
