"""The token affinity `A = S + U P`: how drafter tokens spread over the target's (DESIGN section 2).

Every row of `A` sums to 1, exactly: its masses are whole numbers of 2^-32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._ops.inputs import check_shape
from ..vocabulary import Vocabulary
from . import samplers
from .entries import offsets_of
from .file import FILE, canonical_of
from .fixed_point import to_float32, to_float64
from .row_top import row_top
from .validation import CANONICAL, AffinityError, check_canonical, units_of

_MAX_DENSE_ENTRIES = 1 << 26
_BLOCK_ENTRIES = 1 << 13  # rows of a head that are held in float64 at a time


@dataclass(frozen=True, eq=False, repr=False)
class Affinity:
    """A linear map from drafter tokens to distributions over target tokens.

    Immutable: never write into its tensors. Build one with a sampler's constructor, from
    `intersection` to `from_rows`, or `load` it. The class itself takes the first six of the tensors
    below, and copies and checks them.

    Attributes:
        bias: `[V_d]` float32, added to the drafter's logits; `-inf` masks a token.
        row_offsets: `[V_d + 1]` int32, where each row of `S` begins in `row_targets`.
        row_targets: `[nnz]` int32, the target ids of `S` by row, ascending within each.
        row_cdf: `[nnz]` int64, running sums within each row of `S`, in units of 2^-32.
        spread_cdf: `[V_d, R]` int64, the same sums continued over `U`. A row ends at 2^32, or is
            all zero if it is masked.
        prior_cdf: `[R, V_t]` int64, running sums of each prior. A prior ends at 2^32.
        spread, prior: `[V_d, R]` and `[R, V_t]` float32, `U` and `P`.
        row_top: `[V_d]` int32, the likeliest target of each row, the lowest id on ties, -1 for a
            masked row.
        col_offsets, col_drafts, col_weights: `S` by target token, drafter ids ascending within
            each: `[V_t + 1]` int32, `[nnz]` int32, `[nnz]` float32.
        is_biased: whether `bias` is other than 0 anywhere.
        by_target, by_draft: the tensors in the call order of `rdk::verify` and of `rdk::draft`. A
            bias that is 0 throughout is None there, and so not read.

    Raises:
        AffinityError: naming the tensor, the entry, what it is and what it needs to be.
    """

    bias: Tensor
    row_offsets: Tensor
    row_targets: Tensor
    row_cdf: Tensor
    spread_cdf: Tensor
    prior_cdf: Tensor
    spread: Tensor = field(init=False)
    prior: Tensor = field(init=False)
    row_top: Tensor = field(init=False)
    col_offsets: Tensor = field(init=False)
    col_drafts: Tensor = field(init=False)
    col_weights: Tensor = field(init=False)
    is_biased: bool = field(init=False)
    by_target: tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor] = field(
        init=False, repr=False
    )
    by_draft: tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] = field(
        init=False, repr=False
    )

    def __post_init__(self) -> None:
        check_canonical(self._canonical())
        for name, tensor in self._canonical().items():
            self._set(name, tensor.detach().to("cpu", copy=True).contiguous())
        row_units, spread_units, prior_units = units_of(self._canonical())
        rows, targets = self._entry_rows(), self.row_targets.long()
        by_column = targets.argsort(stable=True)
        self._set("spread", to_float32(spread_units))
        self._set("prior", to_float32(prior_units))
        self._set("row_top", row_top(rows, targets, row_units, spread_units, prior_units))
        self._set("col_offsets", offsets_of(targets, self.target_size))
        self._set("col_drafts", rows[by_column].to(torch.int32))
        self._set("col_weights", to_float32(row_units[by_column]))
        self._set("is_biased", bool(self.bias.any()))
        self._order()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _canonical(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in CANONICAL}

    def _entry_rows(self) -> Tensor:
        drafts = torch.arange(self.draft_size, device=self.device)
        return drafts.repeat_interleave(self.row_offsets.diff())

    def _order(self) -> None:
        """The tensors as operators take them, once: they are asked for in every call."""
        bias = self.bias if self.is_biased else None
        entries = (self.col_offsets, self.col_drafts, self.col_weights)
        self._set("by_target", (bias, *entries, self.spread, self.prior))
        rows = (self.row_offsets, self.row_targets, self.row_cdf, self.row_top)
        self._set("by_draft", (bias, *rows, self.spread, self.spread_cdf, self.prior_cdf))

    @property
    def draft_size(self) -> int:
        """`V_d`, the number of rows."""
        return self.bias.shape[0]

    @property
    def target_size(self) -> int:
        """`V_t`, the number of columns."""
        return self.prior_cdf.shape[1]

    @property
    def rank(self) -> int:
        """`R`, the number of priors."""
        return self.prior_cdf.shape[0]

    @property
    def nnz(self) -> int:
        """The number of entries of `S`."""
        return self.row_targets.shape[0]

    @property
    def device(self) -> torch.device:
        """Where all the tensors are."""
        return self.bias.device

    def to(self, device: torch.device | str) -> Affinity:
        """Move its tensors to `device`; return itself if they are there."""
        if torch.device(device) == self.device:
            return self
        moved = object.__new__(Affinity)
        for each in fields(self):
            value = getattr(self, each.name)
            moved._set(each.name, value.to(device) if isinstance(value, Tensor) else value)
        moved._order()
        return moved

    def dense(self) -> Tensor:
        """Return `A` as `[V_d, V_t]` float64. For small vocabularies: at most 2^26 entries."""
        if self.draft_size * self.target_size > _MAX_DENSE_ENTRIES:
            raise AffinityError(
                f"Affinity.dense: {self.draft_size} x {self.target_size} entries are more than "
                "2^26; use the sparse tensors"
            )
        row_units, spread_units, prior_units = units_of(self._canonical())
        matrix = to_float64(spread_units) @ to_float64(prior_units)
        entries = (self._entry_rows(), self.row_targets.long())
        return matrix.index_put_(entries, to_float64(row_units), accumulate=True)

    def expectation(self, values: Tensor, *, first_row: int = 0) -> Tensor:
        """Return the mean of `values` under each row from `first_row` on: `A[first_row:] @ values`.

        `values` is `[V_t, n]` of any floating dtype and device; the result is
        `[V_d - first_row, n]` float64 on its device. A masked row has 0.

        Example:
            >>> affinity = Affinity.from_rows([{1: 0.5, 2: 0.5}], target_size=3)
            >>> affinity.expectation(torch.tensor([[1.0], [2.0], [4.0]]))
            tensor([[3.]], dtype=torch.float64)
        """
        name = "Affinity.expectation: values"
        check_shape(name, values, self.target_size, "n", error=AffinityError)
        row_entries, spread, prior = (
            to_float64(units).to(values.device) for units in units_of(self._canonical())
        )
        tokens = torch.arange(self.target_size, device=values.device)
        prior_means = values.new_zeros(self.rank, values.shape[1], dtype=torch.float64)
        if self.rank:
            for part in torch.split(tokens, _BLOCK_ENTRIES):
                prior_means += prior[:, part] @ values[part].double()
        means = spread[first_row:] @ prior_means
        rows, targets = self._entry_rows().to(values.device), self.row_targets.to(values.device)
        for part in torch.split((rows >= first_row).nonzero().flatten(), _BLOCK_ENTRIES):
            weighted = values[targets[part].long()].double() * row_entries[part, None]
            means.index_add_(0, rows[part] - first_row, weighted)
        return means

    def __repr__(self) -> str:
        return (
            f"Affinity(draft_size={self.draft_size}, target_size={self.target_size}, "
            f"nnz={self.nnz}, rank={self.rank}, device='{self.device}')"
        )

    @classmethod
    def intersection(cls, vocabulary: Vocabulary) -> Affinity:
        """Map every drafter token to itself; mask one that the target lacks.

        For equal vocabularies this is plain speculative decoding; for a pruned drafter, drafting
        without redistribution; for different tokenizers, token-level intersection
        (arXiv:2502.05202).

        Example:
            >>> Affinity.intersection(Vocabulary([2, -1], target_size=3)).dense()
            tensor([[0., 0., 1.],
                    [0., 0., 0.]], dtype=torch.float64)
        """
        return cls(**samplers.intersection(vocabulary))

    @classmethod
    def between(
        cls,
        drafter_tokenizer: Any,
        target_tokenizer: Any,
        *,
        draft_size: int | None = None,
        target_size: int | None = None,
    ) -> Affinity:
        """Map between two tokenizers: a token that the target lacks goes to one that begins it.

        A token that both have maps to itself, any other to the longest target token whose bytes its
        own begin with. If there is none, as for a special token, it is masked. The arguments are
        those of `Vocabulary.between`.

        Example:
            >>> ours, theirs = {b"the": 0, b"t": 1, b"a": 2}, {b"a": 0, b"their": 1}
            >>> Affinity.between(theirs, ours).dense()
            tensor([[0., 0., 1.],
                    [1., 0., 0.]], dtype=torch.float64)
        """
        sizes = draft_size, target_size
        return cls(**samplers.between(drafter_tokenizer, target_tokenizer, *sizes))

    @classmethod
    def first_order(
        cls,
        vocabulary: Vocabulary,
        mean_probs: Tensor,
        tau: float,
        *,
        keep: float | Tensor | Sequence[float] = 0.0,
    ) -> Affinity:
        """Make RDK to first order (arXiv:2506.03206): a uniform prior and the mean probabilities.

        Row i is proportional to `1 + mu_i mu_j / tau`: that is `softmax(Omega_i / tau)` for
        `Omega = mu mu^T`, with `exp(x) ~ 1 + x`. A token that the target lacks has `mu_i = 0` and
        spreads evenly.

        Redistributing all of the mass usually costs more acceptance than it brings. So this warns
        (UserWarning) if the affinity overlaps less than `intersection` with the target's mean,
        `sum_x min(mean_probs(x), q(x))`, q made of that mean over the drafter's own tokens. It
        knows no context: no warning is no promise (docs/samplers.md).

        Args:
            mean_probs: `[V_t]`, mean target probabilities; normalised here.
            tau: temperature of the affinity, positive. Small values favour likely tokens; around
                `mean_probs / V_t` half of a row is uniform.
            keep: what share of its own mass each drafter token keeps, 0 to 1: one number or
                `[V_d]`. The rest is redistributed. A token that the target lacks keeps nothing.

        Example:
            >>> Affinity.first_order(Vocabulary([0, -1], 2), torch.ones(2), 0.5, keep=0.5).dense()
            tensor([[0.7500, 0.2500],
                    [0.5000, 0.5000]], dtype=torch.float64)
        """
        tensors = samplers.first_order(vocabulary, mean_probs, tau, keep)
        samplers.warn_of_little_overlap(tensors, vocabulary, mean_probs, tau)
        return cls(**tensors)

    @classmethod
    def covariance(
        cls,
        vocabulary: Vocabulary,
        omega: Tensor,
        tau: float,
        *,
        keep: float | Tensor | Sequence[float] = 0.0,
    ) -> Affinity:
        """Make exact RDK (arXiv:2506.03206): a drafter token's row is `softmax(Omega_i / tau)`.

        At a cost of O(V + nnz). A token that the target lacks spreads evenly.

        Args:
            omega: `[V_t, V_t]`, the similarity of target tokens, such as the covariance or second
                moment of target distributions. Dense, with `V_d V_t` at most 2^22: all entries
                count, and those above the least of their row become entries of `S`. Or sparse, of
                any size: the positive entries count, and all others are 0.
            tau, keep: as in `first_order`. Small values of tau favour similar tokens.

        Example:
            >>> omega = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, -1.0], [0.0, -1.0, 3.0]])
            >>> Affinity.covariance(Vocabulary([1], 3), omega, tau=1.0).dense()
            tensor([[0.1142, 0.8438, 0.0420]], dtype=torch.float64)
            >>> Affinity.covariance(Vocabulary([1], 3), omega.to_sparse(), tau=1.0).dense()
            tensor([[0.1065, 0.7870, 0.1065]], dtype=torch.float64)
        """
        return cls(**samplers.covariance(vocabulary, omega, tau, keep))

    @classmethod
    def cold_mass(cls, vocabulary: Vocabulary, mean_probs: Tensor) -> Affinity:
        """Map kept tokens to themselves, and one extra drafter token to all pruned ones.

        The extra token is drafter token `vocabulary.draft_size`, the last. Its row is a prior, the
        mean over the pruned tokens. A token that the target lacks is masked. `virtual_tokens` with
        one cluster is the same map with a bias.

        Args:
            mean_probs: `[V_t]`, mean target probabilities, non-negative, some of them on pruned
                tokens; normalised there. A pruned token of probability 0 cannot be drafted.

        Example:
            >>> Affinity.cold_mass(Vocabulary([0], 3), torch.tensor([0.6, 0.3, 0.1])).dense()
            tensor([[1.0000, 0.0000, 0.0000],
                    [0.0000, 0.7500, 0.2500]], dtype=torch.float64)
        """
        return cls(**samplers.cold_mass(vocabulary, mean_probs))

    @classmethod
    def virtual_tokens(
        cls,
        vocabulary: Vocabulary,
        clusters: Tensor,
        mean_probs: Tensor,
        *,
        temperature: float = 1.0,
        offset: float | Tensor | Sequence[float] = 0.0,
    ) -> Affinity:
        """Map kept tokens to themselves, and one virtual token to each cluster of pruned ones.

        The virtual token of cluster c is drafter token `vocabulary.draft_size + c`. Its row is
        `w`, proportional to `mean_probs^(1 / temperature)` within the cluster, and its bias is
        the entropy `H(w)` in nats plus `offset`. `rdk_cuda.drafter.prune_head` makes the
        matching rows of the drafter's head.

        Args:
            clusters: `[V_t]` int64, the cluster 0 to K - 1 of each pruned token, -1 for none.
                Kept tokens have none.
            mean_probs: `[V_t]`, mean target probabilities, non-negative. A pruned token of
                probability 0 cannot be drafted; a cluster without any probability is masked.
            temperature: the drafter's, for which `w` and `offset` are made.
            offset: one number or `[K]`, added to the bias; `-inf` masks a virtual token.

        Example:
            >>> vocabulary, clusters = Vocabulary([0], target_size=3), torch.tensor([-1, 0, 0])
            >>> affinity = Affinity.virtual_tokens(vocabulary, clusters, torch.ones(3))
            >>> affinity.dense()[1]
            tensor([0.0000, 0.5000, 0.5000], dtype=torch.float64)
            >>> affinity.bias  # log 2, the entropy of two equally likely members
            tensor([0.0000, 0.6931])
        """
        return cls(**samplers.virtual_tokens(vocabulary, clusters, mean_probs, temperature, offset))

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Mapping[int, float]] | Tensor,
        *,
        target_size: int | None = None,
        spread: Tensor | None = None,
        prior: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Affinity:
        """Take any non-negative weights: `S = rows`, `U = spread`, `P = prior`, all normalised.

        The logarithm of a row's sum is added to its bias. A row without mass is masked.

        Args:
            rows: `V_d` mappings from target id to weight, or a dense or sparse `[V_d, V_t]` tensor.
            target_size: `V_t`; may be left out where `rows` is a tensor or a prior is given.
            spread, prior: `[V_d, R]` and `[R, V_t]`, R at most 4; both or neither.
            bias: `[V_d]`, finite or -inf; zeros if absent.

        Example:
            >>> affinity = Affinity.from_rows([{0: 1.0, 2: 3.0}, {}], target_size=3)
            >>> affinity.dense()
            tensor([[0.2500, 0.0000, 0.7500],
                    [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
            >>> affinity.bias  # log 4, and a masked row
            tensor([1.3863,   -inf])
        """
        return cls(**samplers.from_rows(rows, target_size, spread, prior, bias))

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file atomically; `load` gives the same affinity back."""
        sizes = {"draft_size": self.draft_size, "target_size": self.target_size}
        FILE.write(Path(path), self._canonical(), sizes)

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> Affinity:
        """Read what `save` wrote, checks all of it, and moves it to `device`.

        Raises:
            AffinityError: the file is truncated, altered, of another kind or of a newer version.
            OSError: it cannot be opened.
        """
        tensors, metadata = FILE.read(Path(path))
        try:
            return cls(**canonical_of(tensors, metadata)).to(device)
        except AffinityError as error:
            raise AffinityError(f"Affinity.load: {path}: {error}") from error
