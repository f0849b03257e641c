"""What is model runner V1's own in our worker: vLLM's scheduler cuts drafts that a grammar forbids.

One draft for each of many requests, of an engine that is a table.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import MinTokensLogitsProcessor

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.files import write_json
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm import CPUWorker
from rdk_cuda.integrations.vllm.configuration import WorkerOptions
from rdk_cuda.integrations.vllm.metrics import Counters
from rdk_cuda.integrations.vllm.requests import Requests
from rdk_cuda.integrations.vllm.target_logits import LogitRows, Processed, _minimums
from rdk_cuda.integrations.vllm.verification import TokenSampler

from .exact import FALSE_ALARM, p_value

SAMPLES = 20_000
P = torch.tensor([0.3, 0.2, 0.1, 0.05, 0.05, 0.1, 0.1, 0.1])
Q = torch.tensor([0.05, 0.05, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1])
FORBIDDEN = torch.arange(8) < 2
MASKED = torch.where(FORBIDDEN, -torch.inf, P.log())


MODEL = SimpleNamespace(seed=0, logprobs_mode="raw_logprobs")


def drafted(goes_on: bool = False) -> TokenSampler:
    """The sampler of requests that have drafted from Q; `goes_on` says that of their prefills."""
    names = [str(b) for b in range(SAMPLES)]
    asked = SimpleNamespace(seed=None, structured_outputs=object())
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(
            req_ids=names,
            num_computed_tokens_cpu=np.full(SAMPLES, 5),
            num_tokens_no_spec=np.full(SAMPLES, 7 if goes_on else 6),
            num_prompt_tokens=np.full(SAMPLES, 3),  # long read, but lost again by a preemption
        ),
        requests={name: SimpleNamespace(sampling_params=asked) for name in names},
        vllm_config=SimpleNamespace(model_config=MODEL),
        max_model_len=64,
    )
    requests = Requests(runner, max_scheduled=10 * SAMPLES, longest_prefill=0)
    arena = DraftArena(Affinity.intersection(Vocabulary.identity(8)), SAMPLES, draft_length=1)
    seven = torch.full((SAMPLES,), 7)
    requests.begin_step(dict.fromkeys(names, 1), has_grammar=False)
    requests.decide(torch.full((SAMPLES, 1), -1), seven)
    requests.drafts = [
        arena.draft(
            Q.log().expand(SAMPLES, 8).contiguous(),
            0,
            slots=torch.arange(SAMPLES),
            temperature=torch.ones(SAMPLES),
            seeds=requests.seeds(arena.device),
            positions=requests.first(),
        )
    ]
    counters = Counters(Vocabulary.identity(8), arena.device)
    counters.active = True
    proposer = SimpleNamespace(arena=arena, counters=counters)
    return TokenSampler(requests, proposer, "token")


def decided(sampler: TokenSampler, names: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    """The next step's tokens of the requests in `names`; -1 where the scheduler passed no draft."""
    requests, there = sampler.requests, drafts >= 0
    requests.runner.input_batch.req_ids = [str(b) for b in names.tolist()]
    requests.begin_step(dict.fromkeys(requests.ids, 2), has_grammar=False)
    ones = torch.ones(len(names))
    rows = MASKED.expand(len(names) + int(there.sum()), 8).contiguous()
    tokens = sampler._verified(
        Processed(rows, ones),
        there.int().tolist(),
        drafts[there].int(),
        ones,
        np.full(len(names), 7),
    )
    assert tokens.is_contiguous()  # also without put-back columns: `rdk::name_tokens` reads them
    return tokens[:, :1]


def fits(tokens: torch.Tensor) -> bool:
    expected = {(token,): p for token, p in enumerate(MASKED.softmax(-1).tolist())}
    return p_value(expected, tokens.tolist()) > FALSE_ALARM


