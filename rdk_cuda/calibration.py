"""From a full LM head to a pruned one with virtual tokens (DESIGN section 2, "Virtual tokens").

    clusters = cluster_pruned_tokens(weight, vocabulary, mean_probs, count=1024)
    small_weight, small_bias = virtual_head(weight, bias, vocabulary, clusters, mean_probs)
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)

The drafter's logits `small_weight @ x + small_bias` are then the `draft_logits` of the operators.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .masses import token_masses, virtual_token_weights
from .vocabulary import Vocabulary

__all__ = ["cluster_pruned_tokens", "pruned_head", "virtual_head"]

_BLOCK_TOKENS = 8192  # rows of a head that are held in float64 at a time


def cluster_pruned_tokens(
    weight: Tensor,
    vocabulary: Vocabulary,
    prior: Tensor,
    count: int,
    *,
    hidden_second_moment: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Groups the pruned tokens so that a virtual token loses little of its members' mass.

    For a cluster with weights w, Jensen's inequality gives away, to second order in the logits,
    half of their variance under w. With `M = E[x x^T]` the mean of that over hidden states is at
    most `1/2 sum_c w_c (h_c - h)^T M (h_c - h)`, h the virtual row. Weighted by the mass of the
    clusters this is the objective of k-means, with the prior as weights and M as metric.

    Args:
        weight: `[V_t, d]`, the drafter's full head, one row for each target token.
        prior: `[V_t]`, mean target probabilities, non-negative, positive for some pruned token.
        count: the number of clusters wanted, 0 to the number of pruned tokens. There are fewer
            if fewer rows are distinct.
        hidden_second_moment: `[d, d]`, M, positive semi-definite; the identity if absent.
        seed: of k-means. The same arguments give the same clusters.

    Returns:
        `[V_t]` int64: the cluster 0 to K - 1 of each pruned token, none of them empty; -1 for
        kept tokens.

    Raises:
        ImportError: without scikit-learn (`pip install --no-build-isolation '.[demo]'`).
        ValueError: shapes that disagree, a count out of range, or no pruned token with mass.

    Example:
        >>> weight = torch.tensor([[0.0], [5.0], [5.1], [-5.0], [-5.1]])
        >>> vocabulary = Vocabulary([0], target_size=5)
        >>> clusters = cluster_pruned_tokens(weight, vocabulary, torch.ones(5), count=2)
        >>> bool(clusters[1] == clusters[2] != clusters[3]), int(clusters[0])
        (True, -1)
    """
    name, size, pruned = "cluster_pruned_tokens", vocabulary.target_size, vocabulary.pruned
    _check_head(name, weight, None, vocabulary)
    mass = token_masses(f"{name}: prior", prior, (size,))[pruned]
    if not 0 <= count <= pruned.numel():
        raise ValueError(
            f"{name}: count is {count}; needs 0 to the number of pruned tokens, {pruned.numel()}"
        )
    clusters = torch.full((size,), -1)
    if count == 0:
        return clusters
    if not mass.sum() > 0:
        raise ValueError(f"{name}: prior is 0 for every pruned token; needs mass to weigh them by")
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise ImportError(
            f"{name} needs scikit-learn: pip install --no-build-isolation '.[demo]'"
        ) from error

    points = weight.detach()[pruned.to(weight.device)].float().cpu()
    if hidden_second_moment is not None:
        points = points @ _square_root(name, hidden_second_moment, weight.shape[1])
    kmeans = KMeans(count, n_init=1, random_state=seed)
    labels = kmeans.fit(points.numpy(), sample_weight=mass.numpy()).labels_
    clusters[pruned] = torch.from_numpy(labels).unique(return_inverse=True)[1]
    return clusters


def virtual_head(
    weight: Tensor,
    bias: Tensor | None,
    vocabulary: Vocabulary,
    clusters: Tensor,
    prior: Tensor,
    *,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """The drafter's small head: its kept rows, then one row `sum_c w_c h_c` for each cluster.

    The weights w are those of `Affinity.virtual_tokens` with the same arguments, whose bias holds
    the `H(w)` of Jensen's bound: `log sum_c exp(h_c . x) >= (sum_c w_c h_c) . x + H(w)`.

    Args:
        weight: `[V_t, d]`, the full head, any floating dtype and device.
        bias: `[V_t]`, or None if the head has none.
        clusters, prior, temperature: as in `Affinity.virtual_tokens`.

    Returns:
        `[V_hot + K, d]` and `[V_hot + K]` (or None), in the dtype and on the device of `weight`
        and `bias`; `V_hot = vocabulary.draft_size`.

    Raises:
        ValueError: shapes that disagree, or a drafter token without a row in the full head.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
        >>> clusters, prior = torch.tensor([-1, 0, 0]), torch.tensor([0.5, 0.25, 0.25])
        >>> virtual_head(weight, None, Vocabulary([0], target_size=3), clusters, prior)[0]
        tensor([[1., 0.],
                [0., 3.]])
    """
    kept_weight, kept_bias = pruned_head(weight, bias, vocabulary)
    share = virtual_token_weights(vocabulary, clusters, prior, temperature=temperature)
    count = int(clusters.max()) + 1
    rows = _weighted_sums(weight, share, clusters, count)
    virtual_weight = torch.cat([kept_weight, rows.to(weight.dtype)])
    if bias is None or kept_bias is None:
        return virtual_weight, None
    constants = _weighted_sums(bias[:, None], share, clusters, count)[:, 0]
    return virtual_weight, torch.cat([kept_bias, constants.to(bias.dtype)])


def pruned_head(
    weight: Tensor, bias: Tensor | None, vocabulary: Vocabulary
) -> tuple[Tensor, Tensor | None]:
    """The rows `[V_d, d]`, and biases `[V_d]`, of the full head that the drafter keeps.

    Example:
        >>> pruned_head(torch.eye(3), None, Vocabulary([2, 0], target_size=3))[0]
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
    """
    _check_head("pruned_head", weight, bias, vocabulary)
    if vocabulary.kept.numel() < vocabulary.draft_size:
        missing = int((vocabulary.draft_ids < 0).nonzero()[0])
        raise ValueError(
            f"pruned_head: drafter token {missing} has no target id; needs a vocabulary whose "
            "every token has a row in the full head"
        )
    ids = vocabulary.draft_ids.to(weight.device)
    return weight.detach()[ids], None if bias is None else bias.detach()[ids.to(bias.device)]


def _check_head(name: str, weight: Tensor, bias: Tensor | None, vocabulary: Vocabulary) -> None:
    size = vocabulary.target_size
    if weight.dim() != 2 or weight.shape[0] != size or not weight.is_floating_point():
        raise ValueError(
            f"{name}: weight has shape {list(weight.shape)} and dtype {weight.dtype}; needs "
            f"floating-point [V_t, d] with V_t = {size}"
        )
    if bias is not None and bias.shape != (size,):
        raise ValueError(f"{name}: bias has shape {list(bias.shape)}; needs [V_t] = [{size}]")


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


def _weighted_sums(rows: Tensor, share: Tensor, clusters: Tensor, count: int) -> Tensor:
    """`sum_c share_c rows_c` over each cluster: `[count, d]` float64, on the device of `rows`."""
    sums = torch.zeros(count, rows.shape[1], dtype=torch.float64, device=rows.device)
    share, clusters = share.to(rows.device), clusters.to(rows.device).long()
    for tokens in torch.split(share.nonzero().flatten(), _BLOCK_TOKENS):
        weighted = rows.detach()[tokens].double() * share[tokens, None]
        sums.index_add_(0, clusters[tokens], weighted)
    return sums
