"""What is model runner V2's own in our worker; `test_vllm_worker.py` also runs with it.

Steps are scheduled asynchronously, as on a GPU. `interpreter.py` says how.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch
from vllm.v1.worker.cpu_worker import CPUWorker as EngineCPUWorker
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample import batch_shard
from vllm.v1.worker.gpu.sample import states as states_module
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.states import RequestState

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm import CPUWorker
from rdk_cuda.integrations.vllm.metrics import Counters
from rdk_cuda.integrations.vllm.verification_v2 import TokenSampler

from .exact import FALSE_ALARM, p_value
from .scheduled import PARAMETERS, PREEMPTED, SIZE, K, Step, changed

OPTIONS = SimpleNamespace(
    num_speculative_tokens=K, enable_adaptive_verification=False, rejection_sample_method="standard"
)
NO_PARSER = SimpleNamespace(reasoning_config=None)


@pytest.mark.parametrize(
    ("compared", "forgotten", "lossless"),
    [(True, "forbidden", True), (False, "forbidden", False), (False, "all", True)],
)
def test_a_draft_that_a_grammar_forbids_is_rejected_and_not_forgotten(
    compared: bool, forgotten: str, lossless: bool
) -> None:
    """One draft for each of many requests. vLLM's way, to forget the forbidden, is the control.

    To forget all of a step is right, because it does not depend on their tokens.
    """
    p = torch.tensor([0.3, 0.2, 0.1, 0.05, 0.05, 0.1, 0.1, 0.1])
    q = torch.tensor([0.05, 0.05, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1])
    forbidden = torch.arange(8) < 2
    masked = torch.where(forbidden, -torch.inf, p.log())
    sampler, batch, drawn = one_draft_each(q.log(), samples=12_000)
    assert 0.05 < forbidden[drawn].double().mean() < 0.15
    invalid = torch.zeros(len(drawn), 2, dtype=torch.bool)
    invalid[:, 1] = forbidden[drawn] | (forgotten == "all")
    sampler.compared = frozenset(batch.idx_mapping.tolist() if compared else ())
    rows = torch.stack([masked, p.log()]).repeat(len(drawn), 1)
    decided = verifier_of(sampler)(rows, batch, None, invalid.flatten()).sampled_token_ids[:, 0]
    expected = {(token,): p for token, p in enumerate(masked.softmax(-1).tolist())}
    assert (p_value(expected, decided[:, None].tolist()) > FALSE_ALARM) == lossless
    counted = sampler.speculator.counters.read()
    assert counted["put_back_tokens.grammar"] == (int(forbidden[drawn].sum()) if compared else 0)


@pytest.mark.parametrize("truncates", [False, True])
def test_a_step_without_drafts_is_decided_inside_its_limits(
    truncates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # vLLM's kernel for both limits does not run in the interpreter.
    monkeypatch.setattr(states_module, "apply_top_k_top_p", apply_top_k_top_p_pytorch)
    sampler, batch, _ = one_draft_each(torch.zeros(8), samples=40)
    slots, rows = batch.idx_mapping, torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(40)
    sampler.truncates = truncates
    states = sampler.sampler.sampling_states
    states.top_k.np[::2], states.top_p.np[1::2] = 1, 1e-6
    assert sampler.limits(slots[:0], batch.idx_mapping_np[:0]) == (None, None)
    states.apply_staged_writes()
    sampler.sampler.needs_logits_processing[:] = True
    top_k, top_p = sampler.limits(slots, batch.idx_mapping_np)
    assert top_k is not None
    assert top_p is not None
    assert top_k.tolist() == [8 if slot % 2 else 1 for slot in slots.tolist()]
    own = slots, slots, batch.idx_mapping_np, positions, positions, positions * 0, positions.numpy()
    tokens, processed = sampler.sample(rows, *own)
    assert tokens.tolist() == rows.argmax(-1).tolist()
    assert (processed.isinf().sum(1) == 7 * truncates).all()


def test_ranks_that_verify_their_own_requests_decide_what_one_rank_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `--enable-batch-sharded-sampling`, by vLLM's own way to share a batch among ranks."""
    sampler, batch, _ = one_draft_each(torch.zeros(8), samples=40)
    counters = sampler.speculator.counters
    rows = torch.randn(80, 8, generator=torch.Generator().manual_seed(1))
    verifier = verifier_of(sampler)
    whole = verifier(rows, batch).sampled_token_ids
    expected = counters.read()["accepted_tokens.head"]
    assert expected > 5
    given = dict.fromkeys(field.name for field in fields(InputBatch)) | vars(batch)
    owned = []
    for rank in (0, 1):
        group = SimpleNamespace(rank_in_group=rank, world_size=2)
        monkeypatch.setattr(batch_shard, "get_tp_group", lambda group=group: group)
        sharder = batch_shard.BatchSharder(40, 2, batch.idx_mapping.device)
        own, _, _, layout = sharder.shard_sampler_inputs(InputBatch(**given), None)
        owned.append(own)

    def together(rows: Tensor) -> Tensor:
        parts = [verifier(rows[own.logits_indices], own).sampled_token_ids for own in owned]
        return torch.cat(parts)[layout.gathered_src_indices]

    assert torch.equal(together(rows), whole)
    assert counters.read()["accepted_tokens.head"] == 2 * expected
    assert not torch.equal(together(rows.roll(2, 0)), whole)  # a control: others' rows


