"""A stand-in for SGLang 0.5.23: what the plugin wraps, with SGLang's names, signatures and calls.

All of SGLang's modules that the plugin touches are this one. A test loads its own copy, since the
plugin changes it. `tests/engines/test_sglang_wheel.py` compares signatures and calls with the
published sources, and puts the published methods in the place of those here.

The models are tables: what comes next depends on the last token alone.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

TARGET_SIZE, WIDTH, STEPS, SLOTS = 5, 8, 2, 6000
TOP_K_ALL = 1 << 30

MODULES = (
    "arg_groups",
    "arg_groups.model_override_base",
    "arg_groups.overrides",
    "arg_groups.resolution_hooks",
    "plugins",
    "plugins.hook_registry",
    "sampling.penaltylib.repetition_penalty",
    "speculative",
    "speculative.eagle_draft_cuda_graph_runner",
    "speculative.eagle_utils",
    "speculative.eagle_worker_v2",
    "speculative.spec_info",
    "speculative.spec_utils",
    "speculative.standalone_worker_v2",
    "utils.async_probe",
)


def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fresh copy of this module, under the names of SGLang's modules."""
    spec = importlib.util.spec_from_file_location("fake_sglang", __file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    for name in ("fake_sglang", "sglang", "sglang.srt", *(f"sglang.srt.{m}" for m in MODULES)):
        monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


# Options and plugins.

resolution_hooks: dict[str, Callable[..., None]] = {}


def register_resolution_hook(name: str) -> Callable[[Any], Any]:
    def decorator(hook: Any) -> Any:
        resolution_hooks[name] = hook
        return hook

    return decorator


def resolving_view(server_args: Any) -> Any:
    return server_args


def resolved_view(server_args: Any) -> Any:
    return server_args


def declare_resolution(server_args: Any, source: str, **fields: Any) -> None:
    vars(server_args).update(fields)


class HookType(Enum):
    AROUND = "around"


class HookRegistry:
    _hooks: ClassVar[dict[str, Any]] = {}
    _patched: ClassVar[set[str]] = set()

    @classmethod
    def register(cls, target: str, hook: Any, hook_type: Any = None, *, source: Any = None) -> None:
        assert hook_type is HookType.AROUND
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hook in cls._hooks.items():
            if target not in cls._patched:
                _wrap(target, hook)
                cls._patched.add(target)


def _wrap(target: str, hook: Any) -> None:
    module = max((m for m in MODULES if target.startswith(f"sglang.srt.{m}.")), key=len)
    *classes, name = target.removeprefix(f"sglang.srt.{module}.").split(".")
    owner: Any = sys.modules[f"sglang.srt.{module}"]
    for inner in classes:
        owner = getattr(owner, inner)
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **options: hook(original, *args, **options))


class SpeculativeAlgorithm:
    def create_worker(self, server_args: Any) -> Any:
        return server_args.speculative_algorithm


# Batches.


def get_spec() -> Any:
    return SimpleNamespace(speculative_use_rejection_sampling=True, speculative_token_map="DIR")


class ForwardMode(Enum):
    DECODE = 1
    IDLE = 2

    def is_idle(self) -> bool:
        return self is ForwardMode.IDLE


@dataclass
class SamplingBatchInfo:
    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor
    sampling_seed: Tensor | None = None
    need_top_k_sampling: bool = False
    need_top_p_sampling: bool = False
    need_min_p_sampling: bool = False
    is_all_greedy: bool = False
    logit_bias: Tensor | None = None
    acc_additive_penalties: Tensor | None = None
    acc_scaling_penalties: Tensor | None = None


@dataclass
class Batch:
    """`ScheduleBatch` and `ForwardBatch`, as far as either is read."""

    req_pool_indices: Tensor
    seq_lens: Tensor
    sampling_info: SamplingBatchInfo
    forward_mode: ForwardMode = ForwardMode.DECODE
    spec_info: Any = None
    input_ids: Any = None
    out_cache_loc: Any = None
    positions: Any = None
    extend_lens: list[int] = field(default_factory=list)
    chunked_req_next_prompt_token: None = None

    @property
    def batch_size(self) -> int:
        return len(self.seq_lens)

    @classmethod
    def init_new(cls, batch: Batch, runner: Any, **options: Any) -> Batch:
        """Of `ForwardBatch`, for a prefill, of which only the last row of each request counts."""
        return cls(
            batch.req_pool_indices,
            batch.seq_lens,
            batch.sampling_info,
            input_ids=batch.input_ids[torch.tensor(batch.extend_lens).cumsum(0) - 1],
        )


