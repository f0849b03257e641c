"""What the workers use of vLLM, by name and signature."""

from __future__ import annotations

from .engine_sources import Hook


def _function(module: str, name: str, parameters: str) -> Hook:
    return Hook(f"vllm.{module}", name, tuple(parameters.split()))


def _replaced(module: str, name: str, parameters: str) -> Hook:
    return _function(module, name, parameters)._replace(replaced=True)


def _class(module: str, name: str, attributes: str) -> Hook:
    return Hook(f"vllm.{module}", name, None, tuple(attributes.split()))


_RUNNER = "v1.worker.gpu_model_runner"
_PROPOSER = "v1.spec_decode.llm_base_proposer"
_SAMPLER = "v1.sample.sampler"
_BUILTIN = "v1.sample.logits_processor.builtin"

_SPECULATOR = "v1.worker.gpu.spec_decode.speculator"
_REJECTION = "v1.worker.gpu.spec_decode.rejection_sampler"

_BOTH = (
    _class("model_executor.layers.logits_processor", "LogitsProcessor", "scale soft_cap"),
    _class("config.vllm", "VllmConfig", "additional_config speculative_config"),
    _class(
        "config.speculative",
        "SpeculativeConfig",
        "disable_padded_drafter_batch method num_speculative_tokens parallel_drafting "
        "rejection_sample_method target_parallel_config use_heterogeneous_vocab",
    ),
    _class("sampling_params", "SamplingParams", "logit_bias min_p seed structured_outputs"),
    _replaced("sampling_params", "SamplingParams._validate_spec_decode", "self speculative_config"),
    _class("v1.worker.gpu_worker", "Worker", "model_runner use_v2_model_runner"),
    _replaced("v1.worker.gpu_worker", "Worker.execute_model", "self scheduler_output"),
    _replaced("v1.worker.gpu_worker", "Worker.init_device", "self"),
    _replaced("v1.worker.gpu_worker", "Worker.load_model", "self load_dummy_weights"),
    _replaced("v1.worker.gpu_worker", "Worker.sample_tokens", "self grammar_output"),
    _replaced("v1.worker.gpu_worker", "Worker.take_draft_token_ids", "self"),
)
_CPU_WORKER = _replaced("v1.worker.cpu_worker", "CPUWorker.init_device", "self")

_V1 = (
    _class(
        _RUNNER,
        "GPUModelRunner",
        "_draft_prob_req_ids _draft_probs drafter input_batch positions query_start_loc "
        "rejection_sampler requests sampler uses_mrope",
    ),
    _function(_RUNNER, "GPUModelRunner._sample", "self logits spec_decode_metadata"),
    _class(
        "v1.worker.gpu_input_batch",
        "InputBatch",
        "generators logitsprocs num_tokens_no_spec req_ids sampling_metadata token_ids_cpu",
    ),
    _class("v1.worker.gpu_input_batch", "CachedRequestState", "sampling_params"),
    _class(
        "v1.sample.metadata",
        "SamplingMetadata",
        "all_greedy allowed_token_ids_mask bad_words_token_ids frequency_penalties "
        "logitsprocs logprob_token_ids max_num_logprobs no_penalties output_token_ids "
        "presence_penalties prompt_token_ids repetition_penalties spec_token_ids temperature "
        "thinking_budget_state_holder top_k top_p",
    ),
    _class(
        "v1.spec_decode.metadata",
        "SpecDecodeMetadata",
        "draft_token_ids logits_indices max_spec_len num_draft_tokens",
    ),
    _replaced(_PROPOSER, "SpecDecodeBaseProposer.load_model", "self target_model"),
    _replaced(
        _PROPOSER,
        "SpecDecodeBaseProposer._sample_draft_tokens",
        "self hidden_states sampling_metadata",
    ),
    _function(
        _PROPOSER,
        "SpecDecodeBaseProposer.set_inputs_first_pass",
        "self target_token_ids next_token_ids target_positions target_hidden_states "
        "token_indices_to_sample cad num_rejected_tokens_gpu",
    ),
    _class(
        _PROPOSER,
        "SpecDecodeBaseProposer",
        "_last_draft_probs model pass_hidden_states_to_model positions take_last_draft_probs",
    ),
    _function(
        "v1.spec_decode.draft_model",
        "DraftModelProposer.__init__",
        "self vllm_config device runner",
    ),
    _function("v1.spec_decode.eagle", "EagleProposer.__init__", "self vllm_config device runner"),
    _replaced(
        _SAMPLER,
        "Sampler.forward",
        "self logits sampling_metadata predict_bonus_token logprobs_mode_override",
    ),
    _function(_SAMPLER, "Sampler.__init__", "self logprobs_mode use_fp64_gumbel"),
    _function(_SAMPLER, "Sampler.compute_logprobs", "logits"),
    _function(_SAMPLER, "Sampler.gather_logprobs", "logprobs num_logprobs token_ids"),
    _function(
        _SAMPLER,
        "Sampler.gather_specific_token_logprobs",
        "self logprobs logprob_token_ids sampled",
    ),
    _replaced(
        "v1.sample.rejection_sampler",
        "RejectionSampler.forward",
        "self metadata draft_probs logits sampling_metadata",
    ),
    _function(
        "v1.sample.rejection_sampler",
        "RejectionSampler.__init__",
        "self sampler spec_config device",
    ),
    _class("v1.outputs", "SamplerOutput", "logprobs_tensors sampled_token_ids"),
    _class(
        "v1.sample.logits_processor.state",
        "LogitsProcessors",
        "argmax_invariant non_argmax_invariant",
    ),
    _function(_BUILTIN, "MinPLogitsProcessor.__init__", "self vllm_config device is_pin_memory"),
    _class(_BUILTIN, "MinPLogitsProcessor", "min_p min_p_count"),
    _function(_BUILTIN, "LogitBiasLogitsProcessor.__init__", "self _ device is_pin_memory"),
    _class(_BUILTIN, "LogitBiasLogitsProcessor", "biases"),
    _function(
        _BUILTIN,
        "MinTokensLogitsProcessor.apply_with_spec_decode",
        "self logits num_draft_tokens",
    ),
    _function(
        "v1.sample.ops.bad_words", "apply_bad_words", "logits bad_words_token_ids past_tokens_ids"
    ),
    _function(
        "v1.sample.ops.penalties",
        "apply_all_penalties",
        "logits prompt_token_ids presence_penalties frequency_penalties repetition_penalties "
        "output_token_ids",
    ),
    _function("v1.sample.ops.topk_topp_sampler", "apply_top_k_top_p", "logits k p"),
    _class("v1.core.sched.output", "SchedulerOutput", "num_scheduled_tokens"),
)

