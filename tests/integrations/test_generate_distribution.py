"""Samples of `Generate` have the distribution of the library's own.

What is expected is exact: the library's prepared processors, in its order, applied to the target's
logits after every prefix. Counts of all continuations are compared with it by a chi-square test
(pooled tail). Seeds are fixed; over seeds, each test would fail falsely once in 10,000 times. Each
negative control must be caught at 1e-6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from table_model import chi_square
from torch import Tensor

pytest.importorskip("transformers", minversion="5.0")
from transformers import LogitsProcessorList
from transformers.generation import MinPLogitsWarper

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.functional import Method
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface import generate as integration
from rdk_cuda.integrations.huggingface.generate import Generate
from rdk_cuda.integrations.huggingface.padded_batch import PaddedBatch

from .pair import drafter, target

SIZE, PAD, LENGTH, SAMPLES = 8, 0, 3, 5_000
FALSE_ALARM, CAUGHT = 1e-4, 1e-6
OF = {"size": SIZE, "spread": 2.5}
PROMPT = [5, 2, 2, 6]

PLAIN: dict[str, Any] = {"top_k": 0}
TRUNCATED: dict[str, Any] = {"temperature": 0.7, "top_k": 6, "top_p": 0.85}
IN_THE_OPERATOR: dict[str, Any] = {"temperature": 0.7, "top_k": 6, "min_p": 0.55}  # each cuts more
PENALISED: dict[str, Any] = {"temperature": 0.8, "top_k": 0, "repetition_penalty": 5.0}


def generate(seed: int, draft_length: int = 2, method: Method = "token") -> Generate:
    """A drafter that knows five of eight tokens and spreads one of them over two more."""
    vocabulary = Vocabulary([1, 2, 4, 5, 7], SIZE)
    rows: list[dict[int, float]] = [{1: 1}, {2: 0.5, 3: 0.3, 0: 0.2}, {4: 1}, {5: 1}, {7: 1}]
    head = drafter(0.4, **OF).get_output_embeddings().weight.detach()[vocabulary.draft_ids]
    return Generate(
        HuggingFaceModel(drafter(0.4, **OF), head=head),
        Affinity.from_rows(rows, target_size=SIZE),
        draft_length=draft_length,
        method=method,
        seed=seed,
    )


def samples(
    options: dict[str, Any], count: int = SAMPLES, method: Method = "token"
) -> Counter[tuple[int, ...]]:
    """The prompt in every other row; between them others, that end and are padded."""
    counts: Counter[tuple[int, ...]] = Counter()
    other, batch = [[3] * len(PROMPT), [0, 0, 0, 1]], 1000
    ids = torch.tensor([PROMPT, other[0], PROMPT, other[1]]).repeat(batch // 2, 1)
    mask = torch.tensor([[1] * 4, [1] * 4, [1] * 4, [0, 0, 0, 1]]).repeat(batch // 2, 1)
    for seed in range(count // batch):
        new = target(**OF).generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            max_new_tokens=LENGTH + 1,
            pad_token_id=PAD,
            custom_generate=generate(seed, method=method),
            **options,
        )[::2, len(PROMPT) :]
        counts.update(map(tuple, new[:, :LENGTH].tolist()))
    return counts


def joint(options: dict[str, Any], length: int = LENGTH) -> dict[tuple[int, ...], float]:
    """The probability of each continuation of the prompt."""
    prepared: list[LogitsProcessorList] = []

    def keep(model: Any, input_ids: Tensor, logits_processor: Any, **_: Any) -> Tensor:
        prepared.append(logits_processor)
        return input_ids

    ids = torch.tensor([PROMPT])
    target(**OF).generate(
        ids,
        do_sample=True,
        max_new_tokens=length,
        pad_token_id=PAD,
        custom_generate=keep,
        **options,
    )
    probabilities = {(): 1.0}
    for _ in range(length):
        longer = {}
        for prefix, p in probabilities.items():
            context = torch.tensor([[*PROMPT, *prefix]])
            with torch.no_grad():
                scores = prepared[0](context, target(**OF)(context).logits[:, -1].float())
            for token, q in enumerate(torch.softmax(scores[0].double(), 0).tolist()):
                longer[(*prefix, token)] = p * q
        probabilities = longer
    return probabilities


def p_value(observed: Counter[tuple[int, ...]], options: dict[str, Any]) -> float:
    expected = {key: p for key, p in joint(options).items() if p > 0}
    return chi_square(observed, expected) if observed.keys() <= expected.keys() else 0.0


@pytest.mark.parametrize(
    ("options", "others"),
    [
        pytest.param(PLAIN, PENALISED, marks=pytest.mark.night),
        (TRUNCATED, PLAIN),
        (IN_THE_OPERATOR, PLAIN),
        pytest.param(PENALISED, TRUNCATED, marks=pytest.mark.night),
    ],
    ids=["plain", "truncated", "in the operator", "penalised"],
)
def test_samples_have_the_library_s_distribution(
    options: dict[str, Any], others: dict[str, Any]
) -> None:
    """The control: that of other options is caught."""
    observed = samples(options)
    assert p_value(observed, options) > FALSE_ALARM
    assert p_value(observed, others) < CAUGHT


def test_samples_by_block_have_it_too() -> None:
    observed = samples(IN_THE_OPERATOR, method="block")
    assert p_value(observed, IN_THE_OPERATOR) > FALSE_ALARM
    assert observed != samples(IN_THE_OPERATOR)
    with pytest.raises(ValueError, match="method is 'blocks'; needs"):
        samples(IN_THE_OPERATOR, method="blocks")


@pytest.mark.night
def test_control_processors_that_do_not_see_the_drafts_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PaddedBatch, "_put_drafts", lambda *_: None)
    assert p_value(samples(PENALISED), PENALISED) < CAUGHT


@pytest.mark.night
def test_control_a_temperature_behind_the_warpers_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it would be if `verify` always had it: top-p would keep the tokens of another one."""
    sampling = integration.sampling_of

    def reordered(prepared: Sequence[Any], do_sample: bool, **options: bool) -> Any:
        first, *rest = prepared
        assert type(first).__name__ == "TemperatureLogitsWarper"
        return sampling([*rest, first], do_sample, **options)

    monkeypatch.setattr(integration, "sampling_of", reordered)
    assert p_value(samples(TRUNCATED), TRUNCATED) < CAUGHT


def test_a_warper_that_keeps_tokens_on_other_grounds_is_called() -> None:
    options: dict[str, Any] = {"do_sample": True, "keep": False, "truncates": True}
    for kept in (1, 2):
        warper = MinPLogitsWarper(0.1, min_tokens_to_keep=kept)
        found = integration.sampling_of([warper], **options)
        assert (found.min_p, found.processors) == ((0.1, None) if kept == 1 else (None, [warper]))