ForwardBatch = Batch


@dataclass
class EagleDraftInput:
    topk_p: Any = None
    topk_index: Any = None
    draft_probs: Any = None
    hidden_states: Any = None
    bonus_tokens: Any = None
    num_tokens_per_req: int = -1
    num_tokens_for_logprob_per_req: int = -1
    dsa_topk_indices: Any = None
    cuda_graph_compatible: bool = True


EagleDraftExtendInput = SimpleNamespace


# Functions that the plugin calls or replaces.


def apply_scaling_penalties(logits: Tensor, scaling_penalties: Tensor) -> None:
    scaled = torch.where(logits < 0, logits * scaling_penalties, logits / scaling_penalties)
    logits.copy_(scaled)


def sanitize_nan_logits(logits: Tensor, msg: str = "") -> None:
    torch.nan_to_num_(logits, nan=-1e30, posinf=1e30, neginf=-1e30)


def fast_sample(
    probs: Tensor,
    num_samples: int = 1,
    *,
    sampling_seed: Tensor | None = None,
    positions: Tensor | None = None,
    draft_step: int = 0,
) -> Any:
    drawn = torch.multinomial(probs, num_samples)
    return probs.gather(1, drawn), drawn


def renorm_draft_probs(
    next_token_logits: Tensor, sampling_info: Any, use_rejection_sampling: bool
) -> Tensor:
    return (next_token_logits / sampling_info.temperatures).softmax(-1)


def sample_draft_proposal(
    next_token_logits: Tensor,
    temperatures: Tensor,
    top_ks: Tensor | None = None,
    *,
    sampling_seed: Tensor | None = None,
    positions: Tensor | None = None,
    draft_step: int = 0,
) -> Any:
    probs = (next_token_logits / temperatures).softmax(-1)
    return probs, *fast_sample(probs)


def eagle_sample(
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    uno_target_max_top_k: int | None = None,
    *,
    watermark_state: Any = None,
    watermark_full_mask: bool = True,
) -> Any:
    none = torch.empty(0, dtype=torch.int32)
    return none, none, none


# Workers.


class Model(torch.nn.Module):
    """`embedding [V_t, d]`, and an LM head of which SGLang reads the first `vocab_size` rows."""

    def __init__(self, embedding: Tensor, head: Tensor, hot: Tensor | None = None) -> None:
        super().__init__()
        self.embedding = embedding
        self.lm_head = torch.nn.Linear(1, 1, bias=False)
        self.lm_head.weight = torch.nn.Parameter(head, requires_grad=False)
        self.logits_processor = SimpleNamespace(vocab_size=TARGET_SIZE if hot is None else len(hot))
        self.hot_token_id = hot

    def logits(self, tokens: Tensor) -> Tensor:
        rows = self.embedding[tokens] @ self.lm_head.weight.T
        return rows[:, : self.logits_processor.vocab_size].float()


class Runner:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.canary_manager = None
        hf_config = SimpleNamespace(architectures=["LlamaForCausalLM"])
        self.model_config = SimpleNamespace(hf_config=hf_config, model_is_mrope=False)

    def forward(self, forward_batch: Batch) -> Any:
        output = SimpleNamespace(
            next_token_logits=self.model.logits(forward_batch.input_ids), hidden_states=None
        )
        return SimpleNamespace(logits_output=output)


