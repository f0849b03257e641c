"""Copy of the target, each in a process of its own with its own cache.

Messages go through sockets and logits through shared memory. A socket says at once that the process
at its other end has died, and the others go on; a group of torch.distributed is lost with a member.
Messages are arrays of integers and go to waiting workers alone. A socket takes and gives each whole
or not at all, and waits no longer than the timeout for a worker that does not read.

Ctrl-C may come between any two instructions, and then another call. So messages are numbered, and
an answer to another than the newest is dropped. Before anything is sent
or received, a worker counts as one that knows nothing and waits: that holds either way.
"""

from __future__ import annotations

import signal
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...decoding.models import CausalModel
from .speeds import MOST_ROWS

Factory = Callable[[], CausalModel]
"""Makes a target in the process that calls it. It has to be picklable: a function of a module, or a
`functools.partial` of one."""

RECENT = 64
"""How many of the newest measurements count."""

GRACE = 10.0
"""Seconds in which a process that has nothing more to do may end by itself, on a busy machine."""

LONGEST_WAIT = 2e6
"""Seconds, about what fits into a C int of milliseconds."""

_LONGEST_REFUSAL = 4096
_TOKENS = 2048  # of a message
_BYTES = 1 << 16  # more than any message has

Answer = Tensor | ValueError | None
"""Of a piece: its rows; why the target does not read it; or None of a dead worker."""


class Piece(NamedTuple):
    """Rows of a run for one pass of the target.

    Attributes:
        run: what it belongs to.
        first, end: row j predicts what follows the run's first j drafts.
    """

    run: object
    first: int
    end: int


@dataclass
class _Worker:
    """A process, and what the drafter's process knows of it.

    Attributes:
        rows: `[MOST_ROWS + 1, V_t]` float32, shared: the logits that it answers with.
        number: of the newest message.
        known: how many tokens of the sequence its cache will hold after its piece.
        piece: what it reads, None if it waits.
        since: when that was sent.
        warm: whether the piece does not begin with the prompt.
    """

    process: Any
    pipe: socket.socket
    rows: Tensor
    number: int = 0
    known: int = 0
    piece: Piece | None = None
    since: float = 0.0
    warm: bool = False


