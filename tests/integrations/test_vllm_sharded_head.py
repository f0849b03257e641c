"""A head on several ranks gives the logits of the whole head, to the bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from rdk_cuda.drafter import LiftedHead, LiftedRows
from rdk_cuda.dynamic_tokens.columns import logits_of
from rdk_cuda.integrations.vllm.sharded_head import HeadShard

SIZE, WIDTH, PADDED = 21, 8, 24  # vLLM pads a head so that its shards are equal


def padded(rows: Tensor) -> Tensor:
    """With what must not be used."""
    padding = torch.full((PADDED - SIZE, *rows.shape[1:]), torch.nan, dtype=rows.dtype)
    return torch.cat([rows, padding])


def shards(weight: Tensor, bias: Tensor | None, ranks: int) -> list[HeadShard]:
    """As vLLM's ranks have them."""
    each = PADDED // ranks
    parts = padded(weight).split(each)
    biases = [None] * ranks if bias is None else padded(bias).split(each)
    return [
        HeadShard(
            SimpleNamespace(
                weight=part,
                **({} if own is None else {"bias": own}),
                org_vocab_size=SIZE,
                tp_size=ranks,
                shard_indices=SimpleNamespace(
                    org_vocab_start_index=min(SIZE, rank * each),
                    num_org_elements=max(0, min(SIZE, (rank + 1) * each) - rank * each),
                ),
            )
        )
        for rank, (part, own) in enumerate(zip(parts, biases, strict=True))
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "bias", "lifted"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_ranks_together_give_the_logits_of_the_whole_head(
    ranks: int, kind: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(ranks)
    weight = torch.randn(SIZE, WIDTH, generator=generator).to(dtype)
    hidden = torch.randn(5, WIDTH, generator=generator).to(dtype)
    tokens = torch.randint(-1, SIZE, (5, 12), generator=generator).int()
    bias = torch.randn(SIZE, generator=generator).to(dtype) if kind == "bias" else None
    lifted = None
    if kind == "lifted":
        lifted = LiftedRows(
            torch.randn(WIDTH + 2, WIDTH, generator=generator),
            torch.randn(SIZE, generator=generator),
            torch.tensor([0.5, 2.0]),
        )
    whole = (weight, bias) if lifted is None else LiftedHead(lifted, weight)
    expected = logits_of(whole, hidden, tokens)
    assert (tokens < 0).any()

    given: list[Tensor] = []

    def all_reduce(logits: Tensor) -> Tensor:
        given.append(logits)
        return logits

    own = [shard.logits(all_reduce, lifted) for shard in shards(weight, bias, ranks)]
    single = [logits_of(head, hidden, tokens) for head in own]
    if ranks == 1:
        assert torch.equal(single[0], expected)
        return
    # A control: no rank alone has them all.
    assert not any(torch.equal(one, expected) for one in single)
    summed = torch.stack(given).sum(0)
    assert torch.equal(summed.where(tokens >= 0, -torch.inf), expected)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_whole_head_is_what_the_ranks_have_without_padding(ranks: int) -> None:
    generator = torch.Generator().manual_seed(1)
    head = torch.randn(SIZE, WIDTH, generator=generator), torch.randn(SIZE, generator=generator)

    def all_gather(own: Tensor) -> Tensor:
        return padded(head[0] if own.dim() == 2 else head[1])

    for part in shards(*head, ranks):
        for whole, expected in zip(part.whole(all_gather), head, strict=True):
            assert torch.equal(whole, expected)
    for part in shards(head[0], None, ranks):
        assert part.whole(all_gather)[1] is None
