"""What the adapters use of vLLM and of SGLang, by name, signature and call (`engine_sources.py`).

`python -m tests.engines.engine_hooks` counts the names of vLLM. A name is a function, or a class of
which attributes are used, as its source defines it; both model runners and versions together.

- Replaced (`=`): a function in whose place ours stands, of a class or of one object. A worker's own
  methods are among them: to override these is what `--worker-cls` is for.
- Private: a function that is called, or a class of whose objects attributes are read or set,
  although nobody hands them to us: runners, samplers, states, proposers, heads, ranks.
- Public: fields of vLLM's configuration, of a request's parameters, and of data that is an argument
  or a result of a replaced function. A test sees that their classes are declared as data.
- Callers: functions that are neither replaced nor called. Only what they call is looked at.

Beside these: the names of the classes that draft, which `configuration.py` lists, two sentences of
vLLM's (`plugin.py`), and variables of the environment.

vLLM's other official points do not reach as far. A `custom_class` proposer is given token ids on
the host, and no model (V1 only). Logits processors change rows, and decide nothing. A
`PluggableLayer` may be another head, but vLLM draws from its logits and keeps none.
`stat_logger_plugins` are shown what the scheduler knows.

A hook of SGLang that is there but that nobody calls any more would leave a request half served:
drafted by SGLang, judged as if `rdk::draft` had drafted it. So who calls it is checked, too.
"""

from __future__ import annotations

from .engine_sources import hooks

_REPLACED = """
sampling_params
    = SamplingParams._validate_spec_decode(self speculative_config)
config.vllm
    = VllmConfig._get_v2_model_runner_unsupported_features(self)
v1.worker.gpu_worker
    = Worker.init_device(self)
    = Worker.load_model(self load_dummy_weights)
    = Worker.execute_model(self scheduler_output)
    = Worker.take_draft_token_ids(self)
v1.worker.gpu_model_runner
    = GPUModelRunner._sample(self logits spec_decode_metadata)
model_executor.models.llama
    = LlamaForCausalLM.compute_logits(self hidden_states)
v1.spec_decode.llm_base_proposer
    = SpecDecodeBaseProposer._sample_draft_tokens(self hidden_states sampling_metadata)
v1.worker.gpu.sample.sampler
    = Sampler.sample(self logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids
        expanded_local_pos seq_lens_upper_bound_np return_logprobs)
v1.worker.gpu.spec_decode.rejection_sampler
    = RejectionSampler._verify(self logits draft_logits draft_sampled pos cu_num_logits idx_mapping
        idx_mapping_np expanded_idx_mapping expanded_local_pos seq_lens_upper_bound_np
        verify_draft_sampled)
"""

# Where the versions differ.
_OF = {
    "0.32.0": """
v1.worker.gpu.spec_decode.speculator
    = DraftModelSpeculator.sample_draft(self hidden_states sample_src_positions idx_mapping
        temperature seeds draft_step draft_logits spec_step_idx)
""",
    "0.33.0": """
v1.worker.gpu.spec_decode.speculator
    = DraftModelSpeculator.sample_draft(self hidden_states sample_src_positions idx_mapping
        temperature seeds draft_step draft_logits spec_step_idx num_steps)
""",
}

