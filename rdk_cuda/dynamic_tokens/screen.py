"""Pruned tokens that look likely to the drafter's hidden state (DESIGN section 2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..functional import gather_logits
from ..vocabulary import Vocabulary
from .sources import Contexts

__all__ = ["ScreenedTokens", "screens_of"]

_HIGHEST = 127  # of int8, symmetric
_SHIFT = 128  # between the two bytes of a projected hidden state
_MOST_RANK = 1024  # above, an int32 sum of products could overflow
_ALIGNED = 8  # what the GPU's int8 product needs sizes to be multiples of
_LEAST_ROWS = 32  # and how many rows it needs at least, rounded up


class ScreenedTokens:
    """The pruned tokens whose logits look largest at low rank, for each position anew.

    The screen is a copy of the head's pruned rows, `[P, d]`, at rank r and in 8 bits:

        score_c = bias_c + scale_c left_c . (right x)

    with `left_c` in int8. The `width` tokens with the largest scores are offered. Their scores are
    then forgotten: as all dynamic tokens they get the exact logits of the full head. One reading of
    the screen serves a whole batch.

    The result depends on nothing but the hidden state x, which is known before the token is drawn,
    so decoding stays lossless (DESIGN section 5). A row's tokens do not depend on its neighbours:
    the projection `right x` is added in a fixed order, and products of integers are exact.
    (Relatives: SVD-softmax, Shim et al., NeurIPS 2017.)

    Args:
        tokens: `[P]` int32, the distinct target ids that can be offered.
        left: `[P, r]` int8, a row for each token, r up to 1024.
        scale, bias: `[P]` float32, finite.
        right: `[r, d]` float32, finite.
        width: C, how many tokens each row offers, up to P.

    Attributes:
        reads_hidden: true: this is called with the keyword `hidden`.

    Raises:
        ValueError: dtypes or shapes that do not fit, values that are not finite, a token that is
            negative or there twice, or a width outside 1 to P.

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
        self, tokens: Tensor, left: Tensor, scale: Tensor, bias: Tensor, right: Tensor, width: int
    ) -> None:
        _check(tokens, left, scale, bias, right, width)
        count, rank = left.shape
        further = (0, -rank % _ALIGNED, 0, -count % _ALIGNED)
        self._aligned = torch.nn.functional.pad(left, further) if any(further) else left
        self.tokens, self.left = tokens, self._aligned[:count, :rank]
        self.scale, self.bias, self.width = scale, bias, width
        self.right = right.contiguous()

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
        """Rounds `left @ right`, which stands for the head's pruned rows, to 8 bits a number.

        Args:
            vocabulary: the drafter's own tokens; only the others are offered.
            left: `[P, r]` floats, a row for each pruned token, ascending by id.
            right: `[r, d]` floats.
            bias: `[P]` floats that are added to the scores; none if absent.
            width: as of `ScreenedTokens`.
        """
        rows = left.detach().float()
        scale = (rows.abs().amax(1) / _HIGHEST).clamp_min(torch.finfo(torch.float32).tiny)
        rounded = (rows / scale[:, None]).round().clamp(-_HIGHEST, _HIGHEST).to(torch.int8)
        bias = torch.zeros_like(scale) if bias is None else bias.detach().float()
        tokens = vocabulary.pruned.int().to(rows.device)
        return cls(tokens, rounded, scale, bias, right.detach().float(), width)

    @property
    def rank(self) -> int:
        """r."""
        return self.left.shape[1]

    @property
    def bytes(self) -> int:
        """What one call reads, for a batch of any size: all of it but the tokens' ids."""
        parts = (self.left, self.scale, self.bias, self.right)
        return sum(part.numel() * part.element_size() for part in parts)

    def narrowed(self, width: int) -> ScreenedTokens:
        """The same screen with another width, 1 to P."""
        return ScreenedTokens(
            self.tokens, self.left, self.scale, self.bias, self.right, width=width
        )

    def to(self, device: torch.device | str) -> ScreenedTokens:
        """The screen on another device."""
        return ScreenedTokens(
            self.tokens.to(device),
            self.left.to(device),
            self.scale.to(device),
            self.bias.to(device),
            self.right.to(device),
            width=self.width,
        )

    def __call__(
        self, contexts: Contexts, lengths: Tensor | None = None, *, hidden: Tensor
    ) -> Tensor:
        """The tokens with the largest scores.

        Args:
            contexts, lengths: not looked at.
            hidden: `[B, d]` floats, the drafter's last hidden states at the positions to draft.

        Returns:
            `[B, width]` int32 target ids on the screen's device, the largest score first. Reads
            nothing back from the device.

        Raises:
            ValueError: hidden states of another shape.
        """
        if hidden.dim() != 2 or hidden.shape[1] != self.right.shape[1]:
            raise ValueError(
                f"ScreenedTokens: hidden has shape {list(hidden.shape)}; needs [B, d] with d = "
                f"{self.right.shape[1]}"
            )
        best = self.scores(hidden).topk(self.width, dim=1).indices
        return self.tokens[best]

    @torch.no_grad()
    def scores(self, hidden: Tensor) -> Tensor:
        """The low-rank logits of all tokens that can be offered: `[B, P]` float32."""
        projected = self._projected(hidden.to(self.right.device, torch.float32))
        step = projected.abs().amax(1, keepdim=True) / (_SHIFT * _HIGHEST)
        units = (projected / step.clamp_min(torch.finfo(torch.float32).tiny)).round()
        high = (units / _SHIFT).round()
        halves = torch.cat([high, units - _SHIFT * high]).nan_to_num().to(torch.int8)
        products = self._products(halves)
        batch = hidden.shape[0]
        whole = products[:batch].mul_(_SHIFT).add_(products[batch : 2 * batch])
        # One rounding each: fused, it could depend on where a number stands in a vector register.
        return (whole[:, : len(self.tokens)] * self.scale).mul_(step).add_(self.bias)

    def _projected(self, hidden: Tensor) -> Tensor:
        """`right x`, added in an order that no neighbour changes."""
        rows = torch.arange(self.rank, device=hidden.device, dtype=torch.int32)
        every = rows.expand(hidden.shape[0], -1).contiguous()
        return gather_logits(hidden.contiguous(), self.right, every)

    def _products(self, halves: Tensor) -> Tensor:
        """`halves @ left.T` in int32, of `[n, r]` int8."""
        few = 0
        if halves.is_cuda:
            few = max(_LEAST_ROWS, -(-len(halves) // _ALIGNED) * _ALIGNED) - len(halves)
        padded = torch.nn.functional.pad(halves, (0, self._aligned.shape[1] - self.rank, 0, few))
        return torch._int_mm(padded, self._aligned.T)


def screens_of(source: object) -> Iterator[ScreenedTokens]:
    """The screens among a source of dynamic tokens and, if it combines several, its parts."""
    if isinstance(source, ScreenedTokens):
        yield source
    for part in getattr(source, "sources", ()):
        yield from screens_of(part)


def _check(
    tokens: Tensor, left: Tensor, scale: Tensor, bias: Tensor, right: Tensor, width: int
) -> None:
    count, rank = tokens.numel(), right.shape[0] if right.dim() == 2 else 0
    needs = {
        "tokens": (tokens, torch.int32, (count,)),
        "left": (left, torch.int8, (count, rank)),
        "scale": (scale, torch.float32, (count,)),
        "bias": (bias, torch.float32, (count,)),
        "right": (right, torch.float32, (rank, right.shape[-1] if right.dim() else 0)),
    }
    for name, (tensor, dtype, shape) in needs.items():
        if tensor.dtype != dtype or tensor.shape != shape:
            raise ValueError(
                f"ScreenedTokens: {name} has shape {list(tensor.shape)} and dtype {tensor.dtype}; "
                f"needs {list(shape)} and {dtype}, for {count} tokens at rank {rank}"
            )
        if dtype == torch.float32 and not bool(tensor.isfinite().all()):
            raise ValueError(f"ScreenedTokens: {name} is not finite; needs finite numbers")
    if not 1 <= rank <= _MOST_RANK or right.shape[1] < 1:
        raise ValueError(
            f"ScreenedTokens: right has shape {list(right.shape)}; needs [r, d] with r of 1 to "
            f"{_MOST_RANK}"
        )
    if not 1 <= width <= count:
        raise ValueError(
            f"ScreenedTokens: width is {width}; needs 1 to the number of tokens, {count}"
        )
    ordered = tokens.sort().values
    if int(ordered[0]) < 0 or bool((ordered[1:] == ordered[:-1]).any()):
        raise ValueError("ScreenedTokens: tokens has a negative id or one twice; needs each once")