@pytest.mark.parametrize("put_back", [True, False])
@pytest.mark.parametrize("others", [True, False])
def test_a_draft_that_a_grammar_cut_is_rejected_and_not_forgotten(
    put_back: bool, others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no request of its step has a draft. vLLM's way, to forget it, is the control."""
    if not put_back:
        nothing = lambda self, slots, counts, first: []  # noqa: E731
        monkeypatch.setattr(Requests, "forbidden_drafts", nothing)
    sampler = drafted()
    drawn = sampler.requests.drafts[0]
    cut = FORBIDDEN[drawn]  # what the scheduler does
    assert 0.05 < cut.double().mean() < 0.15
    names, left = torch.arange(SAMPLES).roll(5), torch.where(cut, -1, drawn).roll(5)
    steps = [left >= -1] if others else [left >= 0, left < 0]
    slots, drafts = sampler.requests._slots, sampler.requests.drafts
    tokens = []
    for step in steps:
        sampler.requests._slots, sampler.requests.drafts = slots, drafts
        tokens.append(decided(sampler, names[step], left[step]))
    assert fits(torch.cat(tokens)) == put_back
    counted = sampler.proposer.counters.read()
    assert counted["put_back_tokens.grammar"] == (int(cut.sum()) if put_back else 0)


def test_a_draft_behind_a_prefill_that_goes_on_is_forgotten() -> None:
    """vLLM drops all of them, whatever their tokens are. Drafts of before are the control."""
    for goes_on in (True, False):
        sampler = drafted(goes_on)
        nothing = torch.full((SAMPLES,), -1)
        assert fits(decided(sampler, torch.arange(SAMPLES), nothing)) == goes_on


def test_the_log_says_on_shards_only_where_logits_stay_there_and_names_the_target(
    tmp_path: Path,
) -> None:
    """The option does nothing on one rank. A directory for another target loses drafts alone."""
    worker, drafter = object.__new__(CPUWorker), Mock(dynamic_tokens=None)
    drafter.affinity.draft_size = drafter.vocabulary.draft_size = 8
    worker._requests, worker._options = Mock(), WorkerOptions(verify_on_shards=True)
    worker.model_runner = SimpleNamespace(drafter=SimpleNamespace(drafter=drafter))
    assert worker._described().endswith("verified by token")
    worker._on_shards = True
    assert worker._described().endswith("verified by token on shards")
    content = {"format": "rdk_cuda.drafter", "format_version": "1", "settings": {"target": "T"}}
    write_json(content, tmp_path / "calibration.json")
    worker._options = WorkerOptions(str(tmp_path))
    assert f"drafts with {tmp_path}, calibrated for T: 8 of" in worker._described()


def test_what_a_step_or_the_context_has_no_room_for_was_cut_by_no_grammar() -> None:
    requests = drafted().requests
    requests.runner.input_batch.req_ids = ["0", "1"]
    requests.begin_step({"0": 1, "1": 1}, has_grammar=True)

    def found(**limits: int) -> list[int]:
        vars(requests).update(limits)
        return requests.forbidden_drafts([0, 1], [0, 0], np.array([7, 62]))

    assert found() == [0, 1]
    assert found(max_scheduled=2) == [0]
    assert found(max_scheduled=9, longest_prefill=1) == []
    requests.runner.max_model_len = 63
    assert found(longest_prefill=0) == [0]


def test_a_row_of_nan_gives_some_token() -> None:
    sampler, ones = drafted(), torch.ones(2)
    sampler.requests.runner.input_batch.req_ids = ["0", "1"]
    sampler.requests.begin_step({"0": 1, "1": 1}, has_grammar=False)
    rows = Processed(torch.stack([torch.full((8,), torch.nan), MASKED]), ones)
    tokens = sampler._verified(rows, [0, 0], torch.zeros(0).int(), ones, np.full(2, 7))
    assert tokens[0].tolist() == [0]
    assert tokens[1, 0] > 1


def test_what_was_drafted_is_verified_once_or_never() -> None:
    """A step that does not draft, as where the context of the drafter is full, leaves nothing."""
    sampler = drafted()
    sampler.requests.runner.input_batch.req_ids = ["3", "other", "0"]
    assert sampler.requests.take_slots() == [3, -1, 0]
    assert sampler.requests.take_slots() == [-1, -1, -1]


def test_a_minimum_holds_back_no_stop_token_that_is_all_a_grammar_leaves() -> None:
    """As in vLLM, whose rows these are compared with; else such a row would have no token."""
    grammar: dict[str, Any] = {"structured_outputs": StructuredOutputsParams(choice=["a"])}
    stops = {"min_tokens": 3, "stop_token_ids": [1, 2, 4]}
    params = [SamplingParams(**stops, **grammar), SamplingParams(**stops), SamplingParams(**stops)]
    rows = LogitRows([2, 0, 1], torch.device("cpu"))
    logits = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    logits[[0, 2], :1] = logits[[0, 2, 3], 3:4] = logits[[0, 2, 3], 5:] = -torch.inf
    logits[3, :1] = logits[0, 2] = -torch.inf
    own = MinTokensLogitsProcessor(Mock(), logits.device, is_pin_memory=False)
    own.min_toks = {
        b: (3, [7], each.all_stop_token_ids, each.structured_outputs is not None)
        for b, each in enumerate(params)
    }
    expected = own.apply_with_spec_decode(logits.clone(), rows.counts)
    (step,) = _minimums(params, rows, Mock(num_outputs=lambda: np.ones(3, dtype=np.int32)))
    assert torch.equal(step(logits.clone()), expected)
    assert expected[0].isfinite().any()  # the grammar's, and none without one
    assert expected[3].isneginf().all()
