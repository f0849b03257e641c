"""Truncated decoding has the truncated target's joint distribution, and nothing else.

Counts of all continuations of three tokens against their exact probabilities (chi-square). Each
assertion fails falsely once in 10,000 seeds; the controls have to be caught at 1e-6.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from table_model import TableModel, chi_square, continuations, joint, pruned, random_table
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.decoding.generation import Continuation

SIZE, LENGTH, PROMPT, SAMPLES = 6, 3, [2, 4], 12_000
FALSE_ALARM, CAUGHT = 1e-4, 1e-6

TARGET = TableModel(random_table(SIZE, seed=1), SIZE)
DRAFTER = 0.6 * TARGET.table + random_table(SIZE, seed=2, spread=0.8)
AFFINITY = Affinity.virtual_tokens(
    Vocabulary([5, 1], SIZE),
    torch.tensor([0, -1, 0, 1, 1, -1]),
    torch.softmax(TARGET.table, -1).mean(0),
)
# What the last token allows next: five of six tokens.
ALLOWED = ~torch.eye(SIZE, dtype=torch.bool).roll(2, 1)

LIMITS: dict[str, dict[str, float]] = {
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "all": {"top_k": 4, "top_p": 0.9, "min_p": 0.02},
}


def allowed(sequences: Sequence[Continuation], rows: int) -> Tensor:
    """Bits of what may follow each row's last token."""
    words = torch.zeros(len(sequences), rows, 1, dtype=torch.int32)
    bits = (ALLOWED.int() << torch.arange(SIZE)).sum(1)
    for b, sequence in enumerate(sequences):
        for j in range(rows):
            end = sequence.length + j
            if end <= len(sequence.context):
                words[b, j, 0] = bits[sequence.context[end - 1]]
    return words


def processed(temperature: float, masks: bool = False, top_k: int = 0, top_p: float = 1.0,
              min_p: float = 0.0, target: TableModel = TARGET) -> TableModel:  # fmt: skip
    """The target as a table of truncated log-probabilities, by definition."""
    table = target.table.double() / temperature
    if masks:
        table = table.masked_fill(~ALLOWED.repeat(SIZE, 1), -math.inf)
    probs = table.softmax(1)
    table = table.masked_fill(probs < min_p * probs.amax(1, keepdim=True), -math.inf)
    if top_k:
        table = table.masked_fill(table < table.topk(top_k, 1).values[:, -1:], -math.inf)
    values, order = table.softmax(1).sort(1, descending=True)
    late = values.cumsum(1) - values >= top_p
    table = table.masked_fill(torch.zeros_like(late).scatter(1, order, late), -math.inf)
    return TableModel(table, SIZE)


def p_value(
    limits: dict[str, Any],
    masks: bool,
    temperature: float,
    dynamic: bool,
    expected_limits: dict[str, Any] | None = None,
    truncate_drafts: bool = True,
) -> float:
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    decoder = SpeculativeDecoder(
        TARGET,
        drafter,
        AFFINITY,
        draft_length=2,
        truncate_drafts=truncate_drafts,
        dynamic_tokens=RecentTokens(Vocabulary([5, 1], SIZE), 2) if dynamic else None,
        full_head=(DRAFTER.T.contiguous(), None) if dynamic else None,
    )

    options = {"temperature": temperature, "allowed": allowed if masks else None, **limits}
    expected_limits = limits if expected_limits is None else expected_limits
    expected = joint(processed(temperature, masks, **expected_limits), PROMPT, LENGTH)
    return chi_square_of_possible(
        continuations(lambda: decoder, PROMPT, LENGTH, SAMPLES, **options), expected
    )


def chi_square_of_possible(
    observed: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]
) -> float:
    """p-value, 0 where something that cannot be was observed."""
    possible = {key: p for key, p in expected.items() if p > 0}
    return chi_square(observed, possible) if observed.keys() <= possible.keys() else 0.0


@pytest.mark.parametrize("masks", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("limits", LIMITS)
def test_truncated_decoding_is_lossless(limits: str, masks: bool) -> None:
    assert p_value(LIMITS[limits], masks, 0.8, dynamic=masks) > FALSE_ALARM


@pytest.mark.parametrize("limits", ["top-p", "all"])
def test_drafts_of_all_columns_are_lossless_too(limits: str) -> None:
    assert p_value(LIMITS[limits], False, 0.8, dynamic=True, truncate_drafts=False) > FALSE_ALARM


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


def test_a_mask_alone_is_lossless() -> None:
    assert p_value({}, True, 1.2, dynamic=True) > FALSE_ALARM


def test_control_truncating_p_for_acceptance_but_not_for_the_residual_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verify = rdk_cuda.verify

    def wrong(logits: Tensor, draft: Any, affinity: Affinity, temperature: Tensor,
              **limits: Any) -> Any:  # fmt: skip
        truncated = verify(logits, draft, affinity, temperature, **limits)
        plain = verify(logits, draft, affinity, temperature)
        return truncated._replace(
            tokens=torch.where(
                (truncated.num_accepted == plain.num_accepted)[:, None],
                plain.tokens,
                truncated.tokens,
            )
        )

    monkeypatch.setattr(rdk_cuda.functional, "verify", wrong)
    assert p_value(LIMITS["all"], False, 0.8, dynamic=False) < CAUGHT


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


def test_control_other_limits_are_caught() -> None:
    """Top-p over all tokens is not top-p over what top-k leaves."""
    limits = {"top_k": 4, "top_p": 0.9}
    assert p_value(limits, False, 1.5, dynamic=False) > FALSE_ALARM
    assert p_value(limits, False, 1.5, dynamic=False, expected_limits={"top_p": 0.9}) < CAUGHT


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


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"top_k": -1}, "top_k is -1; needs to be 0 or more"),
        ({"top_p": 0.0}, "top_p is 0.0; needs to be above 0 and at most 1"),
        ({"min_p": math.nan}, "min_p is nan; needs to be from 0 to 1"),
        ({"top_p": [0.5, 0.5]}, r"top_p has shape \[2\]; needs \[1\]"),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(limits: Any, found: str) -> None:
    decoder = SpeculativeDecoder(TARGET, draft_length=0)
    with pytest.raises(ValueError, match=f"SpeculativeDecoder.generate: {found}"):
        decoder.generate([PROMPT], max_new_tokens=2, **limits)


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
        allowed=allowed, logprobs=of, **LIMITS["all"],
    )  # fmt: skip
    assert [len(own) for own in logprobs] == [len(own) for own in tokens]
    assert len(tokens[1]) == 7
    truncated = processed(temperature or 1.0, True, **LIMITS["all"])
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
    with pytest.raises(ValueError, match='logprobs is 5; needs "processed", "raw" or None'):
        decoder.generate([PROMPT], max_new_tokens=4, logprobs=5)  # type: ignore[arg-type]