_PRIVATE = """
exceptions
    VLLMValidationError.__init__(self message parameter value)
distributed.parallel_state
    get_tp_group()
    GroupCoordinator: device_group
    GroupCoordinator.all_gather(self input_ dim)
    GroupCoordinator.all_reduce(self input_)
model_executor.layers.logits_processor
    LogitsProcessor: logits_as_input scale soft_cap
model_executor.layers.vocab_parallel_embedding
    VocabParallelEmbedding: org_vocab_size shard_indices tp_size
    VocabParallelEmbeddingShardIndices: num_org_elements org_vocab_start_index
model_executor.layers.utils
    apply_penalties(logits prompt_tokens_tensor output_tokens_tensor presence_penalties
        frequency_penalties repetition_penalties)
model_executor.models.llama
    LlamaForCausalLM: lm_head logits_processor model
    LlamaForCausalLM.compute_logits_local(self hidden_states)
model_executor.models.llama_eagle3
    Eagle3LlamaForCausalLM: draft_id_to_target_id
model_executor.models.deepseek_mtp
    DeepSeekMultiTokenPredictorLayer: shared_head
v1.sample.ops.topk_topp_sampler
    apply_top_k_top_p(logits k p)
v1.worker.worker_base
    WorkerBase: get_model model_runner vllm_config
v1.worker.gpu_model_runner
    GPUModelRunner: device drafter input_batch max_model_len model requests vllm_config
v1.worker.gpu_input_batch
    InputBatch: generators num_computed_tokens_cpu num_prompt_tokens num_tokens_no_spec req_ids
        sampling_metadata token_ids_cpu
v1.spec_decode.llm_base_proposer
    SpecDecodeBaseProposer: model vllm_config
v1.spec_decode.draft_model
    DraftModelProposer: use_heterogeneous_vocab
v1.worker.gpu.model_runner
    GPUModelRunner: device rejection_sampler req_states sampler speculator
v1.worker.gpu.states
    RequestState: all_token_ids req_id_to_index total_len
v1.worker.gpu.buffer_utils
    StagedWriteTensor: gpu
    UvaBackedTensor: gpu np
v1.worker.gpu.spec_decode.speculator
    DraftModelSpeculator: draft_tokens model vllm_config
v1.worker.gpu.sample.sampler
    Sampler: sampling_states
    Sampler.apply_sampling_params(self logits expanded_idx_mapping idx_mapping idx_mapping_np pos
        input_ids expanded_local_pos seq_lens_upper_bound_np skip_top_k_top_p)
v1.worker.gpu.sample.states
    SamplingStates: seeds temperature top_k top_p vocab_size
"""

_PUBLIC = """
config.vllm
    VllmConfig: additional_config lora_config model_config parallel_config reasoning_config
        scheduler_config speculative_config use_v2_model_runner watermark_config
config.model
    ModelConfig: enforce_eager get_vocab_size hf_config logprobs_mode seed
config.scheduler
    SchedulerConfig: async_scheduling long_prefill_token_threshold max_num_batched_tokens
        max_num_scheduled_tokens max_num_seqs
config.parallel
    ParallelConfig: data_parallel_size enable_batch_sharded_sampling pipeline_parallel_size
        prefill_context_parallel_size rank tensor_parallel_size worker_cls
config.speculative
    SpeculativeConfig: disable_padded_drafter_batch draft_model_config draft_sample_method
        enable_adaptive_verification method num_speculative_tokens parallel_drafting
        rejection_sample_method target_parallel_config use_heterogeneous_vocab
        use_local_argmax_reduction
sampling_params
    SamplingParams: all_stop_token_ids logit_bias min_p min_tokens seed structured_outputs
        thinking_token_budget
v1.core.sched.output
    SchedulerOutput: has_structured_output_requests num_scheduled_tokens scheduled_cached_reqs
        scheduled_new_reqs
        scheduled_spec_decode_tokens
    CachedRequestData: resumed_req_ids
v1.outputs
    DraftTokenIds: draft_token_ids req_ids
    LogprobsTensors: logprob_token_ids logprobs selected_token_ranks
    SamplerOutput: logprobs_tensors sampled_token_ids
v1.worker.gpu_input_batch
    CachedRequestState: sampling_params
v1.sample.metadata
    SamplingMetadata: all_greedy allowed_token_ids_mask bad_words_token_ids frequency_penalties
        logprob_token_ids max_num_logprobs no_penalties output_token_ids presence_penalties
        prompt_token_ids repetition_penalties spec_token_ids temperature top_k top_p
v1.spec_decode.metadata
    SpecDecodeMetadata: draft_token_ids num_draft_tokens
"""
_PUBLIC_OF = {
    "0.32.0": "",
    "0.33.0": "config.speculative\n    SpeculativeConfig: draft_lm_head_quantization",
}

