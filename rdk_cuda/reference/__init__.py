"""The operators in plain PyTorch, in float64 on request, and in dense algebra: the oracle.

It uses nothing else of the package, and nothing else of the package uses it.
"""

from .dense import (
    acceptance_rate,
    cold_mass,
    drafter_rows,
    exact_rdk,
    exact_redistribute,
    first_order_rdk,
    output_distribution,
    residual,
    with_kept_mass,
)
from .operators import (
    ACCEPT,
    BONUS,
    CHUNK,
    DIRECT,
    DRAFT,
    RESIDUAL,
    STEP,
    TRIES,
    Trace,
    draft,
    gather_logits,
    philox,
    redistribute,
    step_keys,
    uniform,
    verify,
)

__all__ = [
    "ACCEPT",
    "BONUS",
    "CHUNK",
    "DIRECT",
    "DRAFT",
    "RESIDUAL",
    "STEP",
    "TRIES",
    "Trace",
    "acceptance_rate",
    "cold_mass",
    "draft",
    "drafter_rows",
    "exact_rdk",
    "exact_redistribute",
    "first_order_rdk",
    "gather_logits",
    "output_distribution",
    "philox",
    "redistribute",
    "residual",
    "step_keys",
    "uniform",
    "verify",
    "with_kept_mass",
]
