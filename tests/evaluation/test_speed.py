"""What acceptance is worth, against simulated decoding and the paper's formulas."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rdk_cuda.recipes import timing as worth
from rdk_cuda.recipes.timing import (
    HeadCost,
    Times,
    expected_accepted_length,
    measure_model_times,
    measure_times,
)

DRAFTS = 4


def leviathan_accepted(alpha: float, draft_length: int) -> float:
    """Equation 1, less the token that the target adds."""
    return (1 - alpha ** (draft_length + 1)) / (1 - alpha) - 1


def markov_chain(length: int) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Target and drafter `[4, 4]` and a text of the target, whose token 3 never occurs.

    After 0 the drafter is nearly right, after 1 and 2 nearly always wrong, and it errs in favour
    of token 3 alone: min(p, q) is proportional to p. States last, so easy positions stand
    together.
    """
    target = torch.tensor(
        [[0.94, 0.04, 0.02, 0], [0.03, 0.9, 0.07, 0], [0.05, 0.05, 0.9, 0], [1, 0, 0, 0]]
    )
    share = torch.tensor([0.95, 0.2, 0.3, 0.5])
    drafter = target * share[:, None]
    drafter[:, 3] += 1 - share
    generator = torch.Generator().manual_seed(1)
    text = [0]
    for _ in range(length):
        text.append(int(target[text[-1]].multinomial(1, generator=generator)))
    return target, drafter, torch.minimum(target, drafter).sum(1), text


def simulated_accepted_lengths(target: Tensor, drafter: Tensor, starts: Tensor) -> Tensor:
    """How many of `DRAFTS` drafts speculative decoding accepts behind each of the tokens."""
    generator = torch.Generator().manual_seed(2)
    last, alive = starts, torch.ones_like(starts, dtype=torch.bool)
    accepted = torch.zeros_like(starts)
    for _ in range(DRAFTS):
        drafted = drafter[last].multinomial(1, generator=generator)[:, 0]
        coin = torch.rand(starts.shape, generator=generator)
        alive = alive & (coin * drafter[last, drafted] < target[last, drafted])
        accepted += alive
        last = drafted
    return accepted.double()


def test_accepted_length_is_that_of_simulated_decoding() -> None:
    # 5 standard errors of the simulation and of the text: false alarm below 1e-5.
    target, drafter, alpha, text = markov_chain(20_000)
    rates = alpha[torch.tensor(text)].double()
    expected = expected_accepted_length(rates, DRAFTS)
    starts = torch.tensor(text)[: len(expected)]
    found = simulated_accepted_lengths(target, drafter, starts)
    blocks = (found - expected)[:19_900].view(100, -1).mean(1)  # neighbours are alike
    difference, error = float(blocks.mean()), float(blocks.std() / 10)
    assert error < 0.02
    assert abs(difference) < 5 * error
    # Negative control: one rate for all positions is far off here.
    apart = leviathan_accepted(float(rates.mean()), DRAFTS) - float(found.mean())
    assert abs(apart) > 10 * error


def test_with_one_rate_it_is_equation_1_of_leviathan_et_al() -> None:
    rates = torch.full((3, 9), 0.7, dtype=torch.float64)
    lengths = expected_accepted_length(rates, DRAFTS)
    assert lengths.shape == (3, 9 - DRAFTS + 1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, leviathan_accepted(0.7, DRAFTS)))


@pytest.mark.parametrize(
    ("rates", "draft_length"),
    [
        (torch.rand(3), 4),
        (torch.rand(3), 0),
        (torch.tensor(0.5), 1),
        (torch.ones(3, dtype=torch.int64), 2),
    ],
)
def test_rates_that_are_too_few_or_no_rates_are_refused(rates: Tensor, draft_length: int) -> None:
    with pytest.raises(ValueError, match="draft_length is"):
        expected_accepted_length(rates, draft_length)


def test_a_head_reads_its_rows_the_dynamic_ones_and_screens() -> None:
    weight, gathered = torch.zeros(100, 16).half(), torch.zeros(7, 16).half()
    cost = HeadCost(*weight.shape, bytes_each=2, dynamic_columns=7)
    assert cost.bytes_read() == weight.nbytes + gathered.nbytes
    assert cost.flops == 2 * (weight.numel() + gathered.numel())
    screened = HeadCost(*weight.shape, bytes_each=2, dynamic_columns=7, screen_bytes=800)
    assert screened.bytes_read() == cost.bytes_read() + 800
    assert screened.flops == cost.flops + 2 * 800


