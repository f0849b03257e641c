"""The demo's checks pass what is right and catch what is wrong."""

import pytest
import torch
from torch import Tensor

from examples.demo import checks
from examples.demo.checks import check_greedy, check_lossless, greedy_outputs
from examples.demo.shipped import Models
from examples.demo.text import Prompt, held_out_prompts
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.recipes.inputs.pairs import ModelPair

TOKENS = 12


@pytest.fixture(scope="module")
def prompts(tiny: ModelPair) -> list[Prompt]:
    return held_out_prompts(tiny.tokenizer, length=32)[:5]


@pytest.fixture(scope="module")
def right(tiny: ModelPair, prompts: list[Prompt]) -> list[list[int]]:
    return greedy_outputs(Models(tiny, None), prompts, TOKENS)


def test_a_right_decoder_passes_and_one_that_samples_does_not(
    tiny: ModelPair, prompts: list[Prompt], right: list[list[int]]
) -> None:
    decoder = SpeculativeDecoder(HuggingFaceModel(tiny.target), HuggingFaceModel(tiny.drafter))
    ids = [prompt.ids for prompt in prompts]
    for temperature, passed in ((0.0, True), (1.0, False)):
        outputs = decoder.generate(
            ids, max_new_tokens=TOKENS, temperature=temperature, seeds=1
        ).tokens
        check = check_greedy(Models(tiny, None), prompts, right, {"ours": outputs})
        assert check.passed is passed, check.detail
        assert (check.figures["different"] == 0) is passed


@pytest.mark.parametrize("fault", ["another token", "cut off", "one too many"])
def test_a_wrong_decoder_is_caught(
    tiny: ModelPair, prompts: list[Prompt], right: list[list[int]], fault: str
) -> None:
    wrong = [list(output) for output in right]
    if fault == "another token":
        wrong[3][5] = (wrong[3][5] + 1) % tiny.vocabulary_size
    elif fault == "cut off":
        wrong[3].pop()
    else:
        wrong[3].append(7)
    check = check_greedy(Models(tiny, None), prompts, right, {"ours": right, "theirs": wrong})
    assert not check.passed
    tokens = 2 * sum(map(len, right))
    assert check.figures == {"outputs": 10, "tokens": tokens, "ties": 0, "different": 1}
    assert f"{prompts[3].source} with theirs" in check.detail


def test_outputs_that_part_at_a_tie_are_told_and_forgiven(
    tiny: ModelPair, prompts: list[Prompt], right: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [list(output) for output in right]
    other[0][0] = (other[0][0] + 1) % tiny.vocabulary_size
    assert not check_greedy(Models(tiny, None), prompts, right, {"ours": other}).passed
    # As if the two logits were equal.
    monkeypatch.setattr(checks, "TIES", {torch.float32: float("inf")})
    check = check_greedy(Models(tiny, None), prompts, right, {"ours": other})
    assert check.passed
    assert check.figures["ties"] == 1
    assert "1 part where" in check.detail


@pytest.fixture
def position() -> tuple[Tensor, Tensor, Affinity]:
    """Target logits, drafter logits and the affinity of a drafter with half of the tokens."""
    generator = torch.Generator().manual_seed(5)
    target = 1.5 * torch.randn(60, generator=generator)
    vocabulary = Vocabulary.most_likely(target.softmax(0), 30)
    drafter = target[vocabulary.draft_ids] + torch.randn(30, generator=generator)
    return target, drafter, Affinity.first_order(vocabulary, target.softmax(0), tau=1e-3)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_right_sampler_passes(
    position: tuple[Tensor, Tensor, Affinity], temperature: float
) -> None:
    """False alarm 1 in 10,000 a case; the seed is fixed. The control is part of the check."""
    check = check_lossless(*position, temperature=temperature, seed=1)
    assert check.passed, check.detail
    assert check.figures["probability"] >= checks.FALSE_ALARM > check.figures["control_probability"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_dynamic_tokens_are_part_of_what_is_checked(
    position: tuple[Tensor, Tensor, Affinity], monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    """The control: a sampler that drafts them and forgets them when it verifies."""
    target, drafter, affinity = position
    tokens = torch.arange(0, 60, 7, dtype=torch.int32)
    dynamic = {"dynamic_tokens": tokens, "dynamic_logits": target[tokens.long()] + 1}
    if forgotten:
        verify = torch.ops.rdk.verify
        without = {"dynamic_tokens": None, "dynamic_logits": None}
        monkeypatch.setattr(torch.ops.rdk, "verify", lambda *a, **k: verify(*a, **k | without))
    check = check_lossless(target, drafter, affinity, temperature=0.8, seed=1, **dynamic)
    assert check.passed is not forgotten, check.detail


@pytest.mark.parametrize("fault", ["unverified", "no residual", "replaced too rarely"])
def test_a_wrong_sampler_is_caught(
    position: tuple[Tensor, Tensor, Affinity], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    honest = checks.draw_outputs

    def faulty(
        target: Tensor, draft: Tensor, affinity: Affinity, temperature: float, seed: int
    ) -> tuple[Tensor, Tensor]:
        drafted, output = honest(target, draft, affinity, temperature, seed)
        generator = torch.Generator().manual_seed(2)
        fresh = target.softmax(0).multinomial(len(output), replacement=True, generator=generator)
        wrong = {
            "unverified": drafted,
            "no residual": torch.where(drafted == output, output, fresh),
            "replaced too rarely": torch.where(
                torch.rand(len(output), generator=generator) < 0.1, drafted, output
            ),
        }
        return drafted, wrong[fault]

    monkeypatch.setattr(checks, "draw_outputs", faulty)
    check = check_lossless(*position, temperature=1.0, seed=1)
    assert not check.passed
    assert check.figures["probability"] < checks.FALSE_ALARM
