"""Which caches `Generate` takes, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0")
from transformers import DynamicCache, StaticCache

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import DrafterTree
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.generate import Generate
from rdk_cuda.integrations.huggingface.library import cache_argument

from .pair import SIZE, drafter, full, padded, pruned, target


@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
@pytest.mark.parametrize("seed", range(3))
def test_output_does_not_depend_on_the_cache(cache: str | None, seed: int) -> None:
    arguments = {**padded(4, 17, 1, 8, seed=seed), "do_sample": False, "max_new_tokens": 40}
    ours = target().generate(**arguments, cache_implementation=cache, custom_generate=pruned())
    assert torch.equal(ours, target().generate(**arguments))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_an_empty_cache_of_the_caller_says_its_kind_and_stays_empty(kind: str) -> None:
    own: Any = DynamicCache()
    if kind == "static":
        own = StaticCache(config=target().config, max_cache_len=64)
    arguments = {**padded(4, 9), "do_sample": False, "max_new_tokens": 9}
    ours = target().generate(**arguments, **{cache_argument(target()): own}, custom_generate=full())
    assert torch.equal(ours, target().generate(**arguments))
    assert int(own.get_seq_length()) == 0


@pytest.mark.parametrize("tree", [False, True])
def test_memory_is_given_back(tree: bool) -> None:
    drafts = HuggingFaceModel(drafter())
    same = Affinity.intersection(Vocabulary.identity(SIZE))
    generate = Generate(DrafterTree(drafts, same) if tree else drafts)
    arguments = {**padded(4, 9), "max_new_tokens": 9, "custom_generate": generate}
    target().generate(**arguments, cache_implementation="static")
    assert generate._target is not None
    for model in (generate._target, drafts):
        assert model.lengths == []
        assert not any(layer.is_initialized for layer in model._cache.past.layers)  # type: ignore[attr-defined]