def test_speed_up_is_theorem_3_8_of_leviathan_et_al() -> None:
    alpha, ratio = 0.8, 0.05
    accepted = leviathan_accepted(alpha, DRAFTS)
    theorem = (1 - alpha ** (DRAFTS + 1)) / ((1 - alpha) * (DRAFTS * ratio + 1))
    head = HeadCost(1, 1)
    times = Times(DRAFTS, 2.0, 2.0, drafter_body=2 * ratio, head_weight=0.0)
    assert times.speed_up(accepted, head) == pytest.approx(theorem)
    # Nothing accepted by a drafter that costs nothing: as fast as the target alone.
    assert Times(DRAFTS, 1.0, 1.0, 0.0, 0.0).speed_up(0.0, head) == 1


def test_times_are_medians_of_warm_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    calls: list[int] = []
    monkeypatch.setattr(worth.time, "perf_counter", lambda: clock[0])

    def takes(seconds: float) -> None:
        clock[0] += seconds

    def target(tokens: int) -> None:
        # The very first call is slow, and so is one of the others.
        calls.append(tokens)
        takes(100.0 if len(calls) in (1, 4) else 8.0 + tokens)

    times = measure_times(
        2,
        target=target,
        drafter_body=lambda: takes(2.0),
        head=lambda: takes(5.0),
        head_weights=10,
    )
    assert calls == [1, 3] * (1 + worth.ROUNDS)
    assert times == Times(2, 9.0, 11.0, drafter_body=2.0, head_weight=0.5)
    parts = {"target": takes, "drafter_body": lambda: takes(1.0), "head": lambda: takes(1.0)}
    # It goes on for the time given: four parts of a round take five seconds.
    assert len(measure_times(1, **parts, head_weights=1, seconds=99.0).rounds) == 20


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("window", [None, 4])
def test_models_are_timed_behind_their_context_and_left_as_they_were(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where layers slide, whose own cache cannot go back beyond its window."""
    transformers = pytest.importorskip("transformers")
    from rdk_cuda.integrations.huggingface.library import given_cache

    size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
    config = transformers.MistralConfig(
        **size,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=window,
    )
    model = transformers.MistralForCausalLM(config).eval()
    seen: list[tuple[int, int]] = []

    def note(module: object, args: object, kwargs: dict, output: object) -> None:
        _, cache = given_cache(kwargs)
        if cache is not None:
            seen.append((kwargs["input_ids"].shape[1], cache.get_seq_length()))

    monkeypatch.setattr(worth, "ROUNDS", 2)
    model.model.register_forward_hook(note, with_kwargs=True)
    times = measure_model_times(model, model, torch.arange(7), draft_length=3)
    assert min(times.target_alone, times.target_verify, times.head_weight) > 0
    # Target alone, target over 4, drafter body; behind 7 tokens every time.
    assert seen[-9:] == [(1, 8), (4, 11), (1, 8)] * 3


# Times that others disturbed.


def noisy(seconds: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> Times:
    """Measured with a clock by which target alone, verification, body and head take these."""
    clock, turn = [0.0], [0]
    monkeypatch.setattr(worth.time, "perf_counter", lambda: clock[0])

    def call(*_: object) -> None:
        clock[0] += seconds[turn[0] % len(seconds)]
        turn[0] += 1

    monkeypatch.setattr(worth, "ROUNDS", 5)
    parts = {"target": call, "drafter_body": call, "head": call}
    return measure_times(DRAFTS, **parts, head_weights=1)


def test_times_that_contradict_each_other_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tokens in a tenth of the time of one, as on a machine that others had left meanwhile."""
    times = noisy([10.0, 1.0, 0.1, 0.1], monkeypatch)
    assert times.speed_up(3.0, HeadCost(1, 1)) > 1 + DRAFTS  # which is what nobody may be told
    assert "took 0.10 times as long as one over a single token" in str(times.contradiction)
    assert noisy([10.0, 9.7, 0.1, 0.1], monkeypatch).contradiction is None


def test_a_speed_up_is_the_median_over_rounds_and_has_a_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In every other round but one all took twice as long, target and drafter alike."""
    quiet, busy = [8.0, 10.0, 1.0, 1.0], [16.0, 20.0, 2.0, 2.0]
    head, expected = HeadCost(1, 1), 4 * 8 / (10 + DRAFTS * 2)
    # The warm-up takes the first four.
    times = noisy([*quiet, *quiet, *busy, *quiet, *busy, *quiet], monkeypatch)
    assert times.speed_up_spread(3.0, head) == pytest.approx((expected,) * 3)
    # Load that changes within rounds is seen.
    uneven = noisy(
        [*quiet, *quiet, 8.0, 20.0, 2.0, 2.0, *quiet, 16.0, 10.0, 1.0, 1.0, *quiet], monkeypatch
    )
    value, low, high = uneven.speed_up_spread(3.0, head)
    assert value == pytest.approx(expected) == pytest.approx(uneven.speed_up(3.0, head))
    assert low < 0.8 * value < 1.2 * value < high
