"""What the plugin uses of SGLang, by name, signature and call.

A hook that is there but that nobody calls any more would leave a request half served: drafted by
SGLang, judged as if `rdk::draft` had drafted it. So who calls it is checked, too.
"""

from __future__ import annotations

from .engine_sources import Hook


def _function(module: str, name: str, parameters: str | None, calls: str = "") -> Hook:
    named = None if parameters is None else tuple(parameters.split())
    return Hook(f"sglang.srt.{module}", name, named, calls=tuple(calls.split()))


def _replaced(module: str, name: str, parameters: str, calls: str = "") -> Hook:
    return _function(module, name, parameters, calls)._replace(replaced=True)


def _class(module: str, name: str, attributes: str) -> Hook:
    return Hook(f"sglang.srt.{module}", name, None, tuple(attributes.split()))


_WORKER = "speculative.eagle_worker_v2"
_STANDALONE = "speculative.standalone_worker_v2"
_UTILS = "speculative.spec_utils"
_GRAPH = "speculative.eagle_draft_cuda_graph_runner"
_FIELDS = "arg_groups.fields"

CREATE_WORKER = _replaced(
    "speculative.spec_info", "SpeculativeAlgorithm.create_worker", "self server_args"
)
"""Around this SGLang's process for one rank asks for its worker: where the others are put in."""

AROUND = {
    "init_token_map": _replaced(_WORKER, "EagleDraftWorker.init_token_map", "self"),
    "init_eagle_head": _replaced(_WORKER, "EagleDraftWorker.init_lm_head", "self"),
    "init_standalone_head": _replaced(_STANDALONE, "StandaloneDraftWorker.init_lm_head", "self"),
    "draft_forward": _replaced(
        _WORKER, "EagleDraftWorker.draft_forward", "self forward_batch", "sample_draft_proposal"
    ),
    "draft_extend_for_prefill": _replaced(
        _WORKER,
        "EagleDraftWorker._draft_extend_for_prefill",
        "self batch target_hidden_states next_token_ids mm_input_embeds kv_loc_plan",
        "renorm_draft_probs fast_sample",
    ),
    "draft_extend_for_decode": _replaced(
        _WORKER,
        "EagleDraftWorker._draft_extend_for_decode",
        "self batch batch_result kv_loc_plan",
        "sample_draft_proposal",
    ),
    "renorm_draft_probs": _replaced(
        _UTILS, "renorm_draft_probs", "next_token_logits sampling_info use_rejection_sampling"
    ),
    "fast_sample": _replaced(
        _UTILS, "fast_sample", "probs num_samples sampling_seed positions draft_step"
    ),
    "sample_draft_proposal": _replaced(
        _UTILS,
        "sample_draft_proposal",
        "next_token_logits temperatures top_ks sampling_seed positions draft_step",
    ),
    "capture_one_shape": _replaced(
        _GRAPH,
        "EAGLEDraftCudaGraphRunner.capture_one_shape",
        "self size forward stream_idx variant_label attention_variant",
        "draft_forward",
    ),
    "eagle_sample": _replaced(
        "speculative.eagle_utils",
        "eagle_sample",
        "verify_input batch logits_output grammar_mask uno_target_max_top_k watermark_state "
        "watermark_full_mask",
        "sanitize_nan_logits apply_scaling_penalties apply",
    ),
}
"""What the plugin wraps, by the name of its own function."""

HOOKS = (
    CREATE_WORKER,
    *AROUND.values(),
    # How a plugin wraps functions and settles options.
    _class("plugins.hook_registry", "HookRegistry", "_patched apply_hooks register"),
    _function("plugins.hook_registry", "HookRegistry.register", "cls target hook hook_type source"),
    _class("plugins.hook_registry", "HookType", "AROUND"),
    _function("arg_groups.resolution_hooks", "register_resolution_hook", "name"),
    _function("arg_groups.speculative_hook", "handle_speculative_decoding", "server_args"),
    _function("arg_groups.overrides", "declare_resolution", "server_args source"),
    _function("arg_groups.model_override_base", "resolving_view", "server_args"),
    _function("arg_groups.model_override_base", "resolved_view", "server_args"),
    # The options that are read.
    _class(
        f"{_FIELDS}.spec",
        "Spec",
        "enable_multi_layer_eagle speculative_accept_threshold_acc "
        "speculative_accept_threshold_single speculative_adaptive speculative_algorithm "
        "speculative_draft_model_path speculative_eagle_topk speculative_token_map "
        "speculative_use_block_verification speculative_use_rejection_sampling",
    ),
    _class(f"{_FIELDS}.parallel", "Parallel", "attn_cp_size attn_dp_size dp_size pp_size tp_size"),
    _class(f"{_FIELDS}.disagg", "Disagg", "disaggregation_mode"),
    _class(f"{_FIELDS}.exec_", "ExecFeatures", "enable_watermark"),
    # Who calls what is wrapped, and who else would draw a draft.
    _function(_WORKER, "EagleDraftWorker.alloc_memory_pool", None, "init_token_map init_lm_head"),
    _function(
        _STANDALONE, "StandaloneDraftWorker.alloc_memory_pool", None, "init_token_map init_lm_head"
    ),
    _function(
        _WORKER,
        "EAGLEWorkerV2.forward_batch_generation",
        None,
        "draft verify _draft_extend_for_decode _forward_prefill_batch",
    ),
    _function(_WORKER, "EAGLEWorkerV2._forward_prefill_batch", None, "_draft_extend_for_prefill"),
    _function(_WORKER, "EagleDraftWorker.draft", None, "draft_forward execute"),
    _function(_WORKER, "EAGLEWorkerV2.verify", None, "run_eagle_verify"),
    _function("speculative.eagle_worker_common", "run_eagle_verify", None, "eagle_sample"),
    # What is read or replaced.
    _class(
        _WORKER,
        "EagleDraftWorker",
        "draft_runner hot_token_id req_to_token_pool speculative_num_steps target_worker",
    ),
    _class("managers.tp_worker", "TpModelWorker", "model_config"),
    _class("mem_cache.memory_pool", "ReqToTokenPool", "req_to_token"),
    _class(_GRAPH, "EagleDraftInputBuffers", "draft_probs"),
    _class(
        "speculative.eagle_info", "EagleVerifyInput", "draft_token draft_token_num retrieve_index"
    ),
    _class(
        "sampling.sampling_batch_info",
        "SamplingBatchInfo",
        "acc_additive_penalties acc_scaling_penalties is_all_greedy logit_bias min_ps "
        "need_min_p_sampling need_top_k_sampling need_top_p_sampling sampling_seed temperatures "
        "top_ks top_ps",
    ),
    _class(
        "managers.schedule_batch",
        "ScheduleBatch",
        "forward_mode req_pool_indices sampling_info seq_lens",
    ),
    _class(
        "model_executor.forward_batch_info",
        "ForwardBatch",
        "forward_mode req_pool_indices sampling_info",
    ),
    _class("layers.logits_processor", "LogitsProcessorOutput", "next_token_logits"),
    _class("layers.logits_processor", "LogitsProcessor", "vocab_size"),
    _function(
        "layers.logits_processor",
        "LogitsProcessor._compute_lm_head",
        "self hidden_states lm_head embedding_bias out",
    ),
    _class("constrained.base_grammar_backend", "GrammarMask", "apply"),
    _function(
        "sampling.penaltylib.repetition_penalty",
        "apply_scaling_penalties",
        "logits scaling_penalties",
    ),
    _function("utils.async_probe", "sanitize_nan_logits", "logits msg"),
)
