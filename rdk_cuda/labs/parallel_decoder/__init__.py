"""Speculation parallelism: drafting goes on while copies of the target judge what is drafted."""

from .decoder import ParallelDecoder
from .speeds import Plan, least_lookahead, parallel_speed, planned, serial_speed

__all__ = [
    "ParallelDecoder",
    "Plan",
    "least_lookahead",
    "parallel_speed",
    "planned",
    "serial_speed",
]
