"""Workers for vLLM's `--worker-cls`: its own, with our proposer and samplers."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker as EngineCPUWorker
from vllm.v1.worker.gpu_worker import Worker as EngineGPUWorker

from ..huggingface.saved_drafter import load_pruned
from .configuration import Options, options, refuse_unsupported
from .drafting import PROPOSERS
from .hooks import CPU, GPU, Hook, refuse_unknown
from .requests import Requests
from .target_logits import add_processors
from .verification import TokenSampler, Verifier

__all__ = ["CPUWorker", "GPUWorker"]


class _Serving:
    """What both workers add to vLLM's."""

    hooks: tuple[Hook, ...]
    _requests: Requests

    def init_device(self) -> None:
        """Refuse what is not known or not supported, then build vLLM's runner and change it."""
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        refuse_unknown(self.hooks)
        refuse_unsupported(config, self.use_v2_model_runner)  # type: ignore[attr-defined]
        own = options(config)
        directory = own.drafter
        # Read before vLLM loads anything: a directory that is not right costs no time.
        calibrated = None if directory is None else load_pruned(directory)[0]
        super().init_device()  # type: ignore[misc]
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        if directory is not None and runner.device.type != "cpu":
            calibrated = load_pruned(directory, device=runner.device)[0]
        self._requests = _serve(runner, config, calibrated, own)

    def execute_model(self, scheduler_output: Any) -> Any:
        """Also notes what is scheduled."""
        self._requests.scheduled = scheduler_output.num_scheduled_tokens
        return super().execute_model(scheduler_output)  # type: ignore[misc]


class CPUWorker(_Serving, EngineCPUWorker):  # type: ignore[misc]
    """vLLM's worker on a CPU, drafting with `rdk::draft` and deciding with `rdk::verify`.

    Raises:
        UnknownEngineError: a vLLM that is not known.
        UnsupportedConfigurationError: a configuration with which it would not be right.
        SavedDrafterError: a directory that `python -m rdk_cuda calibrate` has not written.
    """

    hooks = CPU


class GPUWorker(_Serving, EngineGPUWorker):  # type: ignore[misc]
    """The same for vLLM's worker on a GPU, with its model runner V1.

    It has never run: no GPU was there. What it uses of vLLM is checked in vLLM's sources. It needs
    `VLLM_USE_V2_MODEL_RUNNER=0` and `--no-async-scheduling`.

    Raises:
        UnknownEngineError, UnsupportedConfigurationError, SavedDrafterError: as of `CPUWorker`.
    """

    hooks = GPU


def _serve(runner: Any, vllm_config: Any, calibrated: Any, own_options: Options) -> Requests:
    """Replace the runner's proposer and samplers."""
    scheduler, speculative = vllm_config.scheduler_config, vllm_config.speculative_config
    most = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    requests = Requests(runner, most, scheduler.long_prefill_token_threshold)
    proposer = PROPOSERS[speculative.method](vllm_config, runner.device, runner)
    runner.drafter = proposer.serve(requests, calibrated)
    own = runner.sampler
    sampler = TokenSampler(own.logprobs_mode, own.use_fp64_gumbel)
    sampler.serve(requests, proposer, own_options.verification)
    runner.sampler = sampler
    runner.rejection_sampler = Verifier(sampler, speculative, runner.device)
    add_processors(runner.input_batch.logitsprocs, vllm_config, runner.device)
    return requests
