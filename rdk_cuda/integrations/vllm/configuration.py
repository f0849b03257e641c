"""A worker's configuration, and its refusals before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple

from ...functional import METHODS, Method

# tests/engines checks the names that are used of vLLM in their wheels, and runs the first.
TESTED = ("0.32.0", "0.33.0")
SPECULATIVE_METHODS = ("draft_model", "eagle3", "mtp", "dflash")  # vLLM calls families' names mtp
# vLLM's classes that draft as these methods do: by runs of one model, or in one run.
DRAFTING = ("DraftModelProposer", "EagleProposer", "DFlashProposer")
DRAFTING_V2 = ("StandaloneARSpeculator", "EagleSpeculator", "MTPSpeculator", "DFlashSpeculator")

_KEY = "rdk_cuda"
# vLLM's use of more than one rank of a kind. Data-parallel ranks of a dense model are engines
# of their own, which see a size of 1.
_PARALLEL = {
    "pipeline_parallel_size": "drafts and decides on the last rank alone",
    "data_parallel_size": "spreads experts over engines that step together",
    "prefill_context_parallel_size": "cuts a prompt into pieces",
}

_NOT_IN_V2 = {
    "enable_adaptive_verification": "shortens drafts, which is not supported",
    "use_local_argmax_reduction": "drafts what is likeliest",
    "draft_lm_head_quantization": "is for vLLM's head, which is not used",  # from 0.33 on
}


class UnsupportedConfigurationError(ValueError):
    """A configuration of vLLM with which a worker of rdk_cuda would not be right."""

    def __init__(self, said: str) -> None:
        super().__init__(f"rdk_cuda.integrations.vllm: {said}")


class WorkerOptions(NamedTuple):
    """The options in `--additional-config '{"rdk_cuda": {...}}'`.

    Attributes:
        drafter: a directory that `python -m rdk_cuda calibrate` has written, or None for the draft
            model's own head.
        verification: the method of `rdk_cuda.verify`.
        compare_ranks: whether all ranks of tensor parallelism compare what they draft from, and
            what they have drafted (`rank_comparison`).
        verify_on_shards: whether, with tensor parallelism, the target's logits stay on the ranks
            that computed them, where no request needs whole rows (`sharded_logits`).
    """

    drafter: str | None = None
    verification: Method = "token"
    compare_ranks: bool = False
    verify_on_shards: bool = False


def options(vllm_config: Any) -> WorkerOptions:
    """Read the options from the configuration.

    Raises:
        UnsupportedConfigurationError: anything else under that key, or a key that is nearly it.
    """
    given = vllm_config.additional_config or {}
    own = given.get(_KEY, {})
    for key in map(str, () if _KEY in given else given):  # the keys of other plugins are theirs
        named = "rdk" in re.split("[^a-z]", key.lower())
        near = get_close_matches(key.lower(), [_KEY], cutoff=0.85)
        if named or near or key in WorkerOptions._fields:
            raise UnsupportedConfigurationError(
                f"--additional-config has {key!r}, which nothing reads; name it {_KEY!r}, and have "
                f"{', '.join(WorkerOptions._fields)} inside of that"
            )
    if isinstance(own, dict) and set(own) <= set(WorkerOptions._fields):
        found = WorkerOptions(**own)
        named = found.drafter is None or isinstance(found.drafter, str)
        flags = all(isinstance(on, bool) for on in (found.compare_ranks, found.verify_on_shards))
        if named and flags and found.verification in list(METHODS):
            return found
    raise UnsupportedConfigurationError(
        f'--additional-config has {_KEY} {own!r}; needs {{"drafter": DIR}}, a directory that '
        "python -m rdk_cuda calibrate has written, or nothing for the draft model's own head, and "
        'may have "verification": "token" or "block", "compare_ranks": true and '
        '"verify_on_shards": true'
    )


def lists_processed(vllm_config: Any) -> bool:
    """Whether vLLM lists tokens of rows that its limits have truncated; masks of them also then."""
    return bool(vllm_config.model_config.logprobs_mode.startswith("processed"))


def refuse_unsupported(
    vllm_config: Any, uses_v2_model_runner: bool, budgets_are_refused: bool
) -> None:
    """Refuse what would be served wrongly or is not proven.

    Args:
        vllm_config: vLLM's. uses_v2_model_runner: the worker's.
        budgets_are_refused: whether requests with a thinking budget are (`plugin`).

    Raises:
        UnsupportedConfigurationError: the first thing found, and what to do.
    """
    for said in _unsupported(vllm_config, uses_v2_model_runner, budgets_are_refused):
        raise UnsupportedConfigurationError(said)


def refuse_other_tokenizers(vllm_config: Any, has_another_tokenizer: bool) -> None:
    """Refuse vLLM's reading of the drafter's tokenizer unless it is another than the target's.

    Raises:
        UnsupportedConfigurationError: it does not know, or the drafter was not calibrated for it.
    """
    if vllm_config.speculative_config.use_heterogeneous_vocab == has_another_tokenizer:
        return
    raise UnsupportedConfigurationError(
        "the drafter was calibrated for a target with another "
        'tokenizer; add "use_heterogeneous_vocab": true to --speculative-config'
        if has_another_tokenizer
        else "use_heterogeneous_vocab needs a drafter that "
        "python -m rdk_cuda calibrate has written for a target with another tokenizer; name it in "
        "--additional-config, or leave use_heterogeneous_vocab out"
    )


def refuse_other_drafting(drafting: Any) -> None:
    """Refuse a proposer or speculator of vLLM that drafts in ways of its own.

    Raises:
        UnsupportedConfigurationError: its name.
    """
    name = type(drafting).__name__
    if name not in (*DRAFTING, *DRAFTING_V2):
        raise UnsupportedConfigurationError(
            f"vLLM drafts for this model with its {name}, which is not supported; needs one of "
            f"{', '.join((*DRAFTING, *DRAFTING_V2))}"
        )


def _unsupported(
    vllm_config: Any, uses_v2_model_runner: bool, budgets_are_refused: bool
) -> Iterator[str]:
    speculative, parallel = vllm_config.speculative_config, vllm_config.parallel_config
    if speculative is None:
        yield (
            "there is no --speculative-config; needs one with a method of "
            f"{', '.join(SPECULATIVE_METHODS)} and num_speculative_tokens"
        )
        return
    if speculative.method not in SPECULATIVE_METHODS:
        yield f"the method is {speculative.method!r}; needs one of {', '.join(SPECULATIVE_METHODS)}"
    if speculative.parallel_drafting and speculative.method != "dflash":
        yield "parallel_drafting draws all drafts at once, which is not supported; leave it out"
    if speculative.disable_padded_drafter_batch:
        yield "disable_padded_drafter_batch drafts after vLLM's bookkeeping; leave it out"
    if speculative.rejection_sample_method != "standard":
        yield (
            f"rejection_sample_method is {speculative.rejection_sample_method!r}, which "
            "rdk::verify does not do; leave it out"
        )
    yield from (
        _unsupported_in_v2(vllm_config) if uses_v2_model_runner else _unsupported_in_v1(vllm_config)
    )
    for name, does in _PARALLEL.items():
        if getattr(parallel, name) != 1:
            yield (
                f"{name} is {getattr(parallel, name)}, which {does}; it has never been tried and "
                "needs 1"
            )
    if vllm_config.reasoning_config is not None and not budgets_are_refused:
        yield (
            "with a reasoning parser a request may have a thinking budget, which is not supported, "
            "and our plugin, which refuses such a request, is not loaded; name rdk_cuda in "
            "VLLM_PLUGINS, or leave the parser out"
        )


def _unsupported_in_v1(vllm_config: Any) -> Iterator[str]:
    own = options(vllm_config)
    if own.verify_on_shards and own.verification == "block":
        yield 'verify_on_shards is by token; leave it out, or "verification": "block"'
    if own.verify_on_shards and vllm_config.lora_config is not None:
        yield "LoRA adapters need whole rows of logits; leave verify_on_shards out"
    if vllm_config.scheduler_config.async_scheduling:
        yield (
            "with async scheduling the model runner V1 drafts before a step's tokens are known on "
            "the host; add --no-async-scheduling, or serve with the model runner V2"
        )


def _unsupported_in_v2(vllm_config: Any) -> Iterator[str]:
    speculative = vllm_config.speculative_config
    if not vllm_config.scheduler_config.async_scheduling:
        yield (
            "without async scheduling the model runner V2 is not told which drafts were cut off "
            "because a grammar forbids them; leave out --no-async-scheduling, or, on a CPU, where "
            "vLLM has none, set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    if options(vllm_config).verify_on_shards:
        yield (
            "verify_on_shards is for model runner V1; leave it out, and give each rank whole rows "
            "of its own requests: --enable-batch-sharded-sampling"
        )
    if options(vllm_config).compare_ranks and not vllm_config.model_config.enforce_eager:
        yield "compare_ranks reads on the host, which CUDA graphs do not allow; add --enforce-eager"
    if speculative.draft_sample_method != "greedy":
        yield (
            f"draft_sample_method is {speculative.draft_sample_method!r}, for which vLLM keeps "
            "logits of all tokens; leave it out: rdk::draft draws and keeps its own"
        )
    for name, does in _NOT_IN_V2.items():
        if getattr(speculative, name, None):
            yield f"{name} {does}; leave it out"
    if vllm_config.lora_config is not None:
        yield (
            "with LoRA the model runner V2 takes an adapter of the head for each request and not "
            "for each draft, in vLLM's own speculation, too; set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    if vllm_config.watermark_config is not None:
        yield "watermarks replace vLLM's draws, which are not used; leave the watermark out"
