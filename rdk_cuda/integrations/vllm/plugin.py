"""What vLLM loads from this package in every process: an entry point of `vllm.general_plugins`.

With speculation vLLM refuses requests with `min_p` or `logit_bias`, because its own verification
ignores both. The workers here serve them, so under these workers, and no others, they are let
through.
"""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["register"]

_WORKERS = "rdk_cuda.integrations.vllm."


def register() -> None:
    """Let `min_p` and `logit_bias` through to our workers.

    In a vLLM that checks them elsewhere nothing is changed, and it goes on refusing them.
    """
    from vllm.sampling_params import SamplingParams

    own = getattr(SamplingParams, "_validate_spec_decode", None)
    if own is None or getattr(own, "passes_rdk_cuda", False):
        return
    if tuple(inspect.signature(own).parameters) != ("self", "speculative_config"):
        return

    def _validate_spec_decode(self: Any, speculative_config: Any) -> None:
        parallel = getattr(speculative_config, "target_parallel_config", None)
        if not str(getattr(parallel, "worker_cls", "")).startswith(_WORKERS):
            own(self, speculative_config)

    _validate_spec_decode.passes_rdk_cuda = True  # type: ignore[attr-defined]
    SamplingParams._validate_spec_decode = _validate_spec_decode