def test_what_is_put_back_was_drawn_masked_and_compared() -> None:
    sampler = TokenSampler(None, Mock(), "token")
    logits = torch.zeros(5, 4)
    logits[[0, 2, 3], [2, 2, 0]] = -torch.inf
    drawn, judged = torch.tensor([0, 2, 2, 2, -1]), torch.tensor([0, -1, -1, -1, -1])
    compared = torch.tensor([True, True, True, False, True])
    assert sampler._put_back(logits, drawn, judged, compared).tolist() == [0, 2, -1, -1, -1]


def test_a_step_with_other_rows_than_its_drafts_is_refused() -> None:
    sampler, batch, _ = one_draft_each(torch.zeros(8), samples=40)
    sampler.num_drafts = {}
    with pytest.raises(RuntimeError, match=r"80 rows of logits, and its requests .* need 40"):
        verifier_of(sampler)(torch.zeros(80, 8), batch)


def test_drafts_that_come_too_late_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM hands over -1 for them. Nor are those of a request that is gone."""
    drafts = DraftTokenIds(["known", "late", "gone"], [[3, 0], [-1, -1], [5, 6]])
    monkeypatch.setattr(EngineCPUWorker, "take_draft_token_ids", lambda self: drafts)
    worker, slots = object.__new__(CPUWorker), {"late": 4, "known": 7}
    worker._sampler = SimpleNamespace(settings="of those in the slots")
    worker.model_runner = SimpleNamespace(req_states=SimpleNamespace(req_id_to_index=slots))
    assert worker.take_draft_token_ids() is drafts
    assert worker._sampler.compared == {7}
    # The next step has other drafts, which have not been compared, and then another request.
    parallel = SimpleNamespace(enable_batch_sharded_sampling=False, rank=1)
    worker.vllm_config = SimpleNamespace(parallel_config=parallel)
    monkeypatch.setattr(EngineCPUWorker, "execute_model", lambda self, output: None)
    step = SimpleNamespace(scheduled_spec_decode_tokens={"late": [-1, -1]}, scheduled_new_reqs=[])
    worker.execute_model(step)
    assert worker._sampler.num_drafts == {4: 2}
    assert not worker._sampler.compared
    assert worker._sampler.settings == "of those in the slots"
    step.scheduled_new_reqs = ["known"]
    worker.execute_model(step)
    assert worker._sampler.settings is None


def one_draft_each(logits: Tensor, samples: int) -> tuple[TokenSampler, Any, Tensor]:
    """V2's samplers as the worker replaces them, a batch in V2's layout, and what was drafted."""
    arena = DraftArena(Affinity.intersection(Vocabulary.identity(8)), samples, draft_length=1)
    slots = torch.arange(samples).roll(3)
    device = arena.device
    own = Sampler(NO_PARSER, samples, 8, device, RequestState(samples, 8, 8, 1, 8, device))
    states = own.sampling_states
    states.temperature.np[:], states.seeds.np[:] = 1, np.arange(samples)
    states.apply_staged_writes()
    drawn = arena.draft(
        logits.expand(samples, 8).contiguous(),
        0,
        slots=slots,
        temperature=torch.ones(samples),
        seeds=states.seeds.gpu[slots],
        positions=torch.full((samples,), 7),
    )
    batch = in_layout(slots, drawn[:, None].tolist(), [6] * samples)
    counters = Counters(Vocabulary.identity(8), arena.device)
    counters.active = True
    speculator: Any = SimpleNamespace(arena=arena, counters=counters)
    sampler = TokenSampler(own, speculator, "token")
    sampler.num_drafts = dict.fromkeys(range(samples), 1)
    return sampler, batch, drawn


def verifier_of(sampler: TokenSampler) -> Any:
    """vLLM's rejection sampler, as the worker changes it."""
    verifier = RejectionSampler(sampler.sampler, OPTIONS, torch.device("cpu"))
    verifier._verify = sampler.verify
    return verifier


