"""The entry point of `sglang.srt.plugins`, which SGLang loads in every process.

SGLang logs an error of a plugin and goes on without it. So nothing is refused while plugins are
loaded: that happens where SGLang settles its options, and again where a process asks for its
worker, and both stop SGLang. Nothing is wrapped around SGLang's drafting in a process that does not
serve with the plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...drafter import PrunedDrafter
from ..engine_version import UnknownEngineError, refuse_untested
from ..huggingface.saved_drafter import load_pruned
from ..huggingface.text_drafter import is_text_drafter
from .drafting import DraftWorker
from .sampling import eagle_sample
from .server_options import (
    UnsupportedConfigurationError,
    calibrated_directory,
    is_asked_for,
    refuse_unsupported,
)

# tests/engines checks all names that are used of SGLang in its wheel.
TESTED = ("0.5.23",)

CREATE_WORKER = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"
"""Around this SGLang's process for one rank asks for its worker: where the others are put in."""

_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
_STANDALONE = "sglang.srt.speculative.standalone_worker_v2.StandaloneDraftWorker"
_UTILS = "sglang.srt.speculative.spec_utils"
_GRAPHS = "sglang.srt.speculative.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner"
AROUND = {
    f"{_WORKER}.init_token_map": "init_token_map",
    f"{_WORKER}.init_lm_head": "init_lm_head",
    f"{_STANDALONE}.init_lm_head": "init_lm_head",
    f"{_WORKER}.draft_forward": "draft_forward",
    f"{_WORKER}._draft_extend_for_prefill": "draft_extend",
    f"{_WORKER}._draft_extend_for_decode": "draft_extend",
    f"{_UTILS}.renorm_draft_probs": "renorm_draft_probs",
    f"{_UTILS}.fast_sample": "fast_sample",
    f"{_UTILS}.sample_draft_proposal": "sample_draft_proposal",
    f"{_GRAPHS}.capture_one_shape": "capture_one_shape",
}
"""The functions that those of `DraftWorker` are wrapped around."""
EAGLE_SAMPLE = "sglang.srt.speculative.eagle_utils.eagle_sample"


def register() -> None:
    """Activate only if `--speculative-token-map` names a directory."""
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    register_resolution_hook("handle_speculative_decoding")(_handle_speculative_decoding)
    HookRegistry.register(CREATE_WORKER, _create_worker, HookType.AROUND)


def _handle_speculative_decoding(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Around the step in which SGLang settles its options for speculation.

    Raises:
        UnknownEngineError, UnsupportedConfigurationError, SavedDrafterError: what stops SGLang.
    """
    from sglang.srt.arg_groups.model_override_base import resolved_view, resolving_view
    from sglang.srt.arg_groups.overrides import declare_resolution
    from sglang.srt.plugins.hook_registry import HookRegistry

    if not is_asked_for(resolving_view(server_args)):
        previous(server_args)
        return
    refuse_untested("SGLang", ("sglang",), TESTED)
    _refuse_failed({CREATE_WORKER} - HookRegistry._patched)
    previous(server_args)
    refuse_unsupported(resolved_view(server_args))
    _calibrated(resolving_view(server_args))  # a directory that is not right costs no time
    # SGLang then draws drafts by functions that are wrapped. It refuses the option itself for
    # STANDALONE, and for EAGLE3 with a reduced vocabulary.
    declare_resolution(server_args, "rdk_cuda", speculative_use_rejection_sampling=True)


def _create_worker(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    """Around `SpeculativeAlgorithm.create_worker`.

    Raises:
        UnknownEngineError, UnsupportedConfigurationError, SavedDrafterError: what stops SGLang.
    """
    from sglang.srt.arg_groups.model_override_base import resolving_view

    options = resolving_view(server_args)
    if is_asked_for(options):
        refuse_untested("SGLang", ("sglang",), TESTED)
        refuse_unsupported(options)
        if not options.speculative_use_rejection_sampling:
            raise UnsupportedConfigurationError(
                "SGLang settled its options before it loaded the "
                "plugin; call sglang.srt.plugins.load_plugins() first, as sglang.launch_server and "
                "sglang.Engine do"
            )
        by_block = options.speculative_use_block_verification
        _install(DraftWorker(_calibrated(options), "block" if by_block else "token"))
    return original(algorithm, server_args)


def _calibrated(options: Any) -> PrunedDrafter | None:
    directory = calibrated_directory(options)
    if directory is None:
        return None
    if is_text_drafter(directory):
        raise UnsupportedConfigurationError(
            f"the drafter in {directory} has another tokenizer; serve it with Generate or vLLM"
        )
    drafter, _ = load_pruned(directory)
    if drafter.dynamic_tokens is not None:
        raise UnsupportedConfigurationError(
            f"the drafter in {directory} has dynamic tokens, which SGLang hands too little over "
            "for (no hidden states, no contexts); calibrate with --dynamic 0"
        )
    if drafter.bias is not None:
        raise UnsupportedConfigurationError(
            f"the head in {directory} has a bias, which SGLang does not add; needs one without"
        )
    return drafter


def _install(worker: DraftWorker) -> None:
    """Wrap `worker` around SGLang's functions, all of them or none.

    Raises:
        UnknownEngineError: another plugin has wrapped one of them, or SGLang cannot wrap it.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {target: getattr(worker, name) for target, name in AROUND.items()}
    hooks[EAGLE_SAMPLE] = partial(eagle_sample, worker)
    if taken := sorted(hooks.keys() & HookRegistry._patched):
        raise UnknownEngineError(
            f"rdk_cuda.integrations.sglang: another plugin has hooks on {', '.join(taken)}; leave "
            "it out with SGLANG_PLUGINS=rdk_cuda"
        )
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    HookRegistry.apply_hooks()
    _refuse_failed(hooks.keys() - HookRegistry._patched)


def _refuse_failed(targets: set[str]) -> None:
    if targets:
        raise UnknownEngineError(
            "rdk_cuda.integrations.sglang: SGLang could not apply hooks to "
            f"{', '.join(sorted(targets))}; its log says why"
        )
