"""What holds for every proposer and rule, with sampling parameters and on the kernels, too.

Chi-square of three tokens against their exact probabilities; over seeds each would fail falsely
once in 10,000 times. The decoder on emulated kernels writes what it writes on the CPU, so what the
chi-square tests of this folder say holds for the kernels, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import test_parts
import test_trees_in_the_loop
from table_model import continuations, greedy, joint
from test_parts import CAUGHT, FALSE_ALARM, LENGTH, PROMPT, SAMPLES, TARGET, decoder
from test_truncation import chi_square_of_possible, processed
from torch.utils._python_dispatch import TorchDispatchMode

from rdk_cuda.decoding import Proposer, SpeculativeDecoder
from tests.devices import in_the_emulator

PROPOSERS: dict[str, Callable[[], Proposer]] = {
    **test_parts.PROPOSERS,
    **{f"tree, {name}": tree for name, tree in test_trees_in_the_loop.PROPOSERS.items()},
}
PROMPTS = [[1], [4, 4, 5, 4], [0, 3, 5, 2, 0, 3], [2, 2]]
BATCH: dict[str, Any] = {
    "max_new_tokens": [6, 9, 12, 3],
    "temperature": [1.0, 0.0, 0.6, 0.8],
    "seeds": [7, 8, 9, 10],
    "logprobs": "processed",
}
LIMITS: dict[str, Any] = {"top_k": [3, 0, 4, 2], "top_p": 0.9, "min_p": 0.05}
MOST: dict[str, Any] = {"top_k": 4, "top_p": 0.9, "min_p": 0.02}


def p_value(name: str, method: str, samples: int, truncated: dict[str, Any]) -> float:
    """Of three tokens at temperature 0.8."""
    made = decoder(PROPOSERS[name](), method)
    found = continuations(lambda: made, PROMPT, LENGTH, samples, 1, temperature=0.8, **MOST)
    exact = joint(processed(0.8, target=TARGET, **truncated), PROMPT, LENGTH)
    return chi_square_of_possible(found, exact)


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("name", PROPOSERS)
def test_every_proposer_is_lossless_under_every_rule(
    name: str, method: str, temperature: float, samples: int
) -> None:
    assert test_parts.p_value(PROPOSERS[name](), samples, temperature, method) > FALSE_ALARM


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("name", PROPOSERS)
def test_at_temperature_0_the_text_is_the_target_s_own(name: str, method: str) -> None:
    limits = [30, 2, 17, 1]
    result = decoder(PROPOSERS[name](), method).generate(
        PROMPTS, max_new_tokens=limits, temperature=0
    )
    expected = zip(PROMPTS, limits, strict=True)
    assert result.tokens == [greedy(TARGET, prompt, limit) for prompt, limit in expected]
    assert sum(result.statistics.accepted) > 0
    assert result.statistics.tokens == sum(limits)


@pytest.mark.parametrize("name", PROPOSERS)
def test_a_sequence_is_the_same_alone_and_in_a_batch(name: str) -> None:
    options: dict[str, Any] = {"max_new_tokens": [20, 7, 30, 25], "seeds": [3, 4, 5, 6]}
    options |= {"temperature": [1.0, 0.7, 0.0, 1.3], "top_k": [0, 3, 4, 2], "min_p": [0.02] * 4}
    together = decoder(PROPOSERS[name]()).generate(PROMPTS, **options, logprobs="processed")
    for b, prompt in enumerate(PROMPTS):
        own = {name: [values[b]] for name, values in options.items()}
        alone = decoder(PROPOSERS[name]()).generate([prompt], **own, logprobs="processed")
        assert alone.tokens == [together.tokens[b]]
        assert alone.logprobs == [together.logprobs[b]]


@pytest.mark.ci
@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("name", PROPOSERS)
def test_every_proposer_is_lossless_with_sampling_parameters(
    name: str, method: str, samples: int
) -> None:
    assert p_value(name, method, samples, MOST) > FALSE_ALARM


def test_control_other_limits_are_caught() -> None:
    assert p_value("chain", "token", 2_000, MOST | {"top_p": 0.8}) < CAUGHT


class Namespaces(TorchDispatchMode):
    """Of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func.namespace)
        return func(*args, **kwargs or {})


def outputs(made: SpeculativeDecoder, **limits: Any) -> list[Any]:
    """Tokens, statistics, and log-probabilities to four places."""
    tokens, statistics, logprobs = made.generate(PROMPTS, **BATCH, **limits)
    rounded = [[round(each, 4) + 0.0 for each in row] for row in logprobs]
    return [tokens, vars(statistics), rounded]


@pytest.mark.ci
@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("name", PROPOSERS)
def test_every_proposer_and_rule_is_on_the_kernels_as_on_the_cpu(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both() -> list[Any]:
        made = decoder(PROPOSERS[name](), method)
        return [outputs(made), outputs(made, **LIMITS)]

    expected = both()
    with in_the_emulator(monkeypatch) as emulator, Namespaces() as called:
        emulator.set_machine(132, 1024, 8)
        assert both() == expected
    assert "rdk_emulated" in called.names
    assert "rdk" not in called.names