class EagleDraftWorker:
    topk = 1
    index_share_for_mtp_iteration = seed_dsa_topk_from_draft_extend = False
    plan_stream = cuda_graph_runner_for_draft_extend = None
    plan_stream_ctx = nullcontext()
    device = "cpu"

    def __init__(self, model: Model, steps: int = STEPS) -> None:
        self.draft_runner = Runner(model)
        config = SimpleNamespace(vocab_size=TARGET_SIZE)
        self.target_worker = SimpleNamespace(model_config=config)
        self.speculative_num_steps = steps
        self.speculative_num_draft_tokens = steps + 1
        self.speculative_algorithm = SimpleNamespace(is_standalone=lambda: True)
        self.draft_attn_backend = SimpleNamespace(attn_backends=[None] * steps)
        self._topk1_parents_prealloc = torch.zeros(SLOTS, steps, dtype=torch.int64)
        self._topk1_score_indices_prealloc = self._topk1_parents_prealloc
        self.hot_token_id: Any = None

    def alloc_memory_pool(self, req_to_token_pool: Any) -> None:
        self.req_to_token_pool = req_to_token_pool
        self.init_token_map()
        self.init_lm_head()

    def init_token_map(self) -> None:
        raise AssertionError("a directory is no token map of SGLang's")

    def init_lm_head(self) -> None:
        self.hot_token_id = self.draft_runner.model.hot_token_id

    def draft_forward(self, forward_batch: Batch) -> Any:
        spec_info = forward_batch.spec_info
        needs_draft_probs = not forward_batch.sampling_info.is_all_greedy
        topk_index, probs_list = spec_info.topk_index, [spec_info.draft_probs]
        tokens = [topk_index]
        for i in range(self.speculative_num_steps - 1):
            forward_batch.input_ids = topk_index.flatten()
            logits = self.draft_runner.forward(forward_batch).logits_output.next_token_logits
            if needs_draft_probs:
                probs, _, topk_index = sample_draft_proposal(
                    logits,
                    forward_batch.sampling_info.temperatures,
                    forward_batch.sampling_info.top_ks,
                    sampling_seed=forward_batch.sampling_info.sampling_seed,
                    positions=forward_batch.positions + 1,
                    draft_step=i + 1,
                )
                probs_list.append(probs)
            else:
                topk_index = logits.argmax(-1, keepdim=True)
            forward_batch.positions.add_(1)
            tokens.append(topk_index)
        draft_probs = torch.stack(probs_list, 1) if needs_draft_probs else None
        return None, None, torch.cat(tokens, 1), draft_probs

    def _draft_extend_for_prefill(
        self,
        batch: Batch,
        target_hidden_states: Any,
        next_token_ids: Tensor,
        mm_input_embeds: Any = None,
        kv_loc_plan: Any = None,
    ) -> EagleDraftInput:
        logits = self.draft_runner.model.logits(next_token_ids)
        probs = renorm_draft_probs(logits, batch.sampling_info, True)
        topk_p, topk_index = fast_sample(
            probs,
            num_samples=1,
            sampling_seed=batch.sampling_info.sampling_seed,
            positions=batch.seq_lens,
        )
        return EagleDraftInput(topk_p, topk_index, probs, None, next_token_ids)

    def _draft_extend_for_decode(
        self, batch: Batch, batch_result: Any, *, kv_loc_plan: Any = None
    ) -> None:
        nodes = self.speculative_num_draft_tokens
        select = torch.arange(len(batch.seq_lens)) * nodes + batch_result.accept_lens - 1
        logits = self.draft_runner.model.logits(batch_result.next_token_ids.long()[select])
        next_draft_input = batch_result.next_draft_input
        next_draft_input.draft_probs, next_draft_input.topk_p, next_draft_input.topk_index = (
            sample_draft_proposal(
                logits,
                batch.sampling_info.temperatures,
                batch.sampling_info.top_ks,
                sampling_seed=batch.sampling_info.sampling_seed,
                positions=batch_result.new_seq_lens,
            )
        )


class StandaloneDraftWorker(EagleDraftWorker):
    def init_lm_head(self) -> None:
        pass


class EAGLEDraftCudaGraphRunner:
    def __init__(self, vocab_size: int) -> None:
        self.buffers = SimpleNamespace(draft_probs=torch.ones(4, vocab_size))

    def capture_one_shape(
        self,
        size: int,
        forward: Any,
        stream_idx: Any = None,
        variant_label: Any = None,
        attention_variant: Any = None,
    ) -> Any:
        return self.buffers.draft_probs[:size]


# What SGLang's scheduler does with all of it.