_CALLERS = """
v1.worker.gpu_model_runner
    GPUModelRunner.execute_model(self scheduler_output intermediate_tensors) -> compute_logits
    GPUModelRunner.sample_tokens(self grammar_output) -> _sample apply_grammar_bitmask
v1.spec_decode.llm_base_proposer
    SpecDecodeBaseProposer.propose(...) -> _sample_draft_tokens
v1.worker.gpu.model_runner
    GPUModelRunner.sample(self hidden_states input_batch grammar_output) -> apply_grammar_bitmask
        grammar_invalid_drafts rejection_sampler sampler
    GPUModelRunner.sample_tokens(self grammar_output) -> postprocess_sampled propose sample
        set_draft_tokens
v1.worker.gpu.sample.sampler
    Sampler.__call__(self logits input_batch) -> sample
v1.worker.gpu.spec_decode.rejection_sampler
    RejectionSampler._verify_in_chunks(...) -> _verify
v1.worker.gpu.spec_decode.standalone_ar.speculator
    StandaloneARSpeculator._run_model(...) -> model
    StandaloneARSpeculator._prefill(...) -> sample_draft
    StandaloneARSpeculator._multi_step_decode(...) -> sample_draft
v1.worker.gpu.spec_decode.target_dependent_ar.speculator
    TargetDependentARSpeculator._prefill(...) -> sample_draft
    TargetDependentARSpeculator._generate_draft(...) -> sample_draft
v1.worker.gpu.spec_decode.dflash.speculator
    DFlashSpeculator._generate_draft(...) -> sample_draft
"""

_CPU = "v1.worker.cpu_worker\n    = CPUWorker.init_device(self)"
CPU_WORKER = hooks("vllm", _CPU)
HOOKS = {
    version: {
        "replaced": hooks("vllm", _REPLACED + _OF[version]),
        "private": hooks("vllm", _PRIVATE),
        "public": hooks("vllm", _PUBLIC + _PUBLIC_OF[version]),
        "callers": hooks("vllm", _CALLERS),
    }
    for version in _OF
}


def counted() -> dict[str, int]:
    """How many names of each kind there are, of all versions, and the worker for CPUs."""
    found: dict[str, set[tuple[str, str]]] = {}
    for kinds in ({"replaced": CPU_WORKER}, *HOOKS.values()):
        for kind, names in kinds.items():
            found.setdefault(kind, set()).update((hook.module, hook.name) for hook in names)
    return {kind: len(names) for kind, names in found.items()}


