"""Model runner V1 decides whatever vLLM's scheduler hands over as if there were no placeholders.

With vLLM's own batch and functions, around targets and drafters that are tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessors, MinTokensLogitsProcessor
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from rdk_cuda.integrations.vllm import verification
from rdk_cuda.integrations.vllm.requests import Requests
from rdk_cuda.integrations.vllm.target_logits import add_processors
from rdk_cuda.integrations.vllm.verification import TokenSampler, Verifier

from .scheduled import PARAMETERS, PREEMPTED, SIZE, Case, Step

CPU = torch.device("cpu")
CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(seed=0), scheduler_config=SimpleNamespace(max_num_seqs=16)
)


def decided(
    step: Step, cases: Sequence[Case], resumed: Sequence[str] = ()
) -> tuple[list[Any], dict[str, int]]:
    """Of each case its tokens, their log-probabilities and what sources read; what was counted."""
    processors = LogitsProcessors([MinTokensLogitsProcessor(CONFIG, CPU, False)])
    add_processors(processors, CONFIG, CPU)
    batch = InputBatch(len(cases), 64, 512, CPU, SIZE, [16], [4], processors)
    states = {
        case.name: CachedRequestState(
            case.name, case.prompt, [], case.params, None, ([0],), 0, case.output
        )
        for case in cases
    }
    counts, drafts = [len(case.drafts) for case in cases], {}
    for case in cases:
        batch.add_request(states[case.name])
        drafts[case.name] = case.drafts
        batch.update_req_spec_token_ids(states[case.name], drafts)
    batch.refresh_metadata()
    rows = [(case, place) for case in cases for place in range(len(case.drafts) + 1)]
    runner = SimpleNamespace(
        input_batch=batch,
        requests=states,
        vllm_config=CONFIG,
        max_model_len=64,
        discard_request_mask=SimpleNamespace(np=np.zeros(len(cases), dtype=bool)),
        positions=torch.tensor([len(case.tokens) - 1 + place for case, place in rows]),
    )
    requests = Requests(runner, max_scheduled=10**6, longest_prefill=0)
    requests.drafts = step.drafts
    requests._slots = {case.name: case.slot for case in cases if case.drafted}
    scheduled = {case.name: len(case.drafts) + 1 for case in cases}
    requests.begin_step(scheduled, has_grammar=False, resumed=resumed)
    counters = step.counters()
    sampler = TokenSampler("raw_logprobs")
    sampler.serve(requests, SimpleNamespace(arena=step.arena, counters=counters), "token")
    metadata = SimpleNamespace(
        num_draft_tokens=counts,
        draft_token_ids=torch.tensor([t for own in drafts.values() for t in own]).int(),
        logits_indices=torch.arange(len(rows)).int(),
    )
    logits = torch.stack([step.logits[case.slot, place] for case, place in rows])
    made = Verifier(sampler)(metadata, None, logits, batch.sampling_metadata)
    requests.begin_drafts()
    contexts = requests.contexts(8).tolist()
    found = []
    for b, (case, row) in enumerate(zip(cases, made.sampled_token_ids.tolist(), strict=True)):
        tokens = [token for token in row if token >= 0]
        said = []
        if (asked := case.params.logprobs) is not None:
            own = made.logprobs_tensors.logprobs[b * len(row) :][: len(tokens), : asked + 1]
            said = own.tolist()
        found.append((tokens, said, contexts[b]))
    return found, counters.read()


def alone(step: Step, case: Case) -> tuple[list[Any], dict[str, int]]:
    """What is decided of the request by itself, which is handed over no more than was drawn."""
    drafted = case.drafted and case.name not in PREEMPTED
    return decided(step, [Case(**vars(case) | {"drafts": case.drawn, "drafted": drafted})])


def test_a_step_decides_each_request_as_if_it_were_alone_and_not_filled_up() -> None:
    accepted, put_back = 0, 0
    for seed in range(2 * len(PARAMETERS)):
        step = Step(seed)
        found, counted = decided(step, step.cases, PREEMPTED)
        expected = [alone(step, case) for case in step.cases]
        assert found == [own for (own,), _ in expected]
        for name, total in counted.items():
            if not name.startswith("verified_steps"):
                assert total == sum(sums[name] for _, sums in expected), name
        accepted += counted["accepted_tokens.head"]
        put_back += counted["put_back_tokens.grammar"]
        drafted = sum(len(case.drawn) for case in step.cases)
        assert counted["drafted_tokens.known"] + counted["drafted_tokens.none"] == drafted
    assert accepted > 40
    assert put_back > 5


@pytest.mark.parametrize("resumed", [PREEMPTED, []])
def test_a_step_that_takes_minus_1_for_a_token_or_forgets_a_preemption_would_be_caught(
    resumed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [Step(seed) for seed in range(2 * len(PARAMETERS))]
    right = [decided(step, step.cases, PREEMPTED) for step in steps]

    def as_tokens(metadata: Any, _: Any, logits: Tensor) -> tuple[Any, ...]:
        drafts = metadata.draft_token_ids.clamp(min=0)
        return logits, metadata.num_draft_tokens, drafts, metadata.logits_indices

    if resumed:
        monkeypatch.setattr(verification, "_drawn", as_tokens)
    wrong = [decided(step, step.cases, resumed) for step in steps]
    assert any(a != b for (a, _), (b, _) in zip(wrong, right, strict=True))
