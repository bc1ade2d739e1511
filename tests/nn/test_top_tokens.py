"""The likeliest tokens, chosen from logits."""

from __future__ import annotations

import torch

from etude.nn import top_tokens
from etude.nn.top_tokens import LogProbs


def check_top(device: str, dtype: torch.dtype, rows: int, vocab: int, count: int) -> None:
    """Against log-probabilities in float64: tokens that are banned keep their share, and are never chosen."""
    torch.manual_seed(vocab)
    logits = (3 * torch.randn(rows, vocab)).to(device, dtype)
    banned = torch.zeros(vocab, dtype=torch.bool, device=device)
    banned[logits[0].argmax()] = banned[vocab - 1] = True
    for mask in (banned, None):
        values, tokens = LogProbs(logits, mask).topk(count)
        exact = logits.double().log_softmax(-1)
        exact = exact if mask is None else exact.masked_fill(mask, -torch.inf)
        torch.testing.assert_close(values.double(), exact.topk(count).values, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(exact.gather(1, tokens), values.double(), rtol=1e-5, atol=1e-5)
        assert all(len(set(row)) == count for row in tokens.tolist())
        assert tokens.dtype == torch.int64 and values.dtype == torch.float32


def check_no_numbers(device: str, vocab: int, count: int) -> None:
    """Where a model has become no number, tokens are still those of the vocabulary: others have no vector."""
    logits = torch.randn(3, vocab, device=device)
    logits[0], logits[1, 3] = torch.nan, torch.nan
    values, tokens = LogProbs(logits).topk(count)
    assert int(tokens.min()) >= 0 and int(tokens.max()) < vocab
    assert values[:2].isnan().all() and values[2].isfinite().all()


def check_likeliest(device: str, dtype: torch.dtype, rows: int, vocab: int) -> None:
    """The first of equal ones, of which half precision has many; a row of nothing but minus infinity."""
    torch.manual_seed(vocab)
    logits = torch.randint(0, vocab // 8, (rows, vocab)).to(device, dtype)
    logits[0] = -torch.inf
    expected = [(row == row.max()).nonzero()[0, 0].item() for row in logits]
    chosen = top_tokens.choose_likeliest(logits)
    assert chosen.dtype == torch.int64 and chosen.tolist() == expected
    logits[0, 3] = torch.nan
    assert top_tokens.choose_likeliest(logits).tolist() == [3, *expected[1:]], "no number: as in torch"


def test_the_likeliest_token() -> None:
    check_likeliest("cpu", torch.float32, 6, 40)
    assert top_tokens.choose_likeliest(torch.zeros(0, 4)).shape == (0,)


def test_the_likeliest_tokens() -> None:
    assert top_tokens._find_kernel(torch.zeros(1, 1)) is None
    check_top("cpu", torch.float32, 5, 37, 8)
    check_no_numbers("cpu", 37, 8)


def test_all_of_them() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    log_probs = LogProbs(logits, torch.tensor([False, True, False]))
    assert log_probs.shape == (1, 3)
    expected = logits.log_softmax(-1)
    expected[0, 1] = -torch.inf
    torch.testing.assert_close(log_probs.dense(), expected)
