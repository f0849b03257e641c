"""From a full LM head to a pruned one with virtual tokens (DESIGN section 2, "Virtual tokens").

    clusters = cluster_pruned_tokens(weight, vocabulary, mean_probs, count=64)
    drafter = virtual_drafter((weight, bias), vocabulary, clusters, mean_probs)
    offsets = calibrate_offsets(samples, drafter, (weight, bias), temperature=1.0)
    drafter = with_offsets(drafter, offsets)

The drafter's logits `drafter.weight @ x + drafter.bias` are then the `draft_logits` of the
operators, and `drafter.affinity` is their affinity.
"""

from .clusters import cluster_pruned_tokens
from .cold_mass import cold_mass_drafter
from .drafter import PrunedDrafter, sampled_acceptance
from .heads import prune_head
<<<<<<< HEAD
from .learned_rows import (
    Learned,
    joint_pattern,
    joint_rows,
    maximise_acceptance,
    maximise_likelihood,
)
from .moments import second_moment
from .pairs import DraftPairs, draft_pairs
from .tuning import TauAndKeep, Tuned, tune, tuned_covariance, tuned_first_order

__all__ = [
    "DraftPairs",
    "Learned",
    "TauAndKeep",
    "Tuned",
    "cluster_pruned_tokens",
    "draft_pairs",
    "joint_pattern",
    "joint_rows",
    "maximise_acceptance",
    "maximise_likelihood",
    "prune_head",
    "second_moment",
    "tune",
    "tuned_covariance",
    "tuned_first_order",
=======
from .low_rank import LowRankHead, low_rank_head, screened_tokens
from .offsets import calibrate_offsets, with_offsets
from .samples import Samples
from .virtual import refine_virtual, virtual_drafter

__all__ = [
    "LowRankHead",
    "PrunedDrafter",
    "Samples",
    "calibrate_offsets",
    "cluster_pruned_tokens",
    "cold_mass_drafter",
    "low_rank_head",
    "prune_head",
    "refine_virtual",
    "sampled_acceptance",
    "screened_tokens",
    "virtual_drafter",
    "with_offsets",
>>>>>>> 56ed1f4 (Offsets of virtual tokens calibrated on samples, refined rows, cold mass, low-rank heads)
]
