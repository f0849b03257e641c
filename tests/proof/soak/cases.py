"""What the soak draws from: two drafted positions and a bonus, the same for every sequence.

Each case is a target, a drafter and an affinity whose distributions are known exactly; the controls
are the same steps done wrong.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from tests import generators
from tests.proof.statistics.chi_square import histogram
from tests.proof.statistics.position import Position

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
    def position(self) -> Position:
        """A batch of sequences."""
        made = Position.random(
            generators.affinity(self.kind, self.size),
            drafts=DRAFTS,
            scale=1.2,
            dynamic=self.dynamic,
            target_temperature=self.target_temperature,
            draft_temperature=self.draft_temperature,
            sequences=min(8192, VALUES_A_BATCH // ((DRAFTS + 1) * self.size)),
        )
        if self.copies:
            made.drafter = self.copies * made.target[:DRAFTS]
        return made

    def batch(self, seed: int, first: int) -> Counts:
        """Counts of what the sequences number ``first`` and following drew."""
        position = self.position
        users = torch.arange(first, first + position.sequences)
        position.positions = users % 997
        position.step_keys = torch.ops.rdk.step_keys(users + seed * 2**40, position.positions)
        drafted = position.draft()
        if self.wrong == "shared coin":
            return self.counts(drafted, *self.verify_each(drafted))
        hot = 1.05 if self.wrong == "another temperature" else 1.0
        return self.counts(drafted, *position.verify(drafted, hot=hot))

    def verify_each(self, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """Wrong: each position is a step of its own, and both have the random words of one."""
        outputs, accepted = [], []
        for j in range(DRAFTS):
            target, drafter = self.position.target[[j, j]], self.position.drafter[[j]]
            one = dataclasses.replace(self.position, target=target, drafter=drafter)
            one.step_keys, one.positions = self.position.step_keys, self.position.positions
            tokens, taken = one.verify(drafted[:, j].contiguous())
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
        p, q = self.position.p, self.position.q()
        overlap = torch.minimum(p[:DRAFTS], q)
        alpha = overlap.sum(1)
        length = [1 - alpha[0], alpha[0] * (1 - alpha[1]), alpha[0] * alpha[1]]
        return {
            "drafted": q[0],
            "first": p[0],
            # An accepted first token is min(p, q); the second is p whatever the first was.
            "pairs": torch.outer(self.grouped(overlap[0] / alpha[0]), self.grouped(p[1])).flatten(),
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
