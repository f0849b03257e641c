"""Acceptance at the positions of a text is the definition's, and its intervals are paired."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rdk_cuda.calibration import Options
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.recipes.choose import sampled_acceptance
from rdk_cuda.recipes.inputs.documents import Window
from rdk_cuda.recipes.report.evaluation import measure_acceptance
from rdk_cuda.recipes.report.rows import Bootstrap, recovered_share, widening
from rdk_cuda.recipes.stages.pruning import (
    DYNAMIC,
    FULL,
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
    Method,
    Pruning,
)
from tests.calibration.markov_pair import (
    TEMPERATURES,
    MarkovPair,
    V,
    material,
    windows,
)

PAIR = MarkovPair.random()
NAMES = (FULL, PRUNED, DYNAMIC, VIRTUAL, RECOMMENDED)
ALL_TEMPERATURES = (*TEMPERATURES, 0.0)


def _drafters(documents: list[list[int]], temperature: float) -> list[PrunedDrafter]:
    """Those of NAMES, the third and the last with dynamic tokens."""
    options = Options(virtual=4, dynamic=8, recent=4)
    pruning = Pruning(material(PAIR, documents), PAIR.likeliest(), options)
    methods = [pruning.method(name, temperature) for name in NAMES[1:]]
    return [method.drafter for method in (Method.full(PAIR.full_head), *methods)]


def _brute_force(drafter: PrunedDrafter, window: Window, temperature: float) -> Tensor:
    """`[positions]` float64, column by column and token by token."""
    matrix, bias = drafter.affinity.dense().tolist(), drafter.affinity.bias.double()
    rates = []
    for last, context in zip(window.ids, window.contexts, strict=True):
        every = PAIR.hidden[last].double() @ PAIR.weight.double().T + PAIR.bias
        static = PAIR.hidden[last].double() @ drafter.weight.double().T + drafter.bias
        named: list[int] = []
        if drafter.dynamic_tokens is not None:
            named = [token for token in drafter.dynamic_tokens([context])[0].tolist() if token >= 0]
        rows = [*matrix, *torch.eye(V)[named].tolist()]
        logits = torch.cat([static, every[named]])
        biases = torch.cat([bias, torch.zeros(len(named))])
        target = PAIR.target_logits[last].double()
        if temperature == 0:
            # A greedy draft: the likeliest column that is not off, and its likeliest token.
            column = int(logits.where(biases > -math.inf, -math.inf).argmax())
            likeliest = max(range(V), key=rows[column].__getitem__)
            rates.append(float(likeliest == int(target.argmax())))
            continue
        shares = (logits / temperature + biases).softmax(0).tolist()
        q = [sum(share * row[x] for share, row in zip(shares, rows, strict=True)) for x in range(V)]
        p = (target / temperature).softmax(0).tolist()
        rates.append(sum(map(min, p, q)))
    return torch.tensor(rates, dtype=torch.float64)


def test_measured_and_sampled_acceptance_equal_brute_force_at_all_temperatures_at_once() -> None:
    """Of a text that was recorded whole: all positions and all targets, in its order."""
    documents = PAIR.documents(3, 12)
    by_temperature = {
        temperature: _drafters(documents, temperature)[int(temperature) :]
        for temperature in ALL_TEMPERATURES
    }
    named = [drafter.dynamic_tokens is not None for drafter in by_temperature[0.0]]
    assert named == [False, False, True, False, True]
    text, samples = windows(documents), material(PAIR, documents).recording.samples
    assert samples.targets.shape == (3 * 12, V)
    measured = measure_acceptance(PAIR.read, PAIR.full_head, by_temperature, text)
    for temperature, drafters in by_temperature.items():
        rates = measured[temperature]
        assert rates.shape == (len(drafters), 3, 12)
        for drafter, of_drafter in zip(drafters, rates, strict=True):
            expected = torch.stack([_brute_force(drafter, window, temperature) for window in text])
            sampled = sampled_acceptance(samples, drafter, PAIR.full_head, temperature)
            for found in (of_drafter, sampled.view(3, 12)):
                torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)


def test_a_share_is_paired_so_it_is_exact_where_documents_differ_but_ratios_do_not() -> None:
    full, pruned = torch.tensor([[0.9, 0.8], [0.5, 0.4], [0.3, 0.3]]), torch.zeros(3, 2)
    share = recovered_share(Bootstrap([0, 1, 2], seed=0), 0.75 * full, pruned, full)
    assert share is not None
    assert share == pytest.approx((0.75, 0.75, 0.75))


@pytest.mark.parametrize("documents", [2, 3, 4, 8, 30])
def test_an_interval_covers_the_mean_as_often_as_it_says(documents: int) -> None:
    """400 samples: 95 % intervals should cover in about 90 to 95 %.

    The bounds are 5 standard errors wide: false alarm below 1 in 100,000, and the seed is fixed.
    """
    generator = torch.Generator().manual_seed(3)
    covered = 0
    for trial in range(400):
        level = torch.randn(documents, 1, generator=generator)
        rates = level + 0.1 * torch.randn(documents, 4, generator=generator)
        interval = Bootstrap(range(documents), seed=trial).mean(rates)
        covered += interval.low <= 0 <= interval.high
    assert 0.87 < covered / 400 < 0.99


def test_intervals_are_wider_by_student_s_t() -> None:
    stats = pytest.importorskip("scipy.stats")
    for documents in range(2, 60):
        t = stats.t.ppf(0.975, documents - 1) / stats.norm.ppf(0.975)
        expected = t * math.sqrt(documents / (documents - 1))
        assert widening(documents) == pytest.approx(expected, rel=0.12 if documents == 2 else 0.01)


def test_resampling_positions_in_place_of_documents_would_be_noticed() -> None:
    """The control of the test above: positions of one document are alike."""
    generator = torch.Generator().manual_seed(3)
    covered = 0
    for trial in range(30):
        level = torch.randn(30, 1, generator=generator)
        rates = level + 0.1 * torch.randn(30, 16, generator=generator)
        interval = Bootstrap(range(480), seed=trial).mean(rates.reshape(480, 1))
        covered += interval.low <= 0 <= interval.high
    assert covered / 30 < 0.87


def test_no_interval_where_the_data_cannot_tell() -> None:
    rates = torch.tensor([[0.5, 0.6]])
    alone = Bootstrap([0], seed=0).mean(rates)
    assert alone.value == pytest.approx(0.55)
    assert math.isnan(alone.low)
    full, pruned = torch.tensor([[0.6], [0.3]]), torch.tensor([[0.3], [0.4]])
    share = recovered_share(Bootstrap([0, 1], seed=0), full, pruned, full)
    assert share is not None
    assert share.value == pytest.approx(1)
    assert math.isnan(share.low)
    assert recovered_share(Bootstrap([0, 1], seed=0), full, full, pruned) is None
