"""RDK with the tau and the kept shares that the target accepts most on samples."""

from .tuning import (
    COVARIANCE,
    FIRST_ORDER,
    TauAndKeep,
    target_covariance,
    tuned_covariance,
    tuned_first_order,
    tuned_rdk,
)

__all__ = [
    "COVARIANCE",
    "FIRST_ORDER",
    "TauAndKeep",
    "target_covariance",
    "tuned_covariance",
    "tuned_first_order",
    "tuned_rdk",
]
