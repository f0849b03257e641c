"""Workers that make vLLM draft with `rdk::draft` and decide with `rdk::verify`.

    python -m vllm.entrypoints.launchers.api_server.entry --model TARGET
        --worker-cls rdk_cuda.integrations.vllm.CPUWorker
        --speculative-config '{"method": "draft_model", "model": "DIR/drafter",
                               "num_speculative_tokens": 4}'
        --additional-config '{"rdk_cuda": {"drafter": "DIR"}}'

`docs/serving.md` says how to get `DIR`, and what is proven so far. vLLM itself is not changed. It
is imported only when a worker is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .model_runner_v2 import PLACEHOLDER_TOKEN_ID, rejection_sample, sample_draft

if TYPE_CHECKING:
    from .worker import CPUWorker, GPUWorker

__all__ = ["PLACEHOLDER_TOKEN_ID", "CPUWorker", "GPUWorker", "rejection_sample", "sample_draft"]


def __getattr__(name: str) -> Any:
    if name in ("CPUWorker", "GPUWorker"):
        from . import worker

        return getattr(worker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
