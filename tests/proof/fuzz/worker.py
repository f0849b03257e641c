"""One argument set after the other, in a process with the sanitized operators.

Reads lines ``begin end`` from standard input and answers each with one line of JSON: how often each
outcome occurred among those sets, and what failed. Before each set its index is written to a file,
so that the driver knows which one ended this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (torch.ops.rdk, for what prepares an argument set)
from rdk_cuda._ops.contract import OPERATORS
from tests.tolerances import same_bits

from . import promises
from .agreement import BrokenPromiseError
from .calls import Call, make_call
from .judge import Reasons, named_in, refusals

REFERENCE_EVERY = 20  # sets; it is slow
# For the emulator.
MACHINES = [(1, 227 * 1024), (4, 227 * 1024), (132, 1024, 8)]


@dataclass(frozen=True)
class Work:
    """What a worker is started with."""

    seed: int
    operators: tuple[str, ...]
    implementation: str  # "cpu" or "cuda"
    library: str
    index_file: str
    time_limit: float  # seconds for one set

    def load(self) -> tuple[Any, Any]:
        """The namespace of the operators, and the emulator if they are its."""
        if self.implementation == "cpu":
            register = ctypes.CDLL(self.library).rdk_register
            register.restype = ctypes.c_bool
            assert register(b"rdk_sanitized")
            return torch.ops.rdk_sanitized, None
        os.environ["RDK_EMULATED_MODULE"] = self.library
        from tests.proof.emulated.emulated_operators import emulator

        return torch.ops.rdk_emulated, emulator()


class FailureError(Exception):
    """What an operator did and must not do."""


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills outputs with NaN or the largest integer
    operators, emulator = work.load()
    index_file = os.open(work.index_file, os.O_WRONLY | os.O_CREAT)
    for line in sys.stdin:
        begin, end = map(int, line.split())
        outcomes: Counter[str] = Counter()
        failures = []
        for index in range(begin, end):
            os.pwrite(index_file, b"%20d" % index, 0)
            signal.setitimer(signal.ITIMER_REAL, work.time_limit)  # SIGALRM ends the process
            if emulator is not None:
                emulator.set_machine(*MACHINES[index % len(MACHINES)])
                emulator.configure(seed=index)
            try:
                outcome = try_index(work, index, operators)
            except FailureError as failure:
                outcome = f"{call_of(work, index).operator}: FAILED"
                failures.append({"index": index, "what": smallest(work, index, operators, failure)})
            outcomes[outcome] += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"outcomes": outcomes, "failures": failures}), flush=True)


def call_of(work: Work, index: int, without: frozenset[int] = frozenset()) -> Call:
    return make_call(work.seed, index, tuple(work.operators), without)


def try_index(work: Work, index: int, operators: Any, without: frozenset[int] = frozenset()) -> str:
    call = call_of(work, index, without)
    return try_call(call, operators, against_reference=index % REFERENCE_EVERY == 0)


def smallest(work: Work, index: int, operators: Any, failure: FailureError) -> str:
    """The failure, and its call with as few changes as still fail."""
    without: frozenset[int] = frozenset()
    for i in range(3):
        try:
            try_index(work, index, operators, without | {i})
        except FailureError as same:
            without, failure = without | {i}, same
    return f"{failure}\n{call_of(work, index, without)}"


def try_call(call: Call, operators: Any, against_reference: bool) -> str:
    """The outcome in words, equal for calls that ended alike, or `FailureError`."""
    reasons = refusals(call.operator, call.arguments)
    operator = getattr(operators, call.operator)
    before = contents(call)
    try:
        outputs = run(operator, call)
    except Exception as error:
        if contents(call) != before:
            raise FailureError("an argument was modified, and the call refused") from None
        return outcome_of_refusal(call, error, reasons)
    if contents(call) != before:
        raise FailureError("an argument was modified")
    for name, reason in reasons.items():
        raise FailureError(f"accepted, although {name} {reason}")
    try:
        promises.check(call.operator, call.arguments, outputs, against_reference)
    except BrokenPromiseError as broken:
        raise FailureError(f"{broken}\n{describe(outputs)}") from None
    again = run(operator, call)
    if not all(same_bits(a, b).all() for a, b in zip(outputs, again, strict=True)):
        raise FailureError(f"another result when repeated\n{describe(outputs)}{describe(again)}")
    return f"{call.operator}: accepted"


def run(operator: Any, call: Call) -> tuple[Tensor, ...]:
    """What a call returns, then what it has written: into copies."""
    written = {
        name: call.arguments[name].clone()
        for name, rule in OPERATORS[call.operator].tensors.items()
        if rule.written and is_writable(call.arguments[name])
    }
    outputs = as_tuple(operator(**call.arguments | written))
    return outputs + tuple(written.values())


def is_writable(value: Tensor | None) -> bool:
    """Whether a copy is laid out alike."""
    return value is not None and value.is_contiguous()


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def describe(outputs: tuple[Tensor, ...]) -> str:
    return "".join(f"  -> {output.tolist()}\n" for output in outputs if output.numel() <= 64)


def contents(call: Call) -> list[bytes]:
    """All the memory of the arguments."""
    tensors = [value for value in call.arguments.values() if isinstance(value, Tensor)]
    memories = [tensor.untyped_storage() for tensor in tensors if tensor.numel()]
    return [ctypes.string_at(memory.data_ptr(), memory.nbytes()) for memory in memories]


def outcome_of_refusal(call: Call, error: Exception, reasons: Reasons) -> str:
    """Errors that differ only in numbers are one outcome."""
    text = str(error).split("\nPosition: ")[0].split("\nDeclaration: ")[0].splitlines()[0]
    if not isinstance(error, (RuntimeError, TypeError, ValueError)):
        raise FailureError(f"refused by {type(error).__name__}: {text}") from None
    if not reasons:
        raise FailureError(f"a valid call is refused: {text}") from None
    named = re.search(rf"\brdk\w*::{call.operator}\b", str(error))
    argument = named_in(call.operator, str(error))
    if not named or argument is None:
        raise FailureError(f"the error names no operator or no argument: {text}") from None
    if ", but needs " in text and argument not in reasons:
        raise FailureError(f"refused for {argument}, although {reasons}: {text}") from None
    text = re.sub(rf"rdk\w*::{call.operator}(\(\))?:? ", "", text)
    text = re.sub(r"\[[-\d, ]*\]", "[#]", text)
    text = re.sub(r"has dtype \w+", "has dtype #", text)
    return f"{call.operator}: " + re.sub(r"(?<![-+] )(?<![\w^])-?\d+(?![\w^])", "#", text)


if __name__ == "__main__":
    main()
