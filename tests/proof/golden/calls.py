"""Golden calls: the bits that every operator has given, on the CPU and by the emulated kernels.

A change that is to change no result is held to them. `python -m tests.proof.golden` records them
anew, for a change that may; its commit then says why they differ.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rdk_cuda._ops.contract import OPERATORS
from tests.devices import in_the_emulator
from tests.generators import DTYPES
from tests.proof.emulated.workloads import WORKLOADS, by_contract, no_residual

RECORDED = Path(__file__).with_name("bits.json")

# Every path and option, and every operator with every dtype.
CALLS: dict[str, Callable[[], tuple[Tensor, ...]]] = WORKLOADS | {
    f"{operator} of {dtype}": functools.partial(by_contract, operator, dtype)
    for operator in OPERATORS
    for dtype in DTYPES
}
BACKENDS = "cpu", "emulated"


class Bits(NamedTuple):
    """Hashes of what a call was given first, and of what it gave."""

    inputs: str
    outputs: str

    def __str__(self) -> str:
        return " ".join(self)


def c_library() -> str:
    """Bits hold within one (docs/design.md section 5), and so do the emulator's."""
    return " ".join(platform.libc_ver())


def recorded() -> tuple[str, dict[str, dict[str, Bits]]]:
    """The C library, and by backend the bits of each call."""
    found = json.loads(RECORDED.read_text("utf-8"))
    return found["c_library"], {
        name: {call: Bits(*each.split()) for call, each in found[name].items()} for name in BACKENDS
    }


@contextmanager
def backend(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.ops.rdk` is its operators: of the emulator, on one multiprocessor, in order."""
    no_residual()  # whose inputs the CPU's operators make, and are kept
    if name == "cpu":
        yield
        return
    with in_the_emulator(monkeypatch) as module:
        module.set_machine(1, 227 * 1024)
        module.configure(shuffle=False, block_order="forward")
        yield


class _Listening:
    """`torch.ops.rdk`, and what its first call was given."""

    def __init__(self, operators: Any) -> None:
        self.operators, self.given = operators, None

    def __getattr__(self, name: str) -> Any:
        operator = getattr(self.operators, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.given is None:
                self.given = _hash([*args, *kwargs.values()])
            return operator(*args, **kwargs)

        return call


def bits(call: str, monkeypatch: pytest.MonkeyPatch) -> Bits:
    """Of one of CALLS, by whatever `torch.ops.rdk` is."""
    with monkeypatch.context() as patch:
        listening = _Listening(torch.ops.rdk)
        patch.setattr(torch.ops, "rdk", listening)
        outputs = CALLS[call]()
    return Bits(listening.given, _hash(outputs))


def _hash(values: Any) -> str:
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            found.update(f"{value.dtype} {list(value.shape)}".encode())
            flat = value.contiguous().flatten()
            found.update(flat.view(torch.uint8).numpy().tobytes() if len(flat) else b"")
        else:
            found.update(repr(value).encode())
    return found.hexdigest()[:16]
