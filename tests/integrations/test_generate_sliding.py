"""`Generate` with models whose layers slide, past several windows, in left-padded batches."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0")
from rdk_cuda.integrations.huggingface import Generate
from tests.architectures import SLIDING, WINDOW, near, tiny

from .pair import padded


@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_output_is_that_of_generate(name: str, cache: str) -> None:
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
    assert statistics is not None
    assert statistics.resampled > 8
    assert statistics.mean_accepted_length > 0.3
