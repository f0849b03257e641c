"""A configuration that would be served wrongly is refused in one sentence."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rdk_cuda.integrations.vllm import plugin
from rdk_cuda.integrations.vllm.configuration import (
    UnsupportedConfigurationError,
    WorkerOptions,
    options,
    refuse_other_tokenizers,
    refuse_unsupported,
)


def test_a_vllm_without_what_the_plugin_changes_starts_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM loads the plugin of every environment, whatever its version and worker."""

    class SamplingParams:
        def _validate_spec_decode(self, speculative_config: Any) -> None:
            raise ValueError("vLLM's own")

    for name, held in {
        "vllm": {},
        "vllm.config": {"VllmConfig": type("VllmConfig", (), {})},
        "vllm.sampling_params": {"SamplingParams": SamplingParams},
    }.items():
        module = ModuleType(name)
        vars(module).update(held)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(plugin, "serve_metrics", lambda: None)
    plugin.register()
    assert plugin.registered()
    with pytest.raises(ValueError, match="vLLM's own"):
        SamplingParams()._validate_spec_decode(None)


def configuration(**changes: Any) -> SimpleNamespace:
    """Of vLLM, as far as it is looked at; `section__name` changes one value."""
    sections: dict[str, dict[str, Any]] = {
        "speculative_config": {
            "method": "draft_model",
            "parallel_drafting": False,
            "use_heterogeneous_vocab": False,
            "disable_padded_drafter_batch": False,
            "rejection_sample_method": "standard",
            "draft_sample_method": "greedy",
            "enable_adaptive_verification": False,
            "use_local_argmax_reduction": False,
        },
        "parallel_config": {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 1,
            "data_parallel_size": 1,
            "prefill_context_parallel_size": 1,
        },
        "model_config": {"enforce_eager": False},
        "scheduler_config": {"async_scheduling": False},
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            sections[section][key] = value
    made: dict[str, Any] = {name: SimpleNamespace(**of) for name, of in sections.items()}
    made |= {"reasoning_config": None, "additional_config": {}, "watermark_config": None}
    made["lora_config"] = None
    made |= {name: value for name, value in changes.items() if "__" not in name}
    return SimpleNamespace(**made)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_what_is_supported_is_not_refused(method: str, v2: bool) -> None:
    """Model runner V2 needs async scheduling, and V1 none."""
    given = {"speculative_config__method": method, "scheduler_config__async_scheduling": v2}
    refuse_unsupported(configuration(**given), v2, budgets_are_refused=True)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("speculative_config", None, "there is no --speculative-config"),
        ("speculative_config__method", "ngram", "the method is 'ngram'; needs one of draft_model"),
        ("speculative_config__parallel_drafting", True, "parallel_drafting"),
        ("speculative_config__disable_padded_drafter_batch", True, "disable_padded_drafter_batch"),
        ("speculative_config__rejection_sample_method", "block", "'block', which rdk::verify"),
        ("parallel_config__pipeline_parallel_size", 2, "pipeline_parallel_size is 2, which drafts"),
        ("parallel_config__data_parallel_size", 2, "data_parallel_size is 2"),
        ("parallel_config__prefill_context_parallel_size", 2, "prefill_context_parallel_size"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, value: Any, said: str, v2: bool) -> None:
    given = {"scheduler_config__async_scheduling": v2, name: value}
    with pytest.raises(UnsupportedConfigurationError, match=said) as refused:
        refuse_unsupported(
            configuration(**given), uses_v2_model_runner=v2, budgets_are_refused=True
        )
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("v2", [False, True])
def test_a_reasoning_parser_is_served_where_thinking_budgets_are_refused(v2: bool) -> None:
    given = {"scheduler_config__async_scheduling": v2, "reasoning_config": object()}
    refuse_unsupported(configuration(**given), v2, budgets_are_refused=True)
    with pytest.raises(UnsupportedConfigurationError, match="name rdk_cuda in VLLM_PLUGINS"):
        refuse_unsupported(configuration(**given), v2, budgets_are_refused=False)


def test_model_runner_v1_is_refused_with_async_scheduling() -> None:
    given = configuration(scheduler_config__async_scheduling=True)
    with pytest.raises(UnsupportedConfigurationError, match="add --no-async-scheduling"):
        refuse_unsupported(given, False, budgets_are_refused=True)


def test_shards_are_verified_by_token_in_model_runner_v1() -> None:
    own: dict[str, object] = {"verify_on_shards": True}
    refuse_unsupported(configuration(additional_config={"rdk_cuda": own}), False, True)
    given = {"additional_config": {"rdk_cuda": own}, "lora_config": object()}
    with pytest.raises(UnsupportedConfigurationError, match="LoRA adapters need whole rows"):
        refuse_unsupported(configuration(**given), False, True)
    own["verification"] = "block"
    with pytest.raises(UnsupportedConfigurationError, match="verify_on_shards is by token"):
        refuse_unsupported(configuration(additional_config={"rdk_cuda": own}), False, True)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("scheduler_config__async_scheduling", False, "leave out --no-async-scheduling"),
        ("speculative_config__draft_sample_method", "probabilistic", "is 'probabilistic'"),
        ("speculative_config__enable_adaptive_verification", True, "adaptive_verification"),
        ("speculative_config__use_local_argmax_reduction", True, "argmax_reduction"),
        ("speculative_config__draft_lm_head_quantization", "fp8", "draft_lm_head_quantization"),
        ("additional_config", {"rdk_cuda": {"compare_ranks": True}}, "add --enforce-eager"),
        ("additional_config", {"rdk_cuda": {"verify_on_shards": True}}, "batch-sharded-sampling"),
        ("lora_config", object(), "with LoRA .* set VLLM_USE_V2_MODEL_RUNNER=0"),
        ("watermark_config", object(), "watermark"),
    ],
)
def test_what_model_runner_v2_cannot_do_is_refused(name: str, value: Any, said: str) -> None:
    given = {"scheduler_config__async_scheduling": True, name: value}
    with pytest.raises(UnsupportedConfigurationError, match=said) as refused:
        refuse_unsupported(
            configuration(**given), uses_v2_model_runner=True, budgets_are_refused=True
        )
    assert "\n" not in str(refused.value)


