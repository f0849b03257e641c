"""The rows that a step's drafts are drawn from, kept until they are verified."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor

from .._ops.inputs import whole_number
from ..affinity import Affinity


class StepRows:
    """Memory for what a step is drafted from: K places in each of S slots, filled again each step.

    `draft` stores there the row that it reads, and `verify` reads all of it, so nothing is joined
    or copied in between (DESIGN section 4, "Rows of a step"). A place takes
    `S (V_d + C)` logits, and is written once: 64 KB for one sequence and a bfloat16 drafter of
    32,000 tokens. A row that lies there already, as `logits[:, k]`, is not stored again.

    Args:
        affinity: from drafter to target; its device is that of the rows.
        slots: S, how many sequences.
        places: K, the most drafts of a step.
        dtype: of the drafter's logits. They are kept unrounded: rounded ones would be another
            distribution than the one that was drafted from.
        dynamic_width: C, how many dynamic tokens a draft brings along.
        limited: whether drafts have top_k, top_p or min_p.

    Attributes:
        logits: `[S, K, V_d]`. stats: `[S, K, 2 + R]` float32, `3 + R` if limited.
        tokens: `[S, K]` int64, of which `Draft.tokens` are columns. step_keys: `[S]` int64.
        dynamic_tokens, dynamic_logits: `[S, K, C]` int32, and of the dtype of the logits; or None.
        memory: all of these, as `torch.ops.rdk.draft_step` takes them.

    Example:
        >>> import torch, rdk_cuda
        >>> affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary([4, 0, 2], target_size=5))
        >>> rows = rdk_cuda.StepRows(affinity, slots=1, places=2)
        >>> for position in (17, 20):  # two steps
        ...     first = rdk_cuda.draft(
        ...         torch.zeros(1, 3), affinity, seeds=0, positions=position, rows=rows)
        ...     second = rdk_cuda.draft(torch.zeros(1, 3), affinity, after=first)
        ...     verified = rdk_cuda.verify(torch.zeros(1, 3, 5), [first, second], affinity)
    """

    def __init__(
        self,
        affinity: Affinity,
        slots: int,
        places: int,
        *,
        dtype: torch.dtype = torch.float32,
        dynamic_width: int = 0,
        limited: bool = False,
    ) -> None:
        for name, size, least in (
            ("slots", slots, 0),
            ("places", places, 1),
            ("dynamic_width", dynamic_width, 0),
        ):
            whole_number("StepRows", name, size, least)
        self.slots, self.places, device = slots, places, affinity.device
        row = torch.Size((slots, affinity.draft_size))
        self.form = row, dtype, dynamic_width, limited

        def memory(*width: int, dtype: torch.dtype) -> Tensor:
            # Zeros, since drafts from where nothing was drafted are then rejected by rule.
            return torch.zeros(slots, places, *width, dtype=dtype, device=device)

        self.logits = memory(affinity.draft_size, dtype=dtype)
        self.stats = memory(2 + affinity.rank + limited, dtype=torch.float32)
        self.tokens = memory(dtype=torch.int64)
        self.step_keys = torch.zeros(slots, dtype=torch.int64, device=device)
        self.dynamic_tokens: Tensor | None = None
        self.dynamic_logits: Tensor | None = None
        if dynamic_width:
            self.dynamic_tokens = memory(dynamic_width, dtype=torch.int32)
            self.dynamic_logits = memory(dynamic_width, dtype=dtype)
        dynamic = self.dynamic_tokens, self.dynamic_logits
        self.memory = self.tokens, self.stats, self.step_keys, self.logits, *dynamic
        self.place_tokens = self.tokens.split(1, 1)
        self.drafted = 0  # places that the step has filled
        self.step = object()  # another one for each step
        self.link: tuple[Tensor, ...] = ()  # the step's temperature, seeds and positions
        self.shared: dict[str, Any] = {}  # what its drafts have in common

    def begin(self, link: tuple[Tensor, ...], limits: tuple[Tensor | None, ...]) -> None:
        """Take note of another step."""
        self.link, self.step = link, object()
        own = {"temperature": link[0], "positions": link[2], "limits": limits, "step": self.step}
        self.shared = {**own, "step_keys": self.step_keys}

    def check(self, logits: Tensor, dynamic_width: int, limited: bool, place: int) -> None:
        """Refuse what may not be drafted into a place of the step.

        Raises:
            ValueError: naming what does not fit.
        """
        if place >= self.places or place != self.drafted:
            raise ValueError(
                f"rdk_cuda.draft: rows have {self.places} places, of which the step has filled "
                f"{self.drafted}; this draft is number {place + 1}; needs more places"
            )
        got = logits.shape, logits.dtype, dynamic_width, limited
        if got != self.form:
            raise ValueError(
                "rdk_cuda.draft: rows keep logits of shape, dtype, dynamic_width and limited "
                f"{_form(self.form)}; got {_form(got)}. Make StepRows of these, or leave rows out"
            )

    def hold(self, drafts: Sequence[Any]) -> bool:
        """Say whether these are places of the step that is drafted here, one after the other."""
        place = drafts[0].offset
        end = place + len(drafts)
        held = map(is_, [draft.tokens for draft in drafts], self.place_tokens[place:end])
        return end <= self.drafted and all(held)


def _form(form: tuple[Any, ...]) -> str:
    shape, *others = form
    return f"{[*shape]}, {', '.join(map(str, others))}"
