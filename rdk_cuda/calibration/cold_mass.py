"""Cold mass: one extra row of the head for all pruned tokens, in three variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..dynamic import Contexts
from ..vocabulary import Vocabulary
from .drafter import FullHead, PrunedDrafter
from .offsets import calibrate_offsets, with_offsets
from .samples import Samples
from .virtual import refine_virtual, virtual_drafter

__all__ = ["ColdRow", "cold_mass_drafter"]

ColdRow = Literal["constant", "jensen", "learned"]
"""Which row of the head the cold token has: see `cold_mass_drafter`."""


def cold_mass_drafter(
    samples: Samples,
    full_head: FullHead,
    vocabulary: Vocabulary,
    prior: Tensor,
    temperature: float,
    *,
    row: ColdRow = "jensen",
    prior_temperature: float | None = None,
    dynamic_tokens: Callable[[Contexts], Tensor] | None = None,
    held_out: float = 1 / 3,
) -> PrunedDrafter:
    """A pruned drafter with one virtual token for all other tokens, calibrated on samples.

    - constant: a row of zeros and a calibrated constant, theta, in the affinity's bias: the RDK
      authors' serving variant.
    - jensen: the mean of the pruned rows under the prior, with its entropy (`virtual_drafter`), and
      a calibrated offset.
    - learned: that, refined on the samples' hidden states (`refine_virtual`), and calibrated again.

    Each may end up off, where it only hurts.

    Args:
        samples: what is calibrated on.
        full_head: of the drafter.
        prior: `[V_t]`, mean target probabilities, positive for some pruned token.
        temperature: of use; positive and recorded.
        prior_temperature: what the prior is sharpened by; `temperature` if absent. 1 if it was
            measured at the temperature of use.
        dynamic_tokens: what the drafter can draft besides.
        held_out: as in `calibrate_offsets`; for a learned row more than 0.

    Raises:
        ValueError: an unknown row, no pruned token, or as `calibrate_offsets`.

    Example:
        >>> cold_mass_drafter(samples, head, vocabulary, prior, 1.0)  # doctest: +SKIP
    """
    if row not in ("constant", "jensen", "learned"):
        raise ValueError(f"cold_mass_drafter: row is {row!r}; needs constant, jensen or learned")
    if not vocabulary.pruned.numel():
        raise ValueError("cold_mass_drafter: the vocabulary prunes no token; needs one that does")
    clusters = torch.full((vocabulary.target_size,), -1)
    clusters[vocabulary.pruned] = 0
    drafter = virtual_drafter(
        full_head,
        vocabulary,
        clusters,
        prior,
        temperature=temperature if prior_temperature is None else prior_temperature,
        dynamic_tokens=dynamic_tokens,
    )
    if row == "constant":
        drafter = _with_zero_row(drafter)

    def calibrated(cold: PrunedDrafter) -> PrunedDrafter:
        offsets = calibrate_offsets(samples, cold, full_head, temperature, held_out=held_out)
        return with_offsets(cold, offsets)

    drafter = calibrated(drafter)
    if row == "learned":
        refined = refine_virtual(samples, drafter, full_head, temperature, held_out=held_out)
        return drafter if refined is drafter else calibrated(refined)
    return drafter


def _with_zero_row(drafter: PrunedDrafter) -> PrunedDrafter:
    weight = drafter.weight.clone()
    weight[-1] = 0
    bias = drafter.bias
    if bias is not None:
        bias = bias.clone()
        bias[-1] = 0
    return replace(drafter, weight=weight, bias=bias)