class Workers:
    """All of them, as the drafter's process sees them.

    Args:
        targets: make the targets, one for each process.
        vocabulary_size: V_t.
        device: of the drafter.
        timeout: seconds after which a worker that does not answer counts as dead.
        start_timeout: the same for making its target.

    Attributes:
        context: how many tokens each target can remember.
        latencies: seconds of the newest passes, without those over a prompt.

    Raises:
        RuntimeError: a worker did not start.
        ValueError: a target of another size, or a timeout that is no number of seconds.
    """

    def __init__(
        self,
        targets: Sequence[Factory],
        vocabulary_size: int,
        device: torch.device,
        timeout: float,
        start_timeout: float,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("start_timeout", start_timeout)):
            if not isinstance(seconds, Real) or not 0 < seconds <= LONGEST_WAIT:
                raise ValueError(
                    f"ParallelDecoder: {name} is {seconds!r:.40}; needs seconds, more than 0 and "
                    f"at most {LONGEST_WAIT:.0f}"
                )
        self.vocabulary_size, self.device = vocabulary_size, device
        self.timeout, self.latencies = float(timeout), deque[float](maxlen=RECENT)
        self._workers: list[_Worker] = []
        self._ends: list[int | None] = []
        try:
            spawning = torch.multiprocessing.get_context("spawn")
            for target in targets:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.settimeout(self.timeout)
                theirs.setblocking(True)
                shape = MOST_ROWS + 1, vocabulary_size
                rows = torch.zeros(shape, dtype=torch.float32, device="cpu").share_memory_()
                process = spawning.Process(target=_serve, args=(target, theirs, rows), daemon=True)
                process.start()
                theirs.close()
                self._workers.append(_Worker(process, ours, rows))
            deadline = time.monotonic() + start_timeout
            self.context = min(self._started(each, deadline) for each in self._workers)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    def send(self, piece: Piece, context: Sequence[int], length: int) -> bool:
        """Let a waiting worker read a piece; False if none waits.

        Args:
            piece: rows that belong to the last of the tokens.
            context, length: the sequence's first `length` tokens are to be read.

        Raises:
            RuntimeError: no worker is left.
        """
        count = piece.end - piece.first
        while waiting := [each for each in self._workers if each.piece is None]:
            worker = max(waiting, key=lambda each: each.known)
            kept, since = min(worker.known, length - count), time.monotonic()
            worker.known, worker.number = 0, worker.number + 1
            try:
                for start in range(kept, length, _TOKENS):
                    end = min(start + _TOKENS, length)
                    head = worker.number, kept, count if end == length else 0
                    worker.pipe.send(array("q", [*head, *context[start:end]]))
            except OSError:
                self._bury(worker, grace=1.0)
                continue
            worker.since, worker.warm = since, kept > 0
            worker.known, worker.piece = length, piece
            return True
        if self._workers:
            return False
        raise RuntimeError(
            "ParallelDecoder: no target worker is left: the decoder was closed, or they died, or "
            f"did not answer within {self.timeout} s (exit codes {self._ends}; -9 if ended here). "
            "Their own messages are on stderr; make another decoder"
        )

    def answers(self, block: bool) -> list[tuple[Piece, Answer]]:
        """Pieces that were read since the last call, and how.

        There is one row more than was read, of any values. Rows are valid until the next `send`.

        Args:
            block: wait for one, if any is being read.
        """
        found: list[tuple[Piece, Answer]] = []
        while True:
            busy = [(each, each.piece) for each in self._workers if each.piece is not None]
            until = min((each.since for each, _ in busy), default=0.0) + self.timeout
            ready = wait(
                [each.pipe for each, _ in busy],
                max(0.0, until - time.monotonic()) if block and busy else 0.0,
            )
            now = time.monotonic()
            for worker, piece in busy:
                if worker.pipe in ready:
                    found += self._answer(worker, piece, now)
                elif now - worker.since > self.timeout:
                    self._bury(worker)
                    found.append((piece, None))
            if found or not (block and busy):
                return found

    def rollback(self, lengths: Sequence[int]) -> None:
        """The sequence may differ beyond its first `lengths[0]` tokens: as they read on, they know.

        What is being read is not interrupted.
        """
        for worker in self._workers:
            worker.known = min(worker.known, lengths[0])

    def close(self) -> None:
        """End all processes: by themselves, or by force where a pass takes longer than `GRACE`."""
        for worker in self._workers:
            worker.piece = None  # where this is interrupted, `send` finds the closed ones
            worker.pipe.close()
        deadline = time.monotonic() + GRACE
        for worker in self._workers:
            self._end(worker, grace=max(0.0, deadline - time.monotonic()))
        self._workers.clear()

    def _started(self, worker: _Worker, deadline: float) -> float:
        answer = array("q")
        with suppress(OSError):
            if wait([worker.pipe], max(0.0, deadline - time.monotonic())):
                answer.frombytes(worker.pipe.recv(_BYTES))
        if not answer:
            self._end(worker, grace=1.0)
            raise RuntimeError(
                "ParallelDecoder: a target worker did not start (exit code "
                f"{worker.process.exitcode}); its own message is on stderr, and start_timeout is "
                "how long it may take"
            )
        if answer[0] != self.vocabulary_size:
            raise ValueError(
                f"ParallelDecoder: a target predicts {answer[0]} tokens, but the affinity maps to "
                f"{self.vocabulary_size}; pass the affinity of this pair"
            )
        return answer[1]

    def _answer(self, worker: _Worker, piece: Piece, now: float) -> list[tuple[Piece, Answer]]:
        """Take what a ready socket has: none of an older message; None at the process's end."""
        known, worker.known, worker.piece = worker.known, 0, None
        message = b""
        with suppress(OSError):
            message = worker.pipe.recv(_BYTES)
        if not message:
            self._bury(worker, grace=1.0)
            return [(piece, None)]
        (number,), refusal = array("q", message[:8]), message[8:].decode()
        if number != worker.number:
            worker.known, worker.piece = known, piece
            return []
        if refusal:  # of what it has read nothing is certain
            return [(piece, ValueError(refusal))]
        worker.known = known
        if worker.warm:
            self.latencies.append(now - worker.since)
        return [(piece, worker.rows)]

    def _bury(self, worker: _Worker, grace: float = 0.0) -> None:
        self._workers.remove(worker)  # at once, since nothing more may be sent to it
        self._end(worker, grace)
        self._ends.append(worker.process.exitcode)

    def _end(self, worker: _Worker, grace: float = 0.0) -> None:
        """`grace`: seconds in which a process that is about to end may do so by itself."""
        worker.pipe.close()
        try:
            worker.process.join(grace)
        finally:
            worker.process.kill()
        worker.process.join()


def _serve(target: Factory, pipe: socket.socket, rows: Tensor) -> None:
    # Ctrl-C reaches all processes of a terminal, and the drafter's ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe.setblocking(True)  # another process may begin with a default timeout for sockets
    model = target()
    model.reset(1)
    newest, tokens = 0, list[int]()
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(array("q", [model.vocabulary_size, int(min(model.context, 2**62))]))
        while message := pipe.recv(_BYTES):
            number, kept, count, *more = array("q", message)
            # The rest of a message that was interrupted never comes.
            tokens, newest = tokens + more if number == newest else more, number
            if not count:
                continue
            refusal = ""
            try:
                model.rollback([kept])
                rows[:count] = model.feed([tokens], [count]).logits[0, :count]
            except ValueError as error:  # of these tokens alone, such as an id that it cannot read
                refusal = str(error)[:_LONGEST_REFUSAL] or "refused"
            pipe.send(array("q", [number]).tobytes() + refusal.encode())
