"""Model runner V1 decides whatever vLLM's scheduler hands over as if there were no placeholders.

With vLLM's own batch and functions, around targets and drafters that are tables.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from rdk_cuda.integrations.vllm.requests import Requests
from rdk_cuda.integrations.vllm.verification import TokenSampler

from .scheduled import KINDS, PARAMETERS, PREEMPTED, SIZE, Step, changed

CPU = torch.device("cpu")
MODEL = SimpleNamespace(seed=0, logprobs_mode="raw_logprobs")
CONFIG = SimpleNamespace(model_config=MODEL)


def decided(seed: int, resumed: list[str], *only: str, **changes: Any) -> tuple[Any, Any]:
    """What a step decides and counts, of all its requests or these."""
    step = Step(seed)
    step.counters.active = True
    cases = [case for case in step.cases if not only or case.name in only]
    cases = [changed(case, **{name: of(case) for name, of in changes.items()}) for case in cases]
    batch, states = InputBatch(len(cases), 64, 512, CPU, SIZE, [16], [4], LogitsProcessors()), {}
    for case in cases:
        own = case.name, case.prompt, [], case.params, None, ([0],), 0, case.output
        states[case.name] = CachedRequestState(*own)
        batch.add_request(states[case.name])
        batch.update_req_spec_token_ids(states[case.name], {case.name: case.drafts})
    batch.refresh_metadata()
    logits = torch.cat([step.logits[case.slot, : len(case.drafts) + 1] for case in cases])
    runner = SimpleNamespace(
        input_batch=batch,
        requests=states,
        vllm_config=CONFIG,
        max_model_len=64,
    )
    requests = Requests(runner, max_scheduled=10**6, longest_prefill=0)
    requests.drafts = step.drafts
    requests._slots = {case.name: case.slot for case in cases if case.drafted}
    scheduled = {case.name: len(case.drafts) + 1 for case in cases}
    requests.begin_step(scheduled, has_grammar=False, resumed=resumed)
    metadata = SimpleNamespace(
        num_draft_tokens=[len(case.drafts) for case in cases],
        draft_token_ids=torch.tensor([t for case in cases for t in case.drafts]).int(),
    )
    batch.num_computed_tokens_cpu[:] = 9
    made = TokenSampler(requests, step, "token").sample(logits, metadata)
    width = made.sampled_token_ids.shape[1]
    return step.found(cases, made, list(range(0, len(cases) * width, width)))


def test_a_step_decides_each_request_as_if_it_were_alone_and_not_filled_up() -> None:
    """And would not with -1 taken for a token, or a preemption forgotten: the controls."""
    unlike = {"tokens": 0, "forgotten": 0}
    for seed in range(2 * len(PARAMETERS)):
        found, counted = decided(seed, PREEMPTED)
        alone = {
            "drafts": lambda case: case.drawn,
            "drafted": lambda case: case.drafted and case.name not in PREEMPTED,
        }
        expected = [decided(seed, [], name, **alone) for name in KINDS]
        assert found == [own for (own,), _ in expected]
        for name, total in counted.items():
            if not name.startswith("verified_steps"):
                assert total == sum(sums[name] for _, sums in expected), name
        as_tokens = decided(seed, PREEMPTED, drafts=lambda case: [max(t, 0) for t in case.drafts])
        unlike["tokens"] += as_tokens[0] != found
        unlike["forgotten"] += decided(seed, [])[0] != found
    assert min(unlike.values()) > 0
