"""Expected speeds in closed form, and the plan that is expected to be the fastest.

All are tokens in the time of one pass of the target. They assume that a pass takes this time
whatever it reads, that each draft takes `draft_cost` of it and is accepted with the same
probability, independently, and that nothing else takes time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

MOST_ROWS = 32
"""The most rows of the target in one piece."""


class Plan(NamedTuple):
    """How a run is drafted and read.

    Attributes:
        lookahead: L, how many drafts make a piece; 0: a run is read in one piece, when its drafts
            are done (speculative inference, SI).
        draft_length: the most drafts of a run; None: up to the first rejection.
    """

    lookahead: int
    draft_length: int | None = None


def least_lookahead(draft_cost: float, servers: int) -> int:
    """The least L at which a piece always finds a free server (arXiv:2405.14105, equation 1).

    A server is busy for 1 and gets every `servers`-th piece; one is made each `draft_cost * L`.
    """
    return max(1, math.ceil(1 / (draft_cost * servers) - 1e-9))


def parallel_speed(draft_cost: float, acceptance: float, lookahead: int) -> float:
    """Of speculation parallelism (DSI) with enough servers for this lookahead.

    A run's first row is read at once, and L more after each L drafts. If the first N drafts are
    accepted, piece `ceil(N / L)` has the rejection, and ends at `1 + draft_cost L ceil(N / L)`. So
    a run has `1 / (1 - a)` tokens and takes `1 + draft_cost L a / (1 - a^L)`. Servers that read
    what is cancelled are free by the time their next piece comes, so no pass is interrupted.

    Example:
        >>> from rdk_cuda.labs.parallel_decoder import least_lookahead, parallel_speed, serial_speed
        >>> round(parallel_speed(0.1, 0.8, least_lookahead(0.1, servers=4)), 2)
        3.35
        >>> round(max(serial_speed(0.1, 0.8, k) for k in range(20)), 2)
        2.47
    """
    rows = sum(acceptance**place for place in range(lookahead))  # (1 - a^L) / (1 - a)
    return 1 / (1 - acceptance + draft_cost * lookahead * acceptance / rows)


def serial_speed(draft_cost: float, acceptance: float, draft_length: int) -> float:
    """Of SI, which drafts, then verifies (Leviathan et al., arXiv:2211.17192, theorem 3.8)."""
    tokens = sum(acceptance**place for place in range(draft_length + 1))
    return tokens / (1 + draft_cost * draft_length)


def planned(draft_cost: float, acceptance: float, servers: int) -> Plan:
    """DSI at its least lookahead, or SI at its best draft length where that is faster."""
    lookahead = least_lookahead(draft_cost, servers)
    best = max(range(1, MOST_ROWS), key=lambda k: serial_speed(draft_cost, acceptance, k))
    serial = serial_speed(draft_cost, acceptance, best)
    if parallel_speed(draft_cost, acceptance, lookahead) < serial:
        return Plan(0, best)
    return Plan(lookahead)
