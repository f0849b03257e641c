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
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.engines.engine_hooks import SGLANG

TARGET_SIZE, WIDTH, STEPS, SLOTS = 5, 8, 2, 6000
TOP_K_ALL = 1 << 30

_NAMES = [hook.module.split(".") for hook in SGLANG]
MODULES = {".".join(name[:end]) for name in _NAMES for end in range(1, len(name) + 1)}


def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fresh copy of this module, under the names of SGLang's modules."""
    spec = importlib.util.spec_from_file_location("fake_sglang", __file__)
    module = importlib.util.module_from_spec(spec)
    for name in ("fake_sglang", *MODULES):
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


resolved_view = resolving_view


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
    module = max((m for m in MODULES if target.startswith(f"{m}.")), key=len)
    *classes, name = target.removeprefix(f"{module}.").split(".")
    owner: Any = sys.modules[module]
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


class Batch(SimpleNamespace):
    """`ScheduleBatch` and `ForwardBatch`, as far as either is read."""

    forward_mode = ForwardMode.DECODE
    chunked_req_next_prompt_token = None

    @property
    def batch_size(self) -> int:
        return len(self.seq_lens)

    @classmethod
    def init_new(cls, batch: Batch, runner: Any, **options: Any) -> Batch:
        """Of `ForwardBatch`, for a prefill, of which only the last row of each request counts."""
        last = torch.tensor(batch.extend_lens).cumsum(0) - 1
        return cls(**vars(batch) | {"input_ids": batch.input_ids[last]})


ForwardBatch = Batch
EagleDraftInput = EagleDraftExtendInput = SimpleNamespace


# Functions that the plugin calls.


def apply_scaling_penalties(logits: Tensor, scaling_penalties: Tensor) -> None:
    scaled = torch.where(logits < 0, logits * scaling_penalties, logits / scaling_penalties)
    logits.copy_(scaled)


def sanitize_nan_logits(logits: Tensor, msg: str = "") -> None:
    torch.nan_to_num_(logits, nan=-1e30, posinf=1e30, neginf=-1e30)


# Functions in whose place it is.


def _drawn(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("SGLang drew a draft")


fast_sample = renorm_draft_probs = sample_draft_proposal = _drawn


def eagle_sample(verify_input: Any, batch: Any, *arguments: Any) -> Any:
    """Of an idle batch."""
    assert batch.forward_mode.is_idle()
    return [torch.empty(0, dtype=torch.int32)] * 3


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


def runner_of(model: Model) -> Any:
    def forward(batch: Batch) -> Any:
        logits = model.logits(batch.input_ids)
        output = SimpleNamespace(next_token_logits=logits, hidden_states=None)
        return SimpleNamespace(logits_output=output)

    config = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]), model_is_mrope=False
    )
    return SimpleNamespace(model=model, forward=forward, model_config=config, canary_manager=None)


