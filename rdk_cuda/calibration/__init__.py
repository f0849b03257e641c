"""From a full LM head to a pruned one with virtual tokens (DESIGN section 2, "Virtual tokens").

    clusters = cluster_pruned_tokens(weight, vocabulary, mean_probs, count=64)
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)
    small_weight, small_bias = prune_head(weight, bias, vocabulary, virtual=affinity)

The drafter's logits `small_weight @ x + small_bias` are then the `draft_logits` of the operators.
"""

from .clusters import cluster_pruned_tokens
from .heads import prune_head
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
]
