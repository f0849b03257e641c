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

from ..engine_version import UnknownEngineError, refuse_untested
from ..huggingface.saved_drafter import load_pruned
from ..huggingface.text_drafter import is_text_drafter
from .drafting import DraftWorker
from .sampling import eagle_sample
from .server_options import UnsupportedConfigurationError, asked_for, refuse_unsupported

# tests/engines checks all names that are used of SGLang in its wheel.
TESTED = ("0.5.23",)

CREATE_WORKER = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"
"""Around this SGLang's process for one rank asks for its worker: where the others are put in."""

_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
_UTILS = "sglang.srt.speculative.spec_utils"
AROUND = {
    "init_token_map": f"{_WORKER}.init_token_map",
    "init_eagle_head": f"{_WORKER}.init_lm_head",
    "init_standalone_head": "sglang.srt.speculative.standalone_worker_v2.StandaloneDraftWorker"
    ".init_lm_head",
    "draft_forward": f"{_WORKER}.draft_forward",
    "draft_extend_for_prefill": f"{_WORKER}._draft_extend_for_prefill",
    "draft_extend_for_decode": f"{_WORKER}._draft_extend_for_decode",
    "renorm_draft_probs": f"{_UTILS}.renorm_draft_probs",
    "fast_sample": f"{_UTILS}.fast_sample",
    "sample_draft_proposal": f"{_UTILS}.sample_draft_proposal",
    "capture_one_shape": "sglang.srt.speculative.eagle_draft_cuda_graph_runner"
    ".EAGLEDraftCudaGraphRunner.capture_one_shape",
    "eagle_sample": "sglang.srt.speculative.eagle_utils.eagle_sample",
}
"""The wrapped functions, by the name of the plugin's own."""


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

    asked = asked_for(resolving_view(server_args))
    if asked is None:
        previous(server_args)
        return
    refuse_untested("SGLang", ("sglang",), TESTED)
    _refuse_failed({CREATE_WORKER} - HookRegistry._patched)
    previous(server_args)
    refuse_unsupported(resolved_view(server_args))
    if asked.directory is not None:
        _calibrated(asked.directory)  # a directory that is not right costs no time
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
    asked = asked_for(options)
    if asked is not None:
        refuse_untested("SGLang", ("sglang",), TESTED)
        refuse_unsupported(options)
        if not options.speculative_use_rejection_sampling:
            raise UnsupportedConfigurationError(
                "SGLang settled its options before it loaded the "
                "plugin; call sglang.srt.plugins.load_plugins() first, as sglang.launch_server and "
                "sglang.Engine do"
            )
        calibrated = None if asked.directory is None else _calibrated(asked.directory)
        by_block = options.speculative_use_block_verification
        _install(DraftWorker(calibrated, "block" if by_block else "token"))
    return original(algorithm, server_args)


def _calibrated(directory: Any) -> Any:
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

    taken = sorted(set(AROUND.values()) & HookRegistry._patched)
    if taken:
        raise UnknownEngineError(
            f"rdk_cuda.integrations.sglang: another plugin has hooks on {', '.join(taken)}; leave "
            "it out with SGLANG_PLUGINS=rdk_cuda"
        )
    for name, target in AROUND.items():
        HookRegistry.register(target, _wrapped(worker, name), HookType.AROUND)
    HookRegistry.apply_hooks()
    _refuse_failed(set(AROUND.values()) - HookRegistry._patched)


def _refuse_failed(targets: set[str]) -> None:
    if targets:
        raise UnknownEngineError(
            "rdk_cuda.integrations.sglang: SGLang could not apply hooks to "
            f"{', '.join(sorted(targets))}; its log says why"
        )


def _wrapped(worker: DraftWorker, name: str) -> Callable[..., Any]:
    if name == "eagle_sample":
        return partial(eagle_sample, worker)
    hook: Callable[..., Any] = getattr(
        worker, "init_lm_head" if name in ("init_eagle_head", "init_standalone_head") else name
    )
    return hook
