"""Truncated drafts, and the log-probabilities of a truncated target. Its distribution: lossless.py.

Each chi-square assertion fails falsely once in 10,000 seeds; the control is caught at 1e-6.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from lossless import ALL_LIMITS, ALLOWED, allowed, processed
from table_model import TableModel, chi_square, pruned
from test_parts import AFFINITY, CAUGHT, DRAFTER, FALSE_ALARM, PROMPT, SIZE, TARGET

import rdk_cuda
from rdk_cuda.decoding import SpeculativeDecoder


def test_drafts_inside_the_limits_are_others_and_more_are_accepted() -> None:
    drafter = TableModel(DRAFTER, SIZE)
    rates = []
    for truncate_drafts in (False, True):
        decoder = SpeculativeDecoder(TARGET, drafter, truncate_drafts=truncate_drafts)
        generation = decoder.generate(
            [PROMPT] * 500, max_new_tokens=20, temperature=1.3, seeds=3, top_p=0.6
        )
        rates.append(generation.statistics.mean_accepted_length)
    assert rates[1] > 1.05 * rates[0]


DRAFTS: dict[str, float] = {"top_k": 2, "top_p": 0.7}


@pytest.mark.parametrize("kind", ["right", "verified without the threshold"])
def test_truncated_drafts_are_lossless_over_one_position(kind: str) -> None:
    """Virtual and dynamic columns are truncated, too. The control forgets where they were cut."""
    count = 60_000
    row = DRAFTER[7] @ AFFINITY.dense().T.to(DRAFTER.dtype)
    logits = row.expand(count, 1, -1)
    dynamic = {
        "dynamic_tokens": torch.tensor([[[3, 0]]], dtype=torch.int32).expand(count, 1, 2),
        "dynamic_logits": DRAFTER[7][[3, 0]].expand(count, 1, 2),
    }
    draft = rdk_cuda.draft(
        logits, AFFINITY, seeds=torch.arange(count), positions=0, **DRAFTS, **dynamic
    )
    assert draft.stats is not None
    q = rdk_cuda.redistribute(
        logits[0, 0], AFFINITY, **DRAFTS,
        **{name: tensor[0, 0].contiguous() for name, tensor in dynamic.items()},
    )  # fmt: skip
    drafted = dict(enumerate((q.double() / q.double().sum()).tolist()))
    assert min(drafted.values()) == 0 < max(drafted.values())
    if kind != "right":
        draft = replace(draft, stats=draft.stats[..., :-1].contiguous())
    verified = rdk_cuda.verify(TARGET.table[7].expand(count, 2, -1), draft, AFFINITY)
    outputs = Counter((int(token),) for token in verified.tokens[:, 0])
    exact = {(x,): float(p) for x, p in enumerate(TARGET.table[7].double().softmax(0))}
    p = chi_square(outputs, exact)
    assert (p > FALSE_ALARM) if kind == "right" else (p < CAUGHT)
    possible = {(x,): p for x, p in drafted.items() if p > 0}
    found = Counter((int(token),) for token in draft.tokens[:, 0])
    assert found.keys() <= possible.keys()
    assert chi_square(found, possible) > FALSE_ALARM


def test_greedy_decoding_knows_only_the_mask() -> None:
    decoder = SpeculativeDecoder(TARGET, TableModel(pruned(DRAFTER, AFFINITY), SIZE), AFFINITY)
    limits: dict[str, Any] = {"top_k": 1, "top_p": 0.1, "min_p": 0.5}
    tokens = decoder.generate(
        [PROMPT], max_new_tokens=9, temperature=0, allowed=allowed, **limits
    ).tokens[0]
    text = list(PROMPT)
    for token in tokens:
        logits = TARGET.logits(text).masked_fill(~ALLOWED[text[-1]], -math.inf)
        assert token == int(logits.argmax())
        text.append(token)


@pytest.mark.parametrize("temperature", [0.8, 1.0, 0.0])
@pytest.mark.parametrize("of", ["processed", "raw"])
def test_log_probabilities_are_those_of_each_token_when_it_was_decided(
    of: Any, temperature: float
) -> None:
    """Of sequences of different lengths, parallel to their tokens, an end token included."""
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    decoder = SpeculativeDecoder(TARGET, drafter, AFFINITY)
    prompts = [PROMPT, [1], [3, 3, 0]]
    tokens, _, logprobs = decoder.generate(
        prompts, max_new_tokens=[40, 7, 0], temperature=temperature, seeds=5, eos=[[1], [], []],
        allowed=allowed, logprobs=of, **ALL_LIMITS,
    )  # fmt: skip
    assert [len(own) for own in logprobs] == [len(own) for own in tokens]
    assert len(tokens[1]) == 7
    truncated = processed(temperature or 1.0, True, **ALL_LIMITS)
    for prompt, new, own in zip(prompts, tokens, logprobs, strict=True):
        text = list(prompt)
        for token, logprob in zip(new, own, strict=True):
            model = TARGET if of == "raw" else truncated
            exact = model.logits(text).double().log_softmax(0)[token]
            if of == "processed" and temperature == 0:
                exact = torch.tensor(0.0)
            assert abs(logprob - float(exact)) < 1e-5
            text.append(token)


def test_without_being_asked_for_there_are_no_log_probabilities() -> None:
    decoder = SpeculativeDecoder(TARGET, draft_length=0)
    generation = decoder.generate([PROMPT, PROMPT], max_new_tokens=4, seeds=1)
    assert generation.logprobs == [[], []]
