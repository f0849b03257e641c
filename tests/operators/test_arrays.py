"""The Python layer takes arrays of other libraries, by DLPack, as it takes tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rdk_cuda
from tests import generators

SIZE = 60


class Array:
    """Not a tensor: it only has the memory of one, as CuPy's and JAX's arrays do."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def step(affinity: rdk_cuda.Affinity, of: Any) -> tuple[Tensor, ...]:
    """Every function of the layer, with whatever `of` makes of a tensor for each argument."""
    batch, drafts = 4, 3
    logits = generators.logits(batch * drafts, affinity.draft_size).view(batch, drafts, -1)
    target = generators.logits(batch * (drafts + 1), SIZE, 1).view(batch, drafts + 1, -1)
    hidden, weight = generators.logits(batch * drafts, 7, 2), generators.logits(SIZE, 7, 3)
    tokens = generators.dynamic_tokens(batch * drafts, 2, SIZE).view(batch, drafts, 2)
    dynamic = rdk_cuda.gather_logits(
        of(hidden.view(batch, drafts, 7)), of(weight), of(tokens), of(weight[:, 0].contiguous())
    )
    keywords = {"dynamic_tokens": of(tokens), "dynamic_logits": of(dynamic)}
    temperature = of(torch.tensor([1.0, 0.5, 0.0, 2.0]))
    q = rdk_cuda.redistribute(of(logits), affinity, temperature, **keywords)
    integers = of(torch.arange(batch))
    drafted = rdk_cuda.draft(
        of(logits), affinity, temperature, seeds=integers, positions=integers, **keywords
    )
    verified = rdk_cuda.verify(of(target), drafted, affinity, temperature)
    seeds = rdk_cuda.step_keys(integers, integers)
    copied = rdk_cuda.Draft.without_distribution(of(drafted.tokens), seeds=integers, positions=0)
    return dynamic, q, drafted.tokens, *verified, seeds, copied.tokens, copied.step_keys


@pytest.mark.parametrize("of", [Array, lambda tensor: tensor.numpy()], ids=["any", "NumPy"])
def test_arrays_give_what_tensors_give(of: Any) -> None:
    affinity = generators.affinity("mixed-2", SIZE)
    for actual, expected in zip(step(affinity, of), step(affinity, lambda t: t), strict=True):
        assert isinstance(actual, Tensor)
        assert torch.equal(actual, expected)


def test_an_array_is_read_where_it_lies() -> None:
    logits = np.zeros((1, 1, 3), dtype=np.float32)
    affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary.identity(3))
    drafted = rdk_cuda.draft(logits, affinity, seeds=0, positions=0)
    logits[0, 0, 1] = 5
    assert drafted.logits[0, 0].tolist() == [0, 5, 0]


def test_what_torch_cannot_take_is_refused_by_name() -> None:
    affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary.identity(3))
    words = np.array([["a", "b", "c"]])
    with pytest.raises(ValueError, match=r"rdk_cuda\.draft: draft_logits is a numpy\.ndarray that"):
        rdk_cuda.draft(words, affinity)
    with pytest.raises(ValueError, match=r"rdk_cuda\.draft: seeds is a numpy\.ndarray that"):
        rdk_cuda.draft(torch.zeros(1, 3), affinity, seeds=words, positions=0)
    doubles = np.zeros((1, 3))
    with pytest.raises(RuntimeError, match="draft_logits has dtype Double"):
        rdk_cuda.draft(doubles, affinity)
