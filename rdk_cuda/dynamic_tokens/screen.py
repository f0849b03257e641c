"""Pruned tokens that look likely to the drafter's hidden state (DESIGN section 2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .._ops.inputs import check_entries, check_shape, check_tensor, whole_number
from ..functional import gather_logits
from ..vocabulary import Vocabulary
from .sources import Contexts, parts_of

_HIGHEST = 127  # of int8, symmetric
_SHIFT = 128  # between the two bytes of a projected hidden state
_MOST_RANK = 1024  # up to here, float32 has every sum of products exactly
_ALIGNED = 8  # what the GPU's int8 product needs sizes to be multiples of
_LEAST_ROWS = 32  # and how many rows it needs at least, rounded up
_IN_CACHE = 1 << 18  # numbers of a copy in float32
_FOLD = 4  # halves to thirds of the time of one topk, for 128 to 4,096 of 245,760


class ScreenedTokens:
    """The pruned tokens whose logits look largest at low rank, for each position anew.

    DESIGN section 2, "Dynamic tokens": a copy of the head's pruned rows `[P, d]` at rank r, in 8
    bits, which a batch reads once, gives each token a score,

        score_c = bias_c + scale_c left_c . (right x)

    The `width` tokens with the largest scores are offered, with the exact logits of the full head.

    The result depends on nothing but the hidden state x, and not on a row's neighbours: the
    projection is added in a fixed order, and products of integers are exact.

    Args:
        tokens: `[P]` int32, the distinct target ids that can be offered.
        left: `[P, r]` int8, a row for each token, r up to 1024.
        scale: `[P]` float32, finite.
        bias: the same, or None.
        right: `[r, d]` float32, finite.
        width: C, how many tokens each row offers, up to P.

    Attributes:
        reads_hidden: true: this is called with the keyword `hidden`.

    Raises:
        ValueError: dtypes, shapes, values or sizes other than these.

    Example:
        >>> weight = torch.tensor([[1.0, 2.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
        >>> vocabulary, axis = Vocabulary([0], target_size=4), torch.tensor([[1.0, 0.0]])
        >>> screen = ScreenedTokens.from_factors(vocabulary, weight[1:] @ axis.T, axis, width=2)
        >>> screen([[5], [5]], hidden=torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        tensor([[3, 2],
                [1, 2]], dtype=torch.int32)
    """

    reads_hidden = True

    def __init__(
        self,
        tokens: Tensor,
        left: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        right: Tensor,
        width: int,
    ) -> None:
        self.tokens, self.left, self.right = tokens, left, right.contiguous()
        self.scale, self.bias, self.width = scale, bias, width
        self._check()
        count, rank = left.shape
        further = (0, -rank % _ALIGNED, 0, -count % _ALIGNED)
        self._aligned = torch.nn.functional.pad(left, further) if any(further) else left
        self.left = self._aligned[:count, :rank]

    @classmethod
    def from_factors(
        cls,
        vocabulary: Vocabulary,
        left: Tensor,
        right: Tensor,
        bias: Tensor | None = None,
        *,
        width: int = 128,
    ) -> ScreenedTokens:
        """Round `left @ right`, which stands for the head's pruned rows.

        Args:
            vocabulary: the drafter's own tokens; only the others are offered.
            left: `[P, r]` floats, a row for each pruned token, ascending by id.
            right: `[r, d]` floats.
            bias: `[P]` floats that are added to the scores; none if absent.
            width: as in `ScreenedTokens`.
        """
        rows, right = left.detach().float(), right.detach().float()
        tokens = vocabulary.pruned.int().to(rows.device)
        bias = None if bias is None else bias.detach().float()
        scale = (rows.abs().amax(1) / _HIGHEST).clamp_min(torch.finfo(torch.float32).tiny)
        rounded = (rows / scale[:, None]).round().clamp(-_HIGHEST, _HIGHEST).to(torch.int8)
        return cls(tokens, rounded, scale, bias, right, width)

    @property
    def rank(self) -> int:
        """r."""
        return self.left.shape[1]

    @property
    def bytes(self) -> int:
        """Count what one call reads for a batch of any size: all but the tokens' ids."""
        parts = (self.left, self.scale, self.bias, self.right)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)

    def to(self, device: torch.device | str) -> ScreenedTokens:
        """Move the screen to another device."""
        bias = None if self.bias is None else self.bias.to(device)
        parts = self.tokens.to(device), self.left.to(device), self.scale.to(device)
        return ScreenedTokens(*parts, bias, self.right.to(device), self.width)

    def __call__(self, contexts: Contexts, *, hidden: Tensor) -> Tensor:
        """Return the `[B, width]` int32 target ids with the largest scores, the largest first.

        They are on the screen's device, and nothing is read back from it. The contexts are not
        looked at; `hidden` is `[B, d]` floats, the drafter's last hidden states before the draft.
        """
        check_shape("ScreenedTokens: hidden", hidden, "B", self.right.shape[1])
        return self.tokens[largest(self.scores(hidden), self.width)]

    @torch.no_grad()
    def scores(self, hidden: Tensor) -> Tensor:
        """Score all tokens that can be offered: `[B, P]` float32."""
        projected = self._projected(hidden)
        step = projected.abs().amax(1, keepdim=True) / (_SHIFT * _HIGHEST)
        units = (projected / step.clamp_min(torch.finfo(torch.float32).tiny)).round()
        high = (units / _SHIFT).round()
        halves = torch.cat([high, units - _SHIFT * high]).nan_to_num().to(torch.int8)
        products = self._products(halves)
        batch = len(projected)
        whole = products[:batch].mul_(_SHIFT).add_(products[batch : 2 * batch])
        # One rounding each: fused, it could depend on where a number stands in a vector register.
        scores = (whole[:, : len(self.tokens)] * self.scale).mul_(step)
        return scores if self.bias is None else scores.add_(self.bias)

    def _projected(self, hidden: Tensor) -> Tensor:
        """Project in an order of additions that no neighbour changes."""
        hidden = hidden.to(self.right.device, torch.float32)
        rows = torch.arange(len(self.right), device=hidden.device, dtype=torch.int32)
        every = rows.expand(hidden.shape[0], -1).contiguous()
        return gather_logits(hidden.contiguous(), self.right, every)

    def _check(self) -> None:
        tokens, left, right = self.tokens, self.left, self.right
        count, rank = tokens.numel(), left.shape[-1] if left.dim() else 0
        directions, hidden_size = right.shape if right.dim() == 2 else (0, 0)
        needs = {
            "tokens": (tokens, torch.int32, (count,)),
            "left": (left, torch.int8, (count, rank)),
            "scale": (self.scale, torch.float32, (count,)),
            "bias": (self.bias, torch.float32, (count,)),
            "right": (right, torch.float32, (directions, hidden_size)),
        }
        for name, (tensor, dtype, shape) in needs.items():
            if tensor is not None:
                own = f"ScreenedTokens: {name}"
                check_tensor(own, tensor, dtype, *shape)
                if dtype.is_floating_point:
                    check_entries(own, tensor, tensor.isfinite(), "finite numbers")
        if not 1 <= rank == directions <= _MOST_RANK or hidden_size < 1:
            raise ValueError(
                f"ScreenedTokens: left has shape {list(left.shape)}, right {list(right.shape)}; "
                f"needs [P, r] and [r, d], r up to {_MOST_RANK}"
            )
        whole_number("ScreenedTokens", "width", self.width, 1, count)
        ordered = tokens.sort().values
        if int(ordered[0]) < 0 or bool((ordered[1:] == ordered[:-1]).any()):
            raise ValueError(
                "ScreenedTokens: tokens has a negative id or one twice; needs each once"
            )

    def _products(self, halves: Tensor) -> Tensor:
        """`halves @ left.T` in int32, of `[n, r]` int8."""
        if not halves.is_cuda and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
            return _exact_products(halves, self.left)
        few = 0
        if halves.is_cuda:
            few = max(_LEAST_ROWS, -(-len(halves) // _ALIGNED) * _ALIGNED) - len(halves)
        padded = torch.nn.functional.pad(halves, (0, self._aligned.shape[1] - self.rank, 0, few))
        return torch._int_mm(padded, self._aligned.T)


def _exact_products(halves: Tensor, rows: Tensor) -> Tensor:
    """`halves @ rows.T` in int32, of int8, by products in float32.

    For CPUs on which `torch._int_mm` has no instructions to use: with AVX2, 65,536 rows of rank 128
    and it, scores take 2.8 times as long for one position, and 12 times for eight.
    """
    factor = halves.float()
    result = torch.empty(len(halves), len(rows), dtype=torch.int32, device=rows.device)
    count = max(1, _IN_CACHE // rows.shape[1])
    with torch.autocast(rows.device.type, enabled=False):
        for part, into in zip(rows.split(count), result.split(count, dim=1), strict=True):
            into.copy_(factor @ part.float().T)
    return result


def largest(values: Tensor, count: int) -> Tensor:
    """Do as `values.topk(count, dim=1).indices`, of `[B, n]`, sooner where n is large.

    The largest values are among the columns, of values folded into a few rows, that have the
    largest maxima. These are found in the same way.
    """
    size = values.shape[1]
    if size < 2 * _FOLD * count:
        return values.topk(count, dim=1).indices
    columns = -(-size // _FOLD)
    padded = torch.nn.functional.pad(values, (0, _FOLD * columns - size), value=-torch.inf)
    folded = padded.view(len(values), _FOLD, columns)
    best = largest(folded.amax(1), count)
    inside = folded.gather(2, best[:, None].expand(-1, _FOLD, -1)).flatten(1)
    place = inside.topk(count, dim=1).indices
    # Only among values of -inf can the padding be one of the largest.
    return (place // count * columns + best.gather(1, place % count)).clamp(max=size - 1)


def screens_of(source: object) -> Iterator[ScreenedTokens]:
    """The screens among a source of dynamic tokens and, if it combines several, its parts."""
    return (part for part in parts_of(source) if isinstance(part, ScreenedTokens))
