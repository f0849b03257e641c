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
from tests.architectures import SLIDING, WINDOW, near, tiny

from .pair import SIZE, drafter, full, padded, target


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


@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_greedy_output_does_not_depend_on_the_cache_past_several_windows(
    name: str, cache: str | None
) -> None:
    """Rows end within, at and beyond a window; drafts are rejected on both sides of its edge."""
    model = tiny(name)
    generate = Generate(near(model, noise=0.1), draft_length=4)
    arguments = {
        **padded(1, WINDOW, 3 * WINDOW, WINDOW - 1),
        "do_sample": False,
        "max_new_tokens": 5 * WINDOW,
        "pad_token_id": 60,
    }
    ours = model.generate(**arguments, cache_implementation=cache, custom_generate=generate)
    assert torch.equal(ours, model.generate(**arguments))
    statistics = generate.statistics
    assert statistics.resampled > 8
    assert statistics.mean_accepted_length > 0.3
