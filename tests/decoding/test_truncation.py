"""Truncated drafts, and the log-probabilities of a truncated target. Its distribution: lossless.py.

Each chi-square assertion fails falsely once in 10,000 seeds; the control is caught at 1e-6.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from table_model import TableModel, chi_square
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
