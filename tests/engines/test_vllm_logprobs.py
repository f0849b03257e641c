"""Log-probabilities that vLLM returns are those of the distribution that tokens are drawn from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.v1.sample.sampler import Sampler

from rdk_cuda.integrations.vllm.requests import Requests
from rdk_cuda.integrations.vllm.target_logits import LogitRows, processed
from rdk_cuda.integrations.vllm.verification import TokenSampler

SIZE, NUM_DRAFTS = 12, [2, 0, 1]
TEMPERATURE, TOP_K = [0.7, 1.0, 1.3], [4, SIZE, 7]
TOP_P, MIN_P = [0.8, 1.0, 0.95], [0.05, 0.0, 0.2]
PARAMETERS = ("temperature", "top_k", "top_p", "min_p")


def sampling_of(names: tuple[str, ...]) -> Any:
    """vLLM's `SamplingMetadata`, as far as it is read, with these parameters of `PARAMETERS`."""
    return SimpleNamespace(
        all_greedy=False,
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=SimpleNamespace(argmax_invariant=[], non_argmax_invariant=[]),
        logprob_token_ids=None,
        max_num_logprobs=SIZE,
        no_penalties=True,
        output_token_ids=[[], [], []],
        spec_token_ids=None,
        top_k=torch.tensor(TOP_K) if "top_k" in names else None,
        top_p=torch.tensor(TOP_P) if "top_p" in names else None,
    )


def sampler_of(mode: str) -> TokenSampler:
    model = SimpleNamespace(seed=0, logprobs_mode=mode)
    runner: Any = SimpleNamespace(vllm_config=SimpleNamespace(model_config=model))
    return TokenSampler(Requests(runner, 1, 0), None, "token")


def expected(row: Tensor, request: int, names: tuple[str, ...]) -> Tensor:
    """In float64, one rule after the other, in vLLM's order."""
    row = row.double() / (TEMPERATURE[request] if "temperature" in names else 1.0)
    if "min_p" in names:
        probs = row.softmax(-1)
        row = row.masked_fill(probs < MIN_P[request] * probs.max(), -torch.inf)
    if "top_k" in names:
        row = row.masked_fill(row < row.topk(TOP_K[request]).values[-1], -torch.inf)
    if "top_p" in names:
        probs, order = row.softmax(-1).sort(descending=True)
        row = row.index_fill(0, order[probs.cumsum(-1) - probs >= TOP_P[request]], -torch.inf)
    return row.log_softmax(-1)


@pytest.mark.parametrize(
    "names", [(), *((name,) for name in PARAMETERS), PARAMETERS], ids=lambda names: "+".join(names)
)
@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs"])
def test_they_are_those_of_log_softmax(mode: str, names: tuple[str, ...]) -> None:
    rows = LogitRows(NUM_DRAFTS, torch.device("cpu"))
    logits = 3 * torch.randn(len(rows.request), SIZE, generator=torch.Generator().manual_seed(1))
    temperature = torch.tensor(TEMPERATURE if "temperature" in names else [1.0] * 3)
    sampling = sampling_of(names)
    params = [SamplingParams(min_p=own if "min_p" in names else 0.0) for own in MIN_P]
    truncate = mode.startswith("processed")
    drafts = torch.zeros(sum(NUM_DRAFTS), dtype=torch.int32)
    target = processed(logits, sampling, params, temperature, rows, drafts, Mock(), truncate)
    tokens = torch.tensor([[3, 1, 4], [1, -1, -1], [5, 9, -1]])
    said = sampler_of(mode)._logprobs(logits, target, sampling, rows, tokens)
    of, differ = names if mode.startswith("processed") else (), 0
    for row, request, place in rows.places(range(3)):
        own = said.logprobs[3 * request + place]
        ids = said.logprob_token_ids[3 * request + place].long()
        right = expected(logits[row], request, of)
        assert ids[0] == tokens[request, place]
        assert sorted(ids[1:].tolist()) == list(range(SIZE))
        torch.testing.assert_close(own.double(), right[ids], rtol=0, atol=1e-5)
        wrong = expected(logits[row], (request + 1) % 3, of)
        differ += not torch.allclose(own.double(), wrong[ids], rtol=0, atol=1e-3)
    assert (differ >= 3) == bool(of)  # the control: another request's parameters


@pytest.mark.parametrize("named", [False, True])
def test_they_lie_as_vllm_s_own_sampler_lists_them(named: bool) -> None:
    rows = LogitRows([0, 0, 0], torch.device("cpu"))
    logits = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(2))
    logits[1] = logits[1].round()  # with ties
    sampling, tokens = sampling_of(()), torch.tensor([[3], [1], [7]])
    sampling.max_num_logprobs = 4
    if named:
        sampling.logprob_token_ids = {0: [5, 2], 2: [11]}
    said = sampler_of("raw_logprobs")._logprobs(logits, Mock(), sampling, rows, tokens)
    own, values = Sampler(), logits.log_softmax(-1)
    with torch.compiler.set_stance("force_eager"):
        expected = (
            own.gather_specific_token_logprobs(values, sampling.logprob_token_ids, tokens[:, 0])
            if named
            else own.gather_logprobs(values, 4, tokens[:, 0])
        )
    for ours, theirs in zip(said[:3], expected[:3], strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