SGLANG = hooks(
    "sglang.srt",
    """
speculative.spec_info
    = SpeculativeAlgorithm.create_worker(self server_args)
speculative.eagle_worker_v2
    = EagleDraftWorker.init_token_map(self)
    = EagleDraftWorker.init_lm_head(self)
    = EagleDraftWorker.draft_forward(self forward_batch) -> sample_draft_proposal
    = EagleDraftWorker._draft_extend_for_prefill(self batch target_hidden_states next_token_ids
        mm_input_embeds kv_loc_plan) -> renorm_draft_probs fast_sample
    = EagleDraftWorker._draft_extend_for_decode(self batch batch_result kv_loc_plan) ->
        sample_draft_proposal
    EagleDraftWorker.alloc_memory_pool(...) -> init_token_map init_lm_head
    EAGLEWorkerV2.forward_batch_generation(...) -> draft verify _draft_extend_for_decode
        _forward_prefill_batch
    EAGLEWorkerV2._forward_prefill_batch(...) -> _draft_extend_for_prefill
    EagleDraftWorker.draft(...) -> draft_forward execute
    EAGLEWorkerV2.verify(...) -> run_eagle_verify
    EagleDraftWorker: draft_runner hot_token_id req_to_token_pool speculative_num_steps
        target_worker
speculative.standalone_worker_v2
    = StandaloneDraftWorker.init_lm_head(self)
    StandaloneDraftWorker.alloc_memory_pool(...) -> init_token_map init_lm_head
speculative.spec_utils
    = renorm_draft_probs(next_token_logits sampling_info use_rejection_sampling)
    = fast_sample(probs num_samples sampling_seed positions draft_step)
    = sample_draft_proposal(next_token_logits temperatures top_ks sampling_seed positions
        draft_step)
speculative.eagle_draft_cuda_graph_runner
    = EAGLEDraftCudaGraphRunner.capture_one_shape(self size forward stream_idx variant_label
        attention_variant) -> draft_forward
    EagleDraftInputBuffers: draft_probs
speculative.eagle_utils
    = eagle_sample(verify_input batch logits_output grammar_mask uno_target_max_top_k
        watermark_state watermark_full_mask) -> sanitize_nan_logits apply_scaling_penalties apply
plugins.hook_registry
    HookRegistry: _patched apply_hooks register
    HookRegistry.register(cls target hook hook_type source)
    HookType: AROUND
arg_groups.resolution_hooks
    register_resolution_hook(name)
arg_groups.speculative_hook
    handle_speculative_decoding(server_args)
arg_groups.overrides
    declare_resolution(server_args source)
arg_groups.model_override_base
    resolving_view(server_args)
    resolved_view(server_args)
arg_groups.fields.spec
    Spec: enable_multi_layer_eagle speculative_accept_threshold_acc
        speculative_accept_threshold_single speculative_adaptive speculative_algorithm
        speculative_draft_model_path speculative_eagle_topk speculative_token_map
        speculative_use_block_verification speculative_use_rejection_sampling
arg_groups.fields.parallel
    Parallel: attn_cp_size attn_dp_size dp_size pp_size tp_size
arg_groups.fields.disagg
    Disagg: disaggregation_mode
arg_groups.fields.exec_
    ExecFeatures: enable_watermark
speculative.eagle_worker_common
    run_eagle_verify(...) -> eagle_sample
models.deepseek_nextn
    DeepseekV3ForCausalLMNextN: lm_head logits_processor
models.glm4_moe_nextn
    Glm4MoeForCausalLMNextN: lm_head logits_processor
models.mimo_mtp
    MiMoMTP: lm_head logits_processor
models.qwen3_5_mtp
    Qwen3_5ForCausalLMMTP: lm_head logits_processor
models.qwen3_next_mtp
    Qwen3NextForCausalLMMTP: lm_head logits_processor
managers.tp_worker
    TpModelWorker: model_config
mem_cache.memory_pool
    ReqToTokenPool: req_to_token
speculative.eagle_info
    EagleVerifyInput: draft_token draft_token_num retrieve_index
sampling.sampling_batch_info
    SamplingBatchInfo: acc_additive_penalties acc_scaling_penalties is_all_greedy logit_bias min_ps
        need_min_p_sampling need_top_k_sampling need_top_p_sampling sampling_seed temperatures
        top_ks top_ps
managers.schedule_batch
    ScheduleBatch: forward_mode req_pool_indices sampling_info seq_lens
model_executor.forward_batch_info
    ForwardBatch: forward_mode req_pool_indices sampling_info
layers.logits_processor
    LogitsProcessorOutput: next_token_logits
    LogitsProcessor: vocab_size
    LogitsProcessor._compute_lm_head(self hidden_states lm_head embedding_bias out)
constrained.base_grammar_backend
    GrammarMask: apply
sampling.penaltylib.repetition_penalty
    apply_scaling_penalties(logits scaling_penalties)
utils.async_probe
    sanitize_nan_logits(logits msg)
""",
)

if __name__ == "__main__":
    print(", ".join(f"{count} {kind}" for kind, count in counted().items()))