class EagleDraftWorker:
    topk = 1
    index_share_for_mtp_iteration = seed_dsa_topk_from_draft_extend = False
    plan_stream = cuda_graph_runner_for_draft_extend = hot_token_id = None
    plan_stream_ctx = nullcontext()
    device = "cpu"
    speculative_num_steps, speculative_num_draft_tokens = STEPS, STEPS + 1
    speculative_algorithm = SimpleNamespace(is_standalone=lambda: True)
    draft_attn_backend = SimpleNamespace(attn_backends=[None] * STEPS)
    _topk1_parents_prealloc = _topk1_score_indices_prealloc = torch.zeros(SLOTS, STEPS).long()

    def __init__(self, model: Model) -> None:
        self.draft_runner = runner_of(model)
        config = SimpleNamespace(vocab_size=TARGET_SIZE)
        self.target_worker = SimpleNamespace(model_config=config)

    def alloc_memory_pool(self, req_to_token_pool: Any) -> None:
        self.req_to_token_pool = req_to_token_pool
        self.init_token_map()
        self.init_lm_head()

    def init_token_map(self) -> None:
        raise AssertionError("a directory is no token map of SGLang's")

    def init_lm_head(self) -> None:
        self.hot_token_id = self.draft_runner.model.hot_token_id

    def draft_forward(self, forward_batch: Batch) -> Any:
        tokens = [forward_batch.spec_info.topk_index]
        sampling = forward_batch.sampling_info
        assert not sampling.is_all_greedy  # then SGLang would draw by argmax of the head's columns
        for i in range(self.speculative_num_steps - 1):
            _, _, drawn = sample_draft_proposal(
                self.draft_runner.model.logits(tokens[-1].flatten()),
                sampling.temperatures,
                sampling.top_ks,
                sampling_seed=sampling.sampling_seed,
                positions=forward_batch.positions + 1,
                draft_step=i + 1,
            )
            forward_batch.positions.add_(1)
            tokens.append(drawn)
        return None, None, torch.cat(tokens, 1), None

    def _draft_extend_for_prefill(
        self,
        batch: Batch,
        target_hidden_states: Any,
        next_token_ids: Tensor,
        mm_input_embeds: Any = None,
        kv_loc_plan: Any = None,
    ) -> Any:
        logits = self.draft_runner.model.logits(next_token_ids)
        probs = renorm_draft_probs(logits, batch.sampling_info, True)
        seed = batch.sampling_info.sampling_seed
        _, drawn = fast_sample(probs, num_samples=1, sampling_seed=seed, positions=batch.seq_lens)
        return EagleDraftInput(topk_p=probs, topk_index=drawn, draft_probs=probs)

    def _draft_extend_for_decode(
        self, batch: Batch, batch_result: Any, *, kv_loc_plan: Any = None
    ) -> None:
        nodes, following = self.speculative_num_draft_tokens, batch_result.next_draft_input
        select = torch.arange(len(batch.seq_lens)) * nodes + batch_result.accept_lens - 1
        following.draft_probs, following.topk_p, following.topk_index = sample_draft_proposal(
            self.draft_runner.model.logits(batch_result.next_token_ids.long()[select]),
            batch.sampling_info.temperatures,
            batch.sampling_info.top_ks,
            sampling_seed=batch.sampling_info.sampling_seed,
            positions=batch_result.new_seq_lens,
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


class Requests(SimpleNamespace):
    """Running requests of one prompt. The batch has another order in every step.

    Attributes:
        slots, seq_lens, newest: `[B]`. sampling, draft: theirs. said: what each has got.
        accepted: how many drafts of all of them.
    """

    def batch(self, **options: Any) -> Batch:
        return Batch(
            req_pool_indices=self.slots,
            seq_lens=self.seq_lens,
            sampling_info=self.sampling,
            **options,
        )

    def _changed(self, change: Callable[[str, str, Tensor], Tensor]) -> None:
        for part, of in (("", self), ("sampling", self.sampling), ("draft", self.draft)):
            for name, value in vars(of).items():
                if isinstance(value, Tensor):
                    setattr(of, name, change(part, name, value))

    def joined_by(self, others: Requests) -> None:
        """As SGLang merges batches."""
        self.said += others.said
        self._changed(
            lambda part, name, value: torch.cat(
                [value, getattr(getattr(others, part) if part else others, name)]
            )
        )

    def reordered(self, order: Tensor) -> None:
        """In this order, and without those that are not in it."""
        self.said = [self.said[b] for b in order.tolist()]
        self._changed(lambda part, name, value: value[order])


def prefilled(
    worker: Any, prompt: list[int], newest: int, sampling: Any, slots: Tensor | None = None
) -> Requests:
    """Requests whose prompt the target has read, and their first draft."""
    count = len(sampling.temperatures)
    if slots is None:
        slots = torch.arange(count).flip(0) + 1  # SGLang keeps slot 0 for padding
    requests = Requests(
        slots=slots,
        seq_lens=torch.full((count,), len(prompt)),
        newest=torch.full((count,), newest),
        sampling=sampling,
        said=[[] for _ in range(count)],
        accepted=0,
    )
    ids, lengths = torch.tensor(prompt * count), [len(prompt)] * count
    batch = requests.batch(input_ids=ids, extend_lens=lengths)
    requests.draft = worker._draft_extend_for_prefill(batch, None, requests.newest)
    return requests


def step(module: ModuleType, worker: Any, target: Tensor, requests: Any, mask: Any = None) -> None:
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
    for said, row, length in zip(
        requests.said, accept_index.tolist(), accept_lens.tolist(), strict=True
    ):
        said += predict[row[:length]].tolist()
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
    last = accept_index.long().gather(1, accept_lens.long()[:, None] - 1)
    requests.newest = predict.long()[last[:, 0]]
