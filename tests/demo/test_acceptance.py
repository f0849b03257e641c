"""The measured acceptance of real, if tiny, models is the definition's."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from examples.demo.arguments import Settings
from examples.demo.calibration import build_methods, calibrate
from examples.demo.corpus import calibration_files, held_out_files
from examples.demo.text import windows_of
from rdk_cuda import Vocabulary
from rdk_cuda.calibration.material import Material
from rdk_cuda.calibration.methods import (
    DYNAMIC,
    FIRST_ORDER,
    FULL,
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
    Method,
)
from rdk_cuda.calibration.recording.reading import read_models
from rdk_cuda.calibration.recording.windows import Window
from rdk_cuda.cli.models import Models
from rdk_cuda.evaluation.acceptance import measure_acceptance

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_acceptance_of_every_method_equals_brute_force(tiny: Models, temperature: float) -> None:
    training = windows_of(tiny.tokenizer, calibration_files(), 300, 100)
    settings = Settings(keep=(0.25,), virtual=8, dynamic=3, window=7, temperature=temperature)
    material = calibrate(tiny, training, settings, each)
    methods = build_methods(material, settings.keep, settings)
    names = [FULL, PRUNED, FIRST_ORDER, DYNAMIC, VIRTUAL, RECOMMENDED]
    assert [method.name for method in methods] == names

    windows = windows_of(tiny.tokenizer, held_out_files(), 60, 20)
    measured = measured_at(temperature, tiny, methods, windows)

    for method, of_method in zip(methods, measured, strict=True):
        matrix = method.drafter.affinity.dense()
        for window, rates in zip(windows, of_method, strict=True):
            ids = torch.tensor([window.ids])
            with torch.no_grad():
                target = tiny.target(ids).logits[0].double()
                hidden = tiny.drafter.base_model(ids).last_hidden_state[0].double()
            static = (
                hidden @ method.drafter.weight.double().T / temperature
                + method.drafter.affinity.bias
            )
            # The named tokens join the softmax with their own rows of the full head.
            every = hidden @ tiny.drafter_head[0].double().T / temperature
            named = [dynamic_tokens(method, context) for context in window.contexts]
            drafted = torch.zeros(len(window.ids), tiny.vocabulary_size).double()
            for i, tokens in enumerate(named):
                own = torch.cat([static[i], every[i, tokens]]).softmax(0)
                drafted[i] = own[: len(static[i])] @ matrix
                drafted[i, tokens] += own[len(static[i]) :]
            expected = [
                sum(min(p, q) for p, q in zip(*pair, strict=True))
                for pair in zip(
                    (target / temperature).softmax(-1).tolist(), drafted.tolist(), strict=True
                )
            ]
            torch.testing.assert_close(
                rates.double(), torch.tensor(expected).double(), atol=2e-6, rtol=0
            )


def measured_at(
    temperature: float, models: Models, methods: list[Method], windows: list[Window]
) -> torch.Tensor:
    """`[methods, windows, positions]`."""
    drafters = {temperature: [method.drafter for method in methods]}
    read = read_models(models.target, models.drafter)
    return measure_acceptance(read, models.drafter_head, drafters, windows)[temperature]


def each(items: Sequence[object], description: str) -> Sequence[object]:
    """Progress that nobody sees."""
    return items


def dynamic_tokens(method: Method, context: list[int]) -> list[int]:
    """Up to 3 distinct pruned tokens: of the last 7, newest first, then likely successors."""
    source = method.drafter.dynamic_tokens
    if source is None:
        return []
    tokens: list[int] = source([context])[0].tolist()
    named = [token for token in tokens if token >= 0]
    pruned = set(method.drafter.vocabulary.pruned.tolist())
    recent = [token for token in dict.fromkeys(context[:-8:-1]) if token in pruned]
    assert named[: len(recent)] == recent[:3]
    assert len(named) <= 3
    return named


def material_of(models: Models, settings: Settings) -> Material:
    training = windows_of(models.tokenizer, calibration_files(), 600, 50)
    return calibrate(models, training, settings, each)


def test_virtual_tokens_are_off_where_they_hurt(tiny: Models) -> None:
    """A target that never emits what was pruned, and a calibration that takes it for likely."""
    settings = Settings(keep=(0.25,), virtual=8)
    honest = material_of(tiny, settings)
    with_bias = copy.deepcopy(tiny.target)
    with_bias.lm_head.bias = torch.nn.Parameter(torch.zeros(tiny.vocabulary_size))
    kept = Vocabulary.most_likely(honest.recording.mean_probs[0], 100)
    with torch.no_grad():
        with_bias.lm_head.bias[kept.pruned] = -100.0
    misled = material_of(replace(tiny, target=with_bias), settings)
    recording = replace(misled.recording, mean_probs=honest.recording.mean_probs)

    def virtual_biases(material: Material) -> dict[str, torch.Tensor]:
        methods = build_methods(material, [0.25], settings)
        drafters = {method.name: method.drafter for method in methods}
        return {name: drafters[name].affinity.bias[100:] for name in (VIRTUAL, RECOMMENDED)}

    for bias in virtual_biases(replace(misled, recording=recording)).values():
        assert bool((bias == -math.inf).all())
    for bias in virtual_biases(honest).values():
        assert bool((bias > -math.inf).any())


def test_kept_tokens_are_the_targets_likeliest(tiny: Models) -> None:
    settings = Settings(virtual=4)
    material = material_of(tiny, settings)
    mean_probs = material.recording.mean_probs_at(1.0)
    assert float(mean_probs.sum()) == pytest.approx(1, abs=1e-5)
    _, pruned, *_ = build_methods(material, [0.1], settings)
    assert pruned.drafter.vocabulary == Vocabulary.most_likely(mean_probs, 40)
