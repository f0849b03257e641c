"""A configuration that would be served wrongly is refused in one sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rdk_cuda.integrations.vllm.configuration import (
    Options,
    UnsupportedConfigurationError,
    options,
    refuse_unsupported,
)


def configuration(**changes: Any) -> SimpleNamespace:
    """Of vLLM, as far as it is looked at; `section__name` changes one value."""
    sections: dict[str, dict[str, Any]] = {
        "speculative_config": {
            "method": "draft_model",
            "parallel_drafting": False,
            "use_heterogeneous_vocab": False,
            "disable_padded_drafter_batch": False,
            "rejection_sample_method": "standard",
        },
        "parallel_config": {
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "data_parallel_size": 1,
        },
        "model_config": {"uses_mrope": False},
        "scheduler_config": {"async_scheduling": False},
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            sections[section][key] = value
    made: dict[str, Any] = {name: SimpleNamespace(**of) for name, of in sections.items()}
    made |= {"reasoning_config": None, "additional_config": {}}
    made |= {name: value for name, value in changes.items() if "__" not in name}
    return SimpleNamespace(**made)


def test_what_is_supported_is_not_refused() -> None:
    refuse_unsupported(configuration(), uses_v2_model_runner=False)
    refuse_unsupported(configuration(speculative_config__method="eagle3"), False)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("speculative_config", None, "there is no --speculative-config"),
        ("speculative_config__method", "ngram", "the method is 'ngram'; needs one of draft_model"),
        ("speculative_config__parallel_drafting", True, "parallel_drafting"),
        ("speculative_config__use_heterogeneous_vocab", True, "use_heterogeneous_vocab"),
        ("speculative_config__disable_padded_drafter_batch", True, "disable_padded_drafter_batch"),
        ("speculative_config__rejection_sample_method", "block", "'block', which rdk::verify"),
        ("parallel_config__tensor_parallel_size", 2, "tensor_parallel_size is 2"),
        ("parallel_config__pipeline_parallel_size", 2, "pipeline_parallel_size is 2"),
        ("parallel_config__data_parallel_size", 2, "data_parallel_size is 2"),
        ("model_config__uses_mrope", True, "M-RoPE"),
        ("scheduler_config__async_scheduling", True, "--no-async-scheduling"),
        ("reasoning_config", object(), "reasoning configuration"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(UnsupportedConfigurationError, match=said) as refused:
        refuse_unsupported(configuration(**{name: value}), uses_v2_model_runner=False)
    assert "\n" not in str(refused.value)


def test_another_model_runner_is_refused() -> None:
    with pytest.raises(UnsupportedConfigurationError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        refuse_unsupported(configuration(), uses_v2_model_runner=True)


def test_the_options_are_those_of_additional_config() -> None:
    assert options(configuration()) == Options(None, "token")
    assert options(configuration(additional_config={"other": 1})) == Options(None, "token")
    own = {"rdk_cuda": {"drafter": "somewhere"}}
    assert options(configuration(additional_config=own)) == Options("somewhere", "token")
    own = {"rdk_cuda": {"verification": "block"}}
    assert options(configuration(additional_config=own)) == Options(None, "block")


@pytest.mark.parametrize(
    "own",
    [
        "somewhere",
        {"drafer": "somewhere"},
        {"drafter": 3},
        {"verification": "blocks"},
        {"verification": ["block"]},
    ],
)
def test_anything_else_under_its_key_is_refused(own: Any) -> None:
    with pytest.raises(UnsupportedConfigurationError, match=r"needs .*drafter.*DIR"):
        options(configuration(additional_config={"rdk_cuda": own}))
