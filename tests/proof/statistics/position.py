"""Fixed logits of drafted positions, which many sequences decide independently."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from tests import generators


@dataclass
class Position:
    """One position, or K that follow each other.

    Attributes:
        target, drafter: logits `[K + 1, V_t]` and `[K, V_d]`.
        dynamic: tokens and logits `[K, C]`, or None.
        step_keys, positions: of the sequences, `[sequences]`.
    """

    affinity: Affinity
    target: Tensor
    drafter: Tensor
    target_temperature: float = 1.0
    draft_temperature: float = 1.0
    dynamic: tuple[Tensor | None, Tensor | None] = (None, None)
    sequences: int = 20_000

    def __post_init__(self) -> None:
        self.step_keys = torch.arange(self.sequences)
        self.positions = torch.full((self.sequences,), 17)

    @classmethod
    def random(
        cls,
        affinity: Affinity,
        *,
        drafts: int = 1,
        scale: float = 2.0,
        dynamic: int = 0,
        **options: float,
    ) -> Position:
        columns: tuple[Tensor | None, Tensor | None] = (None, None)
        if dynamic:
            tokens = generators.dynamic_tokens(drafts, dynamic, affinity.target_size)
            columns = tokens, generators.logits(drafts, dynamic, 3)
        return cls(
            affinity,
            generators.logits(drafts + 1, affinity.target_size, 1, scale=scale),
            generators.logits(drafts, affinity.draft_size, 2, scale=scale),
            dynamic=columns,
            **options,  # type: ignore[arg-type]
        )

    @property
    def drafts(self) -> int:
        return len(self.drafter)

    @property
    def p(self) -> Tensor:
        """float64 `[K + 1, V_t]`"""
        return torch.softmax(self.target.double() / self.target_temperature, 1)

    def q(self, temperature: float | None = None) -> Tensor:
        """float64 `[K, V_t]`, at the drafter's temperature or at another one."""
        scale = self.draft_temperature if temperature is None else temperature
        columns = (*self.affinity.by_target, self.affinity.row_top)
        scales = torch.full((self.drafts,), scale)
        return reference.redistribute(
            self.drafter, scales, *columns, *self.dynamic, dtype=torch.float64
        )

    def draft(self) -> Tensor:
        """Tokens `[sequences, K]`."""

        def many(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.expand(self.sequences, -1, -1)

        tokens: Tensor = torch.ops.rdk.draft(
            many(self.drafter),
            torch.full((self.sequences, self.drafts), self.draft_temperature),
            self.step_keys[:, None].repeat(1, self.drafts),
            self.positions[:, None] + torch.arange(self.drafts),
            *self.affinity.by_draft,
            *map(many, self.dynamic),
        )[0]
        return tokens

    def stats(self) -> Tensor:
        """Those of the drafter's rows, as `draft` returns them."""
        zeros = torch.zeros(self.drafts, dtype=torch.int64)
        scales = torch.full((self.drafts,), self.draft_temperature)
        found: Tensor = torch.ops.rdk.draft(
            self.drafter, scales, zeros, zeros, *self.affinity.by_draft, *self.dynamic
        )[1]
        return found

    def verify(
        self, drafted: Tensor, stats: Tensor | None = None, hot: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Tokens `[sequences, K + 1]` and how many drafts are accepted.

        Drafts of all sequences share the drafter's rows. It is wrong with another `hot` than 1, so
        many times the temperature that they were drawn at.
        """
        count = self.sequences
        output, accepted, _ = torch.ops.rdk.verify(
            self.target.repeat(count, 1),
            self.drafter,
            stats,
            torch.arange(self.drafts, dtype=torch.int32).repeat(count),
            drafted.flatten(),
            torch.arange(count + 1, dtype=torch.int32) * self.drafts,
            torch.full((count,), self.target_temperature),
            torch.full((count,), hot * self.draft_temperature),
            self.step_keys,
            self.positions,
            *self.affinity.by_target,
            self.drafts,
            *self.dynamic,
        )
        return output, accepted
