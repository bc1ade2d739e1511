"""How long a GPU computes on its part of a step: a model of the machine (roofline: Williams et al. 2009).

    products      matrix products, at PRODUCTS of the published peak
    attention     pairs of tokens that see each other, at ATTENTION of the peak; its backward pass takes five products
                  where the forward pass takes two (Dao et al. 2022)
    activations   what is kept for the backward pass crosses the memory PASSES times: written and read in the forward
                  pass, read again where its gradient is written, and that gradient read
    weights       what FSDP2 copies to gather weights and to reduce gradients, and what AdamW reads and writes

The last two run at MEMORY of the published bandwidth. What is computed again (`train.recompute`) counts once more. The
host is assumed to be ahead of the GPU. The four shares were set from steps measured on one H200 (docs/scale.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.nn.recompute import RecomputePolicy

PRODUCTS, ATTENTION, MEMORY = 0.7, 0.35, 0.8  # shares of published peaks that are assumed to be reached
PASSES = 4  # of an activation through the memory, two of them in the forward pass
# The part of a forward pass that the backward pass repeats: of an attention branch the products of query, key and
# value, 6 of a layer's 24 D^2, and attention itself
PRODUCTS_AGAIN = {"none": 0.0, "attention": 0.25, "all": 1.0}
ATTENTION_AGAIN = {"none": 0.0, "attention": 1.0, "all": 1.0}


@dataclass(frozen=True)
class TokenWork:
    """What a token takes in a forward pass, on average."""

    products: float  # FLOPs
    attention: float  # FLOPs, of the pairs that see each other
    activations: float  # bytes kept for the backward pass where nothing is computed again


def compute_seconds(work: TokenWork, tokens: float, peak: float, bandwidth: float, recompute: RecomputePolicy) -> float:
    """Return the seconds of forward and backward passes over `tokens`, by a GPU of this peak and bandwidth."""
    again = PRODUCTS_AGAIN[recompute]
    products = work.products * (3 + again) / (PRODUCTS * peak)
    attention = work.attention * (1 + 2.5 + ATTENTION_AGAIN[recompute]) / (ATTENTION * peak)
    activations = work.activations * (PASSES + 2 * again) / (MEMORY * bandwidth)
    return tokens * (products + attention + activations)


def weight_seconds(
    layers: int, root: int, shards: int, micro_batches: int, bandwidth: float, *, gathers_model: bool
) -> float:
    """Return the seconds in which weights and gradients are copied and updated; of so many parameters.

    Bytes of a parameter, where a share is read and written by one of `shards`:

        gathered    in bf16: cast 4 + 2 and copied 2 + 2, of which the cast is of the share; in float32: 4 + 4
        reduced     copied to one buffer of float32, 2 + 4 or 4 + 4; its share copied 4 + 4 and added up 4 + 4 + 4
        cast        where the whole model is gathered, by autocast: 4 + 2 for each micro-batch
        updated     norm 4, AdamW 28
    """
    total = layers + root
    if gathers_model:
        moved = total * (8 + 8 + 8 / shards) + micro_batches * total * (6 + (12 if micro_batches > 1 else 0))
    else:
        in_layers = 2 * (4 + 6 / shards) + 6 + 20 / shards
        in_root = 8 + 8 + 20 / shards
        moved = micro_batches * (layers * in_layers + root * in_root)
    return (moved + 32 * total / shards) / (MEMORY * bandwidth)
