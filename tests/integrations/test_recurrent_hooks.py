"""A model's own modules are hooked once, wherever their weights are, and called by any thread."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from test_huggingface import alone

pytest.importorskip("transformers", minversion="5.14")

from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.attention import layers_of
from rdk_cuda.integrations.huggingface.mixers import find_mixers
from tests.recurrent_models import NEW, PROMPTS, mostly_right, recurrent, truth


def written(target: HuggingFaceModel, name: str) -> list[list[int]]:
    """Greedily, with drafts that are right up to a random place."""
    decoder = SpeculativeDecoder(target, proposer=mostly_right(name))
    return decoder.generate(PROMPTS, max_new_tokens=NEW, temperature=0.0).tokens


def test_another_model_over_the_same_one_changes_nothing() -> None:
    """Both have their hooks in the same modules, which `generate` alone does not notice."""
    model = recurrent("nemotron_h")
    first, second = HuggingFaceModel(model), HuggingFaceModel(model)
    for wrapped in (first, second):
        wrapped.reset(1)
        wrapped.feed([PROMPTS[0]], [1])
    found = [wrapped.feed([[3, 4, 5]], [3]).logits for wrapped in (first, second)]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0][0], alone(model, [*PROMPTS[0], 3, 4, 5])[-3:])
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    assert max(hooks) == 1


def test_states_that_go_back_keep_no_graph_of_gradients() -> None:
    """Parameters are as `from_pretrained` leaves them; memory would grow with each step."""
    wrapped = HuggingFaceModel(recurrent("nemotron_h"))
    wrapped.reset(2)
    wrapped.feed([PROMPTS[0]] * 2, [1, 1])
    lengths = list(wrapped.lengths)
    for _ in range(2):
        wrapped.feed([[5, 6, 7]] * 2, [3, 3])
        lengths = [lengths[0] + 3, lengths[1] + 1]
        wrapped.rollback(lengths)
    cache = wrapped._recurrent
    assert not any(s.requires_grad for at in cache._at for s in cache._states(at).values())


def test_a_mixer_without_its_hooks_is_refused() -> None:
    """Its layer would go back to states of zeros."""
    model = recurrent("lfm3")
    wrapped = HuggingFaceModel(model)
    wrapped._recurrent.gated = False
    mixer: Any = next(iter(wrapped._recurrent.mixers))
    hooks = mixer._forward_pre_hooks.copy()
    mixer._forward_pre_hooks.clear()
    wrapped.reset(1)
    wrapped.feed([[3, 4, 5]], [1])
    wrapped.feed([[1, 2, 3]], [3])
    with pytest.raises(RuntimeError, match="was replaced, or has lost its hooks; wrap the model"):
        wrapped.rollback([4])
    mixer._forward_pre_hooks.update(hooks)


@pytest.mark.parametrize("name", ["qwen3_5_text", "nemotron_h", "jamba", "lfm3", "inkling_text"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_layers_that_a_device_map_has_put_elsewhere_keep_their_states(name: str, when: str) -> None:
    """Of two layers only the hooks of accelerate know where the weights are."""
    accelerate = pytest.importorskip("accelerate")
    model = recurrent(name)
    layers = model.base_model.layers if hasattr(model.base_model, "layers") else model.model.layers
    wrapped = HuggingFaceModel(model) if when == "after" else None
    for layer in layers[1:3]:
        accelerate.cpu_offload(layer, execution_device="cpu")
    assert any(weight.is_meta for weight in model.parameters())
    assert written(wrapped or HuggingFaceModel(model), name) == truth(name)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_forward_that_somebody_has_put_in_a_mixer_is_called_and_stays(when: str) -> None:
    """As accelerate does; the other mixers' kernels are noted all the same."""
    model, calls = recurrent("qwen3_5_text"), list[int]()
    wrapped = HuggingFaceModel(model) if when == "after" else None
    mixer = next(each for each in model.modules() if hasattr(each, "in_proj_qkv"))
    forward = mixer.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return forward(*args, **kwargs)

    mixer.forward = counted
    try:
        target = wrapped or HuggingFaceModel(model)
        assert written(target, "qwen3_5_text") == truth("qwen3_5_text")
        assert calls
        assert vars(mixer)["forward"] is counted
    finally:
        vars(mixer).pop("forward", None)


def test_threads_that_wrap_one_model_at_once_find_the_same_modules() -> None:
    model = recurrent("nemotron_h")
    layers = layers_of(model).recurrent
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            first, *others = pool.map(lambda _: find_mixers(model, layers), range(24))
    finally:
        sys.setswitchinterval(interval)
    assert all(other == first for other in others)
    assert sorted(first.values()) == list(layers)
    assert max(len(module._forward_pre_hooks) for module in model.modules()) == 1


def test_threads_with_models_of_their_own_over_one_module_decode_as_one_does() -> None:
    model, expected = recurrent("qwen3_5_text"), truth("qwen3_5_text")
    targets = [HuggingFaceModel(model) for _ in range(2)]

    def decode(target: HuggingFaceModel) -> list[list[list[int]]]:
        return [written(target, "qwen3_5_text") for _ in range(2)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(decode, targets)) == [[expected] * 2] * 2
    finally:
        sys.setswitchinterval(interval)
    assert not any("forward" in vars(each) for each in model.modules())