def in_layout(slots: Tensor, drafts: list[list[int]], newest: list[int]) -> Any:
    """A batch as V2 has it: each request's drafts, and the position of its newest token."""
    counts = np.array([len(own) + 1 for own in drafts])
    ends = np.concatenate([[0], counts.cumsum()])
    request = torch.arange(len(drafts)).repeat_interleave(torch.from_numpy(counts))
    place = torch.arange(int(ends[-1])) - torch.from_numpy(ends)[request]
    lengths = torch.tensor(newest).add(torch.from_numpy(counts)).int()
    return SimpleNamespace(
        num_reqs=len(drafts),
        req_ids=[str(slot) for slot in slots.tolist()],
        idx_mapping=slots,
        idx_mapping_np=slots.numpy(),
        expanded_idx_mapping=slots[request],
        expanded_local_pos=place,
        cu_num_logits=torch.from_numpy(ends).int(),
        cu_num_logits_np=ends,
        logits_indices=torch.arange(len(request)),
        num_draft_tokens=sum(map(len, drafts)),
        num_draft_tokens_per_req=(counts - 1).astype(np.int32),
        query_start_loc=torch.from_numpy(ends).int(),
        input_ids=torch.tensor([token for own in drafts for token in (5, *own)]).int(),
        positions=torch.tensor(newest)[request] + place,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
    )


def decided(step: Step, cases: list[Any]) -> tuple[Any, Any]:
    """What the step decides of these and counts, by vLLM's own functions."""
    states = RequestState(len(step.cases), 64, 512, K, SIZE, step.arena.device)
    own = Sampler(NO_PARSER, states.max_num_reqs, SIZE, states.device, states)
    for case in cases:
        tokens = [*case.prompt, *case.output]
        known = len(tokens) - (case.drafted and case.name not in PREEMPTED)
        states.free_indices = [case.slot]
        states.add_request(case.name, len(case.prompt), tokens[:known], 0, 32)
        states.all_token_ids.stage_write(case.slot, known, tokens[known:])
        states.total_len.stage_write_elem(case.slot, len(tokens))
        own.add_request(case.slot, case.params)
    states.apply_staged_writes()
    own.apply_staged_writes()
    step.counters.active = True
    sampler = TokenSampler(own, step, "token")
    # Also what was preempted has been compared. What fills a request up are drafts of before.
    sampler.compared = frozenset(case.slot for case in cases if case.drafted)
    counts = [K if case.name == "goes on" else len(case.drafts) for case in cases]
    sampler.num_drafts = {case.slot: n for case, n in zip(cases, counts, strict=True)}
    drafts = torch.stack(step.drafts, 1)
    given = [drafts[case.slot, :n].tolist() for case, n in zip(cases, counts, strict=True)]
    batch = in_layout(torch.tensor([case.slot for case in cases]), given, [9] * len(cases))
    rows = [step.logits[case.slot, : n + 1] for case, n in zip(cases, counts, strict=True)]
    valid = [len(case.drawn) if case.params.structured_outputs else K for case in cases]
    invalid = batch.expanded_local_pos > torch.tensor(valid).repeat_interleave(
        batch.cu_num_logits.diff()
    )
    made = verifier_of(sampler)(torch.cat(rows), batch, None, invalid)
    past = torch.arange(K + 1) >= made.num_sampled[:, None]  # which nobody reads
    made.sampled_token_ids.masked_fill_(past, -1)
    return step.found(cases, made, batch.cu_num_logits[:-1].tolist())


def test_requests_that_are_filled_up_are_decided_like_those_that_are_not() -> None:
    """Whatever vLLM's scheduler hands over, with every parameter (`scheduled.py`)."""
    put_back = 0
    for seed in range(len(PARAMETERS)):
        step, other = Step(seed), Step(seed)
        found, counted = decided(step, step.cases)
        none = [case.name in PREEMPTED or not case.drafted for case in step.cases]
        drawn = [
            changed(case, drafts=[] if filled_up else case.drafts)
            for case, filled_up in zip(step.cases, none, strict=True)
        ]
        assert (found, counted) == decided(other, drawn)
        assert counted["drafted_tokens.none"] == 0
        put_back += counted["put_back_tokens.grammar"]
    assert put_back > 2
