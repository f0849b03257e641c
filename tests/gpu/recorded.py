"""The operator calls that the workloads of proof/emulated make, to be made again on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdk_cuda._ops.contract import OPERATORS, Argument
from tests.proof.emulated.workloads import WORKLOADS

from .stand_in import moved

# The arguments that may hold any values: not an affinity's, which are trusted, and not offsets.
FREE = {
    operator: [
        place
        for place, rule in enumerate(each.arguments.values())
        if isinstance(rule, Argument) and not rule.affinity and rule.shape != "B + 1"
    ]
    for operator, each in OPERATORS.items()
}


@dataclass(frozen=True, eq=False)
class Call:
    operator: str
    arguments: tuple[Any, ...]

    def __call__(self, operators: Any) -> tuple[Tensor, ...]:
        results = getattr(operators, self.operator)(*self.arguments)
        return (results,) if isinstance(results, Tensor) else tuple(results)

    def on(self, device: torch.device) -> Call:
        return Call(self.operator, moved(self.arguments, device))

    def with_other_values(self) -> Call:
        """Logits, tokens, seeds, positions and temperatures of the row before."""
        arguments = list(self.arguments)
        for i in FREE[self.operator]:
            if i < len(arguments) and arguments[i] is not None:
                arguments[i] = arguments[i].roll(1, 0)
        return Call(self.operator, tuple(arguments))


class Recorder:
    """Stands for `torch.ops.rdk` and keeps what it is called with."""

    def __init__(self, operators: Any) -> None:
        self.operators = operators
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self.calls.append(Call(name, arguments))
            return getattr(self.operators, name)(*arguments)

        return run


def assert_equal(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """To the bit, NaN included."""
    for ours, same in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, same, rtol=0, atol=0, equal_nan=True)


def recorded(workload: str) -> Call:
    """The last call of a workload, on the CPU."""
    operators = torch.ops.rdk
    recorder = Recorder(operators)
    torch.ops.rdk = recorder
    try:
        WORKLOADS[workload]()
    finally:
        torch.ops.rdk = operators
    return recorder.calls[-1]
