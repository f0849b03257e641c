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


def own(**options: Any) -> dict[str, Any]:
    return {"additional_config": {"rdk_cuda": options}}


SERVED: list[dict[str, Any]] = [
    *({"speculative_config__method": method} for method in ("draft_model", "eagle3")),
    {"reasoning_config": object()},
]
IN_V1, IN_V2 = (False,), (True,)
REFUSED: list[tuple[tuple[bool, ...], dict[str, Any], str]] = [
    *(
        ((False, True), given, said)
        for given, said in (
            ({"speculative_config": None}, "there is no --speculative-config"),
            ({"speculative_config__method": "ngram"}, "'ngram'; needs one of draft_model"),
            ({"speculative_config__parallel_drafting": True}, "parallel_drafting"),
            ({"speculative_config__disable_padded_drafter_batch": True}, "disable_padded_drafter"),
            ({"speculative_config__rejection_sample_method": "block"}, "'block', which rdk::ver"),
            ({"parallel_config__pipeline_parallel_size": 2}, "parallel_size is 2, which drafts"),
            ({"parallel_config__data_parallel_size": 2}, "data_parallel_size is 2"),
            ({"parallel_config__prefill_context_parallel_size": 2}, "prefill_context_parallel"),
        )
    ),
    (IN_V1, {"scheduler_config__async_scheduling": True}, "add --no-async-scheduling"),
    (IN_V1, {**own(verify_on_shards=True), "lora_config": object()}, "LoRA adapters need whole"),
    (IN_V1, own(verify_on_shards=True, verification="block"), "verify_on_shards is by token"),
    (IN_V2, {"scheduler_config__async_scheduling": False}, "leave out --no-async-scheduling"),
    (IN_V2, {"speculative_config__draft_sample_method": "probabilistic"}, "is 'probabilistic'"),
    (IN_V2, {"speculative_config__enable_adaptive_verification": True}, "adaptive_verification"),
    (IN_V2, {"speculative_config__use_local_argmax_reduction": True}, "argmax_reduction"),
    (IN_V2, {"speculative_config__draft_lm_head_quantization": "fp8"}, "lm_head_quantization"),
    (IN_V2, own(compare_ranks=True), "add --enforce-eager"),
    (IN_V2, own(verify_on_shards=True), "batch-sharded-sampling"),
    (IN_V2, {"lora_config": object()}, "with LoRA .* set VLLM_USE_V2_MODEL_RUNNER=0"),
    (IN_V2, {"watermark_config": object()}, "watermark"),
]


def refuse(v2: bool, budgets_are_refused: bool = True, **given: Any) -> None:
    """Model runner V2 needs async scheduling, and V1 none."""
    changes = {"scheduler_config__async_scheduling": v2} | given
    refuse_unsupported(configuration(**changes), v2, budgets_are_refused)


def test_what_is_supported_is_not_refused() -> None:
    for given in SERVED:
        for v2 in (False, True):
            refuse(v2, **given)
    refuse(False, **own(verify_on_shards=True))
    refuse(True, **own(compare_ranks=True), model_config__enforce_eager=True)  # nothing in graphs


@pytest.mark.parametrize(
    ("v2", "given", "said"), [(v2, *others) for runners, *others in REFUSED for v2 in runners]
)
def test_what_is_not_supported_is_refused(v2: bool, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedConfigurationError, match=said) as refused:
        refuse(v2, **given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("v2", [False, True])
def test_a_reasoning_parser_is_served_where_thinking_budgets_are_refused(v2: bool) -> None:
    with pytest.raises(UnsupportedConfigurationError, match="name rdk_cuda in VLLM_PLUGINS"):
        refuse(v2, budgets_are_refused=False, reasoning_config=object())


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
    for given in (
        {"drafter": "somewhere"},
        {"verification": "block", "compare_ranks": True},
        {"verify_on_shards": True},
    ):
        assert options(configuration(**own(**given))) == WorkerOptions(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["rdk-cuda", "RDK_CUDA", "rdkcuda", "rdk", "rkd_cuda", "drafter"])
def test_a_key_that_is_nearly_ours_is_refused_by_name(key: str) -> None:
    """Or the drafter's own head would be served, and nobody told."""
    given = {"other": 1, "cuda_graphs": 2, key: {"drafter": "somewhere"}}
    with pytest.raises(UnsupportedConfigurationError, match=f"has '{key}', .*'rdk_cuda'"):
        options(configuration(additional_config=given))


@pytest.mark.parametrize(
    "given",
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
def test_anything_else_under_its_key_is_refused(given: Any) -> None:
    with pytest.raises(UnsupportedConfigurationError, match=r"needs .*drafter.*DIR"):
        options(configuration(additional_config={"rdk_cuda": given}))
