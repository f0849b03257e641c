"""What the soak draws from: two drafted positions and a bonus, the same for every sequence.

Each case is a target, a drafter and an affinity whose distributions are known exactly; the controls
are the same steps done wrong.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from tests import generators
from tests.proof.statistics.chi_square import histogram

DRAFTS = 2
GROUPS = 16  # the joint distribution of two tokens is counted by their ids modulo this
VALUES_A_BATCH = 6_000_000  # target logits, so about 24 MB

Counts = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    name: str
    kind: str  # of `generators.affinity`
    size: int
    target_temperature: float = 1.0
    draft_temperature: float = 1.0
    dynamic: int = 0
    copies: float = 0.0  # draft logits are so many times the target's; 0: they are their own
    # What is wrong on purpose: "" (nothing), "shared coin" or "another temperature".
    wrong: str = ""

    @functools.cached_property
    def affinity(self) -> Affinity:
        return generators.affinity(self.kind, self.size)

    @functools.cached_property
    def target(self) -> Tensor:
        """``[DRAFTS + 1, V_t]``"""
        return generators.logits(DRAFTS + 1, self.size, 1, scale=1.2)

    @functools.cached_property
    def drafter(self) -> Tensor:
        """``[DRAFTS, V_d]``"""
        if self.copies:
            return self.copies * self.target[:DRAFTS]
        return generators.logits(DRAFTS, self.affinity.draft_size, 2, scale=1.2)

    @functools.cached_property
    def dynamic_columns(self) -> tuple[Tensor | None, Tensor | None]:
        if not self.dynamic:
            return None, None
        tokens = generators.dynamic_tokens(DRAFTS, self.dynamic, self.size)
        return tokens, generators.logits(DRAFTS, self.dynamic, 3)

    @functools.cached_property
    def p(self) -> Tensor:
        """float64 ``[DRAFTS + 1, V_t]``"""
        return torch.softmax(self.target.double() / self.scales(self.target_temperature, 1), 1)

    @functools.cached_property
    def q(self) -> Tensor:
        """float64 ``[DRAFTS, V_t]``"""
        return reference.redistribute(
            self.drafter,
            self.scales(self.draft_temperature, DRAFTS),
            *self.affinity.by_target,
            self.affinity.row_top,
            *self.dynamic_columns,
            dtype=torch.float64,
        )

    @staticmethod
    def scales(temperature: float, count: int) -> Tensor:
        return torch.full((count,), temperature)

    @property
    def sequences(self) -> int:
        """In one batch."""
        return min(8192, VALUES_A_BATCH // ((DRAFTS + 1) * self.size))

    @functools.cached_property
    def targets(self) -> Tensor:
        """The target's rows of a batch."""
        return self.target.repeat(self.sequences, 1)

    # ------------------------------------------------------------------------------- sampling

    def batch(self, seed: int, first: int) -> Counts:
        """Counts of what the sequences number ``first`` and following drew."""
        count = self.sequences
        users = torch.arange(first, first + count) + seed * 2**40
        positions = torch.arange(first, first + count) % 997
        keys = torch.ops.rdk.step_keys(users, positions)
        both = torch.stack([positions, positions + 1], 1)
        drafted, _ = torch.ops.rdk.draft(
            self.drafter.expand(count, -1, -1),
            torch.full((count, DRAFTS), self.draft_temperature),
            keys[:, None].repeat(1, DRAFTS),
            both,
            *self.affinity.by_draft,
            *(None if t is None else t.expand(count, -1, -1) for t in self.dynamic_columns),
        )
        if self.wrong == "shared coin":
            return self.counts(drafted, *self.verify_each(drafted, keys, positions))
        return self.counts(drafted, *self.verify(drafted, keys, positions))

    def verify(self, drafted: Tensor, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Drafts of all sequences share the drafter's rows: `draft_rows` is 0, 1, 0, 1 ..."""
        count = self.sequences
        scale = self.draft_temperature * (1.05 if self.wrong == "another temperature" else 1.0)
        tokens, accepted, _ = torch.ops.rdk.verify(
            self.targets,
            self.drafter,
            None,
            torch.arange(DRAFTS, dtype=torch.int32).repeat(count),
            drafted.flatten(),
            torch.arange(count + 1, dtype=torch.int32) * DRAFTS,
            self.scales(self.target_temperature, count),
            self.scales(scale, count),
            keys,
            positions,
            *self.affinity.by_target,
            DRAFTS,
            *self.dynamic_columns,
        )
        return tokens, accepted

    def verify_each(
        self, drafted: Tensor, keys: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Wrong: each position is a step of its own, and both have the random words of one."""
        count = self.sequences
        outputs, accepted = [], []
        for j in range(DRAFTS):
            tokens, taken, _ = torch.ops.rdk.verify(
                self.target[j].expand(2 * count, -1),
                self.drafter,
                None,
                torch.full((count,), j, dtype=torch.int32),
                drafted[:, j].contiguous(),
                torch.arange(count + 1, dtype=torch.int32),
                self.scales(self.target_temperature, count),
                self.scales(self.draft_temperature, count),
                keys,
                positions,
                *self.affinity.by_target,
                1,
                *self.dynamic_columns,
            )
            outputs.append(tokens[:, 0])
            accepted.append(taken)
        length = torch.where(accepted[0] == 1, 1 + accepted[1], 0)
        return torch.stack(outputs, 1), length

    def counts(self, drafted: Tensor, output: Tensor, length: Tensor) -> Counts:
        first, second = output[:, 0], output[:, 1]
        pairs = (first % GROUPS * GROUPS + second % GROUPS)[length > 0]
        return {
            "drafted": histogram(drafted[:, 0], self.size),
            "first": histogram(first, self.size),
            "pairs": histogram(pairs, GROUPS**2),
            "length": histogram(length, DRAFTS + 1),
        }

    @staticmethod
    def tokens(counts: Counts) -> int:
        """How many were drawn: each sequence's drafts, and what it put out."""
        sequences = int(counts["length"].sum())
        accepted = int((counts["length"] * torch.arange(DRAFTS + 1)).sum())
        return sequences * DRAFTS + accepted + sequences

    # ------------------------------------------------------------------------------- what is right

    @functools.cached_property
    def expected(self) -> Counts:
        """The distribution of each of `counts`."""
        overlap = torch.minimum(self.p[:DRAFTS], self.q)
        alpha = overlap.sum(1)
        length = [1 - alpha[0], alpha[0] * (1 - alpha[1]), alpha[0] * alpha[1]]
        return {
            "drafted": self.q[0],
            "first": self.p[0],
            # An accepted first token is min(p, q); the second is p whatever the first was.
            "pairs": torch.outer(
                self.grouped(overlap[0] / alpha[0]), self.grouped(self.p[1])
            ).flatten(),
            "length": torch.stack(length),
        }

    @staticmethod
    def grouped(probs: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(probs, (0, -len(probs) % GROUPS))
        return padded.view(-1, GROUPS).sum(0)

    def new_counts(self) -> Counts:
        return {
            name: torch.zeros(len(probs), dtype=torch.int64)
            for name, probs in self.expected.items()
        }


CASES = [
    Case("same vocabulary, draft = -target", "identity", 50, copies=-1.0),
    Case("same vocabulary, T 0.7", "identity", 50, 0.7, 0.7),
    Case("pruned, dynamic tokens", "intersection", 60, dynamic=8),
    Case("first-order", "first-order", 300),
    Case("virtual tokens, T 0.7", "virtual", 300, 0.7, 0.7),
    Case("virtual and dynamic tokens", "virtual", 700, dynamic=20),
    Case("sparse rows and two priors", "mixed-2", 1500, 1.0, 0.7, dynamic=5),
    Case("virtual tokens, 5,000 ids", "virtual", 5000, 0.7, 1.0),
    Case("one-hot drafts", "identity", 50, 1.0, 0.0, copies=1.0),
]
CONTROLS = [
    Case("a coin for two positions", "identity", 50, wrong="shared coin"),
    Case("verified at 1.05 T", "virtual", 300, wrong="another temperature"),
]
