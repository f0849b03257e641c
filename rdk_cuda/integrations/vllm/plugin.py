"""The entry point of `vllm.general_plugins`, which vLLM loads in every process.

It names the folder of our metrics, before vLLM starts other processes.

With speculation vLLM refuses requests with `min_p` or `logit_bias`, because its own verification
ignores both. The workers here serve them, so under these workers, and no others, they are let
through. A thinking budget, which they do not serve, is refused in the same place. And under them
vLLM's model runner V2 may have a drafter with another tokenizer, which it otherwise refuses.
"""

from __future__ import annotations

import inspect
from typing import Any

from .metrics import serve_metrics

_WORKERS = "rdk_cuda.integrations.vllm."
OTHER_TOKENIZERS = "heterogeneous-vocabulary draft models"  # vLLM's words
NOT_SERVED = "min_p and logit_bias parameters won't work with speculative decoding"  # also


def registered() -> bool:
    """Say whether `register` has changed what vLLM checks, in this process."""
    from vllm.sampling_params import SamplingParams

    return hasattr(getattr(SamplingParams, "_validate_spec_decode", None), "passes_rdk_cuda")


def register() -> None:
    """Let `min_p` and `logit_bias` through to our workers, and no thinking budget.

    In a vLLM that checks them elsewhere nothing is changed, and it goes on refusing them: vLLM
    calls this whatever its version and worker.
    """
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

    own = getattr(SamplingParams, "_validate_spec_decode", None)
    if own is None or registered():
        return
    if tuple(inspect.signature(own).parameters) != ("self", "speculative_config"):
        return

    def _validate_spec_decode(self: Any, speculative_config: Any) -> None:
        if not _is_ours(speculative_config):
            own(self, speculative_config)
        elif self.thinking_token_budget is not None:
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError(
                "thinking_token_budget is not supported by rdk_cuda's worker; leave it out",
                parameter="thinking_token_budget",
                value=self.thinking_token_budget,
            )

    _validate_spec_decode.passes_rdk_cuda = True  # type: ignore[attr-defined]
    SamplingParams._validate_spec_decode = _validate_spec_decode
    serve_metrics()
    features = getattr(VllmConfig, "_get_v2_model_runner_unsupported_features", None)
    if features is None:
        return

    def _get_v2_model_runner_unsupported_features(self: Any) -> list[str]:
        ours = _is_ours(self.speculative_config)
        return [found for found in features(self) if not (ours and found == OTHER_TOKENIZERS)]

    VllmConfig._get_v2_model_runner_unsupported_features = _get_v2_model_runner_unsupported_features


def _is_ours(speculative_config: Any) -> bool:
    """Whether a worker of this package serves; the draft model's own configuration names none."""
    parallel = getattr(speculative_config, "target_parallel_config", None)
    return str(getattr(parallel, "worker_cls", "")).startswith(_WORKERS)
