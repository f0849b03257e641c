"""Clusters of pruned tokens, each for one virtual token (DESIGN section 2)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ...affinity.entries import nonnegative
from ...drafter.heads import check_head
from ...vocabulary import Vocabulary

_BLOCK_ROWS = 1 << 12  # of the head that are transformed at a time
_MOST_SEEDED = 1 << 14  # rows that centres are chosen from; 64 out of 24,000 took two minutes


def cluster_pruned_tokens(
    weight: Tensor,
    vocabulary: Vocabulary,
    mean_probs: Tensor,
    count: int,
    *,
    hidden_second_moment: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Group the pruned tokens so that a virtual token loses little of its members' mass.

    K-means with `mean_probs` as weights and `M = E[x x^T]` as metric minimises what Jensen's
    inequality loses, to second order (DESIGN section 2, "Calibration").

    Args:
        weight: `[V_t, d]`, the drafter's full head, one row for each target token.
        mean_probs: `[V_t]`, the target's, non-negative, positive for some pruned token.
        count: how many clusters; fewer if there are fewer distinct rows.
        hidden_second_moment: `[d, d]`, M, positive semi-definite; the identity if absent.

    Returns:
        `[V_t]` int64: the cluster of each pruned token, none of them empty; -1 for kept tokens.

    Raises:
        ImportError: without scikit-learn.
        ValueError: shapes that disagree, a count out of range, or no pruned token with mass.

    Example:
        >>> weight = torch.tensor([[0.0], [5.0], [5.1], [-5.0], [-5.1]])
        >>> vocabulary = Vocabulary([0], target_size=5)
        >>> clusters = cluster_pruned_tokens(weight, vocabulary, torch.ones(5), count=2)
        >>> bool(clusters[1] == clusters[2] != clusters[3]), int(clusters[0])
        (True, -1)
    """
    name, size, pruned = "cluster_pruned_tokens", vocabulary.target_size, vocabulary.pruned
    check_head(name, weight, None, vocabulary)
    mass = nonnegative(f"{name}: mean_probs", mean_probs, (size,))[pruned]
    if not 0 <= count <= pruned.numel():
        raise ValueError(
            f"{name}: count is {count}; needs 0 to the number of pruned tokens, {pruned.numel()}"
        )
    clusters = torch.full((size,), -1, dtype=torch.int64, device="cpu")
    if count == 0:
        return clusters
    if not mass.sum() > 0:
        raise ValueError(f"{name}: mean_probs is 0 for all pruned tokens; needs some above 0")
    try:
        from sklearn.cluster import KMeans, kmeans_plusplus
        from sklearn.exceptions import ConvergenceWarning
    except ImportError as error:
        raise ImportError(
            f"{name} needs scikit-learn: pip install --no-build-isolation '.[demo]'"
        ) from error

    root = None
    if hidden_second_moment is not None:
        root = _square_root(name, hidden_second_moment, weight.shape[1])
    # The one copy of the rows, 1.6 GB for 96,000 of width 4096: k-means centres it in place.
    points = torch.empty(pruned.numel(), weight.shape[1], dtype=torch.float32, device="cpu")
    for at in torch.arange(pruned.numel(), device="cpu").split(_BLOCK_ROWS):
        rows = weight.detach()[pruned[at].to(weight.device)].float().cpu()
        points[at] = rows if root is None else rows @ root
    start: Any = "k-means++"
    if pruned.numel() > _MOST_SEEDED:
        heaviest = mass.argsort(descending=True, stable=True)[: max(_MOST_SEEDED, count)]
        start, _ = kmeans_plusplus(
            points[heaviest].numpy(), count, sample_weight=mass[heaviest].numpy(), random_state=seed
        )
    kmeans = KMeans(count, init=start, n_init=1, max_iter=100, random_state=seed, copy_x=False)
    with warnings.catch_warnings():
        # It warns of fewer distinct rows than clusters, which only means fewer clusters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = kmeans.fit(points.numpy(), sample_weight=mass.numpy()).labels_
    clusters[pruned] = torch.from_numpy(labels).unique(return_inverse=True)[1]
    return clusters


def _square_root(name: str, moment: Tensor, width: int) -> Tensor:
    """`B [d, d]` float32 with `B B^T = moment`, so that rows times B have its metric."""
    if moment.shape != (width, width) or not bool(moment.isfinite().all()):
        raise ValueError(
            f"{name}: hidden_second_moment has shape {list(moment.shape)} or is not finite; needs "
            f"finite [d, d] with d = {width}"
        )
    values, vectors = torch.linalg.eigh(moment.detach().cpu().double())
    # Tiny negative eigenvalues are the rounding of a semi-definite matrix.
    root: Tensor = vectors * values.clamp_min(0).sqrt()
    return root.float()
