"""Workers for `vllm serve --worker-cls`: vLLM's own, with our proposer and samplers."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker as EngineCPUWorker

from ..huggingface.saved_drafter import load_pruned
from .configuration import drafter_directory, refuse_unsupported
from .drafting import PROPOSERS
from .hooks import CPU, refuse_unknown
from .requests import Requests
from .target_logits import add_processors
from .verification import TokenSampler, Verifier

__all__ = ["CPUWorker"]


class CPUWorker(EngineCPUWorker):  # type: ignore[misc]
    """vLLM's worker on a CPU, drafting with `rdk::draft` and deciding with `rdk::verify`.

    Raises:
        UnknownEngineError: a vLLM that is not known.
        UnsupportedConfigurationError: a configuration with which it would not be right.
        SavedDrafterError: a directory that `python -m rdk_cuda calibrate` has not written.
    """

    def init_device(self) -> None:
        """Refuse what is not known or not supported, then build vLLM's runner and change it."""
        refuse_unknown(CPU)
        refuse_unsupported(self.vllm_config, self.use_v2_model_runner)
        directory = drafter_directory(self.vllm_config)
        calibrated = None if directory is None else load_pruned(directory)[0]
        super().init_device()
        self._requests = _serve(self.model_runner, self.vllm_config, calibrated)

    def execute_model(self, scheduler_output: Any) -> Any:
        """Also notes what is scheduled."""
        self._requests.scheduled = scheduler_output.num_scheduled_tokens
        return super().execute_model(scheduler_output)


def _serve(runner: Any, vllm_config: Any, calibrated: Any) -> Requests:
    """Replace the runner's proposer and samplers."""
    scheduler, speculative = vllm_config.scheduler_config, vllm_config.speculative_config
    most = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    requests = Requests(runner, most, scheduler.long_prefill_token_threshold)
    proposer = PROPOSERS[speculative.method](vllm_config, runner.device, runner)
    runner.drafter = proposer.serve(requests, calibrated)
    own = runner.sampler
    sampler = TokenSampler(own.logprobs_mode, own.use_fp64_gumbel).serve(requests, proposer)
    runner.sampler = sampler
    runner.rejection_sampler = Verifier(sampler, speculative, runner.device)
    add_processors(runner.input_batch.logitsprocs, vllm_config, runner.device)
    return requests
