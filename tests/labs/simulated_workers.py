"""Target workers in this process, with random delays, orders and deaths in place of times."""

from __future__ import annotations

import math
import random
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from rdk_cuda.labs.parallel_decoder.speeds import MOST_ROWS


class SimulatedWorkers:
    """In the place of `rdk_cuda.labs.parallel_decoder.workers.Workers`.

    A piece is read when it is sent, and answered some calls later. What it answers with may be
    lost; the worker is then replaced, so that any number may die.

    Attributes:
        answer, death: their probabilities in a call.
        stale, lost: how many answers came too late, and how many died with their workers.
    """

    context, answer, death = math.inf, 0.25, 0.05

    def __init__(self, targets: Sequence[Any], vocabulary_size: int, device: Any, *_: Any) -> None:
        self.targets, self.vocabulary_size, self.device = targets, vocabulary_size, device
        self.models = [self._fresh(n) for n in range(len(targets))]
        self.known = [0] * len(targets)
        self.latencies = deque([1.0])
        self.reading: dict[int, tuple[Any, Tensor, int]] = {}
        self.random = random.Random(0)
        self.rollbacks = self.stale = self.lost = 0

    def __len__(self) -> int:
        return len(self.models)

    def _fresh(self, n: int) -> Any:
        model = self.targets[n]()
        model.reset(1)
        return model

    def send(self, piece: Any, context: Sequence[int], length: int) -> bool:
        free = [n for n in range(len(self)) if n not in self.reading]
        if not free:
            return False
        n, count = self.random.choice(free), piece.end - piece.first
        assert 0 < count <= MOST_ROWS
        kept = min(self.known[n], length - count)
        self.models[n].rollback([kept])
        rows = self.models[n].feed([context[kept:length]], [count]).logits[0]
        assert self.models[n].sequences == [list(context[:length])]
        self.known[n] = length
        unused = rows.new_full((1, rows.shape[1]), math.nan)
        self.reading[n] = piece, torch.cat([rows, unused]), self.rollbacks
        return True

    def answers(self, block: bool) -> list[tuple[Any, Tensor | None]]:
        found: list[tuple[Any, Tensor | None]] = []
        while not found:
            for n in self.random.sample(sorted(self.reading), len(self.reading)):
                if self.random.random() < self.death:
                    found.append((self.reading.pop(n)[0], None))
                    self.models[n], self.known[n] = self._fresh(n), 0
                    self.lost += 1
                elif self.random.random() < self.answer:
                    piece, rows, sent = self.reading.pop(n)
                    found.append((piece, rows))
                    self.stale += sent != self.rollbacks
            if not block:
                break
        return found

    def rollback(self, lengths: Sequence[int]) -> None:
        self.known = [min(known, lengths[0]) for known in self.known]
        self.rollbacks += 1

    def close(self) -> None:
        pass


class ConfusedWorkers(SimulatedWorkers):
    """Wrong on purpose: the answer to a cancelled run stands for the same place of all others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: dict[tuple[int, int], Tensor] = {}

    def answers(self, block: bool) -> list[tuple[Any, Tensor | None]]:
        return [
            (piece, None if rows is None else self.kept.setdefault(piece[1:], rows))
            for piece, rows in super().answers(block)
        ]


class ThreadProcess:
    """In the place of a spawned process: a thread, which ends when its socket is closed."""

    exitcode = None

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
        factory, theirs, rows = args
        own = theirs.dup()  # the caller closes its own

        def run() -> None:
            with own, suppress(ArithmeticError):  # of which a target dies
                target(factory, own, rows)

        thread = threading.Thread(target=run, daemon=daemon)
        self.start, self.join, self.kill = thread.start, thread.join, lambda: None


Place = tuple[CodeType, int]  # a function, and a line or an instruction of it


def interrupted(
    call: Callable[[], Any], files: Collection[str], event: str, at: Place | None, turn: int = 1
) -> Counter[Place]:
    """Call, with Ctrl-C in front of this "line" or "opcode" of the files, this time it is reached.

    Returns:
        How often each place was reached.
    """
    reached: Counter[Place] = Counter()

    def trace(frame: FrameType, happened: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = event == "opcode"
        if happened == event:
            place = frame.f_code, frame.f_lineno if event == "line" else frame.f_lasti
            reached[place] += 1
            if place == at and reached[place] == turn:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        with suppress(KeyboardInterrupt):
            call()
    finally:
        sys.settrace(before)
    return reached