_V2 = (
    _class(
        "v1.worker.gpu.model_runner",
        "GPUModelRunner",
        "device draft_tokens_handler rejection_sampler req_states sampler speculative_config "
        "speculator",
    ),
    Hook(
        "vllm.v1.worker.gpu.model_runner",
        "GPUModelRunner.sample",
        ("self", "hidden_states", "input_batch", "grammar_output"),
        calls=("apply_grammar_bitmask", "grammar_invalid_drafts", "rejection_sampler", "sampler"),
    ),
    Hook(
        "vllm.v1.worker.gpu.model_runner",
        "GPUModelRunner.sample_tokens",
        ("self", "grammar_output"),
        calls=("postprocess_sampled", "propose", "sample", "set_draft_tokens"),
    ),
    _class(
        "v1.worker.gpu.input_batch",
        "InputBatch",
        "expanded_idx_mapping idx_mapping_np input_ids logits_indices req_ids",
    ),
    _class("v1.worker.gpu.states", "RequestState", "all_token_ids total_len"),
    _class(
        "v1.worker.gpu.spec_decode.utils", "DraftTokensHandler", "draft_tokens_np get_draft_tokens"
    ),
    _class("v1.outputs", "DraftTokenIds", "draft_token_ids req_ids"),
    _function(_SPECULATOR, "DraftModelSpeculator.__init__", "self vllm_config device"),
    _replaced(_SPECULATOR, "DraftModelSpeculator.load_model", "self target_model"),
    _replaced(
        _SPECULATOR,
        "DraftModelSpeculator.sample_draft",
        "self hidden_states sample_src_positions idx_mapping temperature seeds draft_step "
        "draft_logits spec_step_idx",
    ),
    _class(_SPECULATOR, "DraftModelSpeculator", "draft_logits max_num_reqs num_speculative_steps"),
    *(
        Hook(f"vllm.v1.worker.gpu.spec_decode.{module}.speculator", name, calls=("sample_draft",))
        for module, name in (
            ("standalone_ar", "StandaloneARSpeculator._prefill"),
            ("standalone_ar", "StandaloneARSpeculator._multi_step_decode"),
            ("target_dependent_ar", "TargetDependentARSpeculator._prefill"),
            ("target_dependent_ar", "TargetDependentARSpeculator._generate_draft"),
        )
    ),
    _class("v1.worker.gpu.spec_decode.eagle.speculator", "EagleSpeculator", "load_draft_model"),
    _function(
        _REJECTION, "RejectionSampler.__init__", "self sampler spec_config device watermark_key"
    ),
    _replaced(
        _REJECTION,
        "RejectionSampler.__call__",
        "self logits input_batch draft_logits invalid_drafts",
    ),
    _replaced(
        _REJECTION,
        "RejectionSampler._verify",
        "self logits draft_logits draft_sampled pos cu_num_logits idx_mapping idx_mapping_np "
        "expanded_idx_mapping expanded_local_pos seq_lens_upper_bound_np verify_draft_sampled",
    ),
    _class(
        "v1.worker.gpu.sample.sampler",
        "Sampler",
        "logprobs_mode needs_logits_processing return_sampling_mask sampling_states",
    ),
    _replaced(
        "v1.worker.gpu.sample.sampler",
        "Sampler._sample_random",
        "self processed_logits expanded_idx_mapping idx_mapping_np pos top_k top_p "
        "use_fused_sampler",
    ),
    _function(
        "v1.worker.gpu.sample.sampler",
        "Sampler.apply_sampling_params",
        "self logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids "
        "expanded_local_pos seq_lens_upper_bound_np skip_top_k_top_p",
    ),
    _class("v1.worker.gpu.sample.states", "SamplingStates", "seeds temperature"),
    _function(
        "v1.worker.gpu.sample.states",
        "SamplingStates.get_top_k_top_p",
        "self expanded_idx_mapping idx_mapping_np",
    ),
    _function("v1.sample.ops.topk_topp_sampler", "apply_top_k_top_p", "logits k p"),
    _class(
        "config.speculative",
        "SpeculativeConfig",
        "draft_model_config draft_sample_method enable_adaptive_verification "
        "use_local_argmax_reduction",
    ),
    _class("config.vllm", "VllmConfig", "watermark_config"),
)

GPU = (*_BOTH, *_V1)
GPU_V2 = (*_BOTH, *_V2)
CPU, CPU_V2 = (*GPU, _CPU_WORKER), (*GPU_V2, _CPU_WORKER)