@dataclass
class Requests:
    """Running requests of one prompt. The batch has another order in every step.

    Attributes:
        slots, seq_lens, newest: `[B]`. sampling: theirs. said: what each has got.
    """

    slots: Tensor
    seq_lens: Tensor
    newest: Tensor
    sampling: SamplingBatchInfo
    draft: EagleDraftInput
    said: list[list[int]]
    accepted: int = 0

    def batch(self, **options: Any) -> Batch:
        return Batch(self.slots, self.seq_lens, self.sampling, **options)

    def joined_by(self, others: Requests) -> None:
        """As SGLang merges batches."""
        self.said += others.said
        for name in ("slots", "seq_lens", "newest"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(others, name)]))
        for own, other in ((self.sampling, others.sampling), (self.draft, others.draft)):
            for name, value in vars(own).items():
                if isinstance(value, Tensor):
                    setattr(own, name, torch.cat([value, getattr(other, name)]))

    def reordered(self, order: Tensor) -> None:
        """In this order, and without those that are not in it."""
        self.slots, self.seq_lens = self.slots[order], self.seq_lens[order]
        self.newest = self.newest[order]
        self.said = [self.said[b] for b in order.tolist()]
        for owner in (self.sampling, self.draft):
            for name, value in vars(owner).items():
                if isinstance(value, Tensor):
                    setattr(owner, name, value[order])


def prefilled(
    worker: Any,
    prompt: list[int],
    newest: int,
    sampling: SamplingBatchInfo,
    slots: Tensor | None = None,
) -> Requests:
    """Requests whose prompt the target has read, and their first draft."""
    count = len(sampling.temperatures)
    if slots is None:
        slots = torch.arange(count).flip(0) + 1  # SGLang keeps slot 0 for padding
    tokens = torch.full((count,), newest)
    requests = Requests(
        slots, torch.full((count,), len(prompt)), tokens, sampling, None, [[] for _ in tokens]
    )
    batch = requests.batch(
        input_ids=torch.tensor(prompt * count), extend_lens=[len(prompt)] * count
    )
    requests.draft = worker._draft_extend_for_prefill(batch, None, tokens)
    return requests


def step(
    module: ModuleType, worker: Any, target: Tensor, requests: Requests, mask: Any = None
) -> None:
    """Draft, verify and draft-extend, as `EAGLEWorkerV2.forward_batch_generation` has it."""
    count, nodes = len(requests.newest), worker.speculative_num_draft_tokens
    forward_batch = requests.batch(
        spec_info=requests.draft,
        positions=requests.seq_lens.clone(),
        out_cache_loc=torch.zeros(count * worker.speculative_num_steps, dtype=torch.int64),
    )
    _, _, drafts, _ = worker.draft_forward(forward_batch)
    tokens = torch.cat([requests.newest[:, None], drafts], 1)
    verify_input = SimpleNamespace(
        draft_token=tokens.flatten(),
        draft_token_num=nodes,
        retrieve_index=torch.arange(count * nodes).view(count, nodes),
    )
    batch = requests.batch()
    output = SimpleNamespace(next_token_logits=target[tokens.flatten()].clone())
    predict, accept_lens, accept_index = module.eagle_sample(  # type: ignore[attr-defined]
        verify_input, batch, output, mask(tokens) if mask else None
    )
    for b, (row, length) in enumerate(
        zip(accept_index.tolist(), accept_lens.tolist(), strict=True)
    ):
        requests.said[b] += [int(predict[place]) for place in row[:length]]
    requests.accepted += int(accept_lens.sum()) - count
    result = SimpleNamespace(
        accept_lens=accept_lens,
        next_token_ids=predict,
        new_seq_lens=requests.seq_lens + accept_lens,
        next_draft_input=EagleDraftInput(),
        logits_output=SimpleNamespace(hidden_states=None),
        prepared_draft_extend_inputs=None,
    )
    worker._draft_extend_for_decode(batch, result)
    requests.draft, requests.seq_lens = result.next_draft_input, result.new_seq_lens
    requests.newest = predict.long()[
        accept_index.long().gather(1, accept_lens.long()[:, None] - 1)
    ][:, 0]