def test_ranks_are_compared_where_nothing_is_in_cuda_graphs() -> None:
    given = {
        "additional_config": {"rdk_cuda": {"compare_ranks": True}},
        "scheduler_config__async_scheduling": True,
        "model_config__enforce_eager": True,
    }
    refuse_unsupported(configuration(**given), True, budgets_are_refused=True)


@pytest.mark.parametrize(("asked", "is_so"), [(True, False), (False, True)])
def test_vllm_maps_tokens_if_and_only_if_the_drafter_has_others(asked: bool, is_so: bool) -> None:
    given = configuration(speculative_config__use_heterogeneous_vocab=asked)
    refuse_other_tokenizers(given, asked)
    with pytest.raises(UnsupportedConfigurationError, match="use_heterogeneous_vocab") as refused:
        refuse_other_tokenizers(given, is_so)
    assert "\n" not in str(refused.value)


def test_the_options_are_those_of_additional_config() -> None:
    assert options(configuration()) == WorkerOptions(None, "token")
    assert options(configuration(additional_config={"other": 1})) == WorkerOptions(None, "token")
    own = {"rdk_cuda": {"drafter": "somewhere"}}
    assert options(configuration(additional_config=own)) == WorkerOptions("somewhere", "token")
    own = {"rdk_cuda": {"verification": "block", "compare_ranks": True}}
    assert options(configuration(additional_config=own)) == WorkerOptions(None, "block", True)
    own = {"rdk_cuda": {"verify_on_shards": True}}
    assert options(configuration(additional_config=own)) == WorkerOptions(verify_on_shards=True)


@pytest.mark.parametrize("key", ["rdk-cuda", "RDK_CUDA", "rdkcuda", "rdk", "rkd_cuda", "drafter"])
def test_a_key_that_is_nearly_ours_is_refused_by_name(key: str) -> None:
    """Or the drafter's own head would be served, and nobody told."""
    given = {"other": 1, "cuda_graphs": 2, key: {"drafter": "somewhere"}}
    with pytest.raises(UnsupportedConfigurationError, match=f"has '{key}', .*'rdk_cuda'"):
        options(configuration(additional_config=given))


@pytest.mark.parametrize(
    "own",
    [
        "somewhere",
        {"drafer": "somewhere"},
        {"drafter": 3},
        {"verification": "blocks"},
        {"verification": ["block"]},
        {"compare_ranks": 1},
        {"verify_on_shards": "yes"},
    ],
)
def test_anything_else_under_its_key_is_refused(own: Any) -> None:
    with pytest.raises(UnsupportedConfigurationError, match=r"needs .*drafter.*DIR"):
        options(configuration(additional_config={"rdk_cuda": own}))
