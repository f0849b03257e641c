"""What a worker is configured with, and what it refuses before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["METHODS", "UnsupportedConfigurationError", "drafter_directory", "refuse_unsupported"]

METHODS = ("draft_model", "eagle3")

_KEY = "rdk_cuda"


class UnsupportedConfigurationError(ValueError):
    """A configuration of vLLM with which a worker of rdk_cuda would not be right."""


def drafter_directory(vllm_config: Any) -> str | None:
    """`DIR` of `--additional-config '{"rdk_cuda": {"drafter": DIR}}'`, or None.

    Raises:
        UnsupportedConfigurationError: anything else under that key.
    """
    own = (vllm_config.additional_config or {}).get(_KEY, {})
    known = isinstance(own, dict) and set(own) <= {"drafter"}
    directory = own.get("drafter") if known else None
    if not known or not (directory is None or isinstance(directory, str)):
        raise UnsupportedConfigurationError(
            f'--additional-config has {_KEY} {own!r}; needs {{"drafter": DIR}}, a directory that '
            "python -m rdk_cuda calibrate has written, or nothing for the draft model's own head"
        )
    return directory


def refuse_unsupported(vllm_config: Any, uses_v2_model_runner: bool) -> None:
    """Refuse what would be served wrongly or is not proven.

    Raises:
        UnsupportedConfigurationError: the first thing found, and what to do.
    """
    for said in _unsupported(vllm_config, uses_v2_model_runner):
        raise UnsupportedConfigurationError(f"rdk_cuda.integrations.vllm: {said}")


def _unsupported(vllm_config: Any, uses_v2_model_runner: bool) -> Iterator[str]:
    speculative, parallel = vllm_config.speculative_config, vllm_config.parallel_config
    if speculative is None:
        yield (
            "there is no --speculative-config; needs one with a method of "
            f"{', '.join(METHODS)} and num_speculative_tokens"
        )
        return
    if uses_v2_model_runner:
        yield "it works in the model runner V1; set VLLM_USE_V2_MODEL_RUNNER=0"
    if speculative.method not in METHODS:
        yield f"the method is {speculative.method!r}; needs one of {', '.join(METHODS)}"
    if speculative.parallel_drafting:
        yield "parallel_drafting draws all drafts at once, which is not supported; leave it out"
    if speculative.use_heterogeneous_vocab:
        yield (
            "use_heterogeneous_vocab maps tokens in vLLM; leave it out, and let drafter and target "
            "have one tokenizer"
        )
    if speculative.disable_padded_drafter_batch:
        yield "disable_padded_drafter_batch drafts after vLLM's bookkeeping; leave it out"
    if speculative.rejection_sample_method != "standard":
        yield (
            f"rejection_sample_method is {speculative.rejection_sample_method!r}, which "
            "rdk::verify does not do; leave it out"
        )
    if vllm_config.scheduler_config.async_scheduling:
        yield (
            "async scheduling drafts before a step's tokens are known on the host; add "
            "--no-async-scheduling"
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if getattr(parallel, name) != 1:
            yield f"{name} is {getattr(parallel, name)}, which has never been tried; needs 1"
    if vllm_config.model_config.uses_mrope:
        yield "the target has positions of several dimensions (M-RoPE); needs a text model"
    if vllm_config.reasoning_config is not None:
        yield (
            "a reasoning configuration lets requests have a thinking budget, which is not "
            "supported; leave it out"
        )
