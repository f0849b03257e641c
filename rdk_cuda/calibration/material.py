"""What methods are built from, and how large they may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..drafter import FullHead
from ..dynamic_tokens import SuccessorCounts
from .recording import Recording

__all__ = ["Material", "Options", "successor_counts"]

_SUCCESSOR_TARGETS = 256  # likeliest next tokens of a sample that count as successors


@dataclass(frozen=True)
class Options:
    """How large drafters may be, and how much is looked at to build them.

    Attributes:
        virtual: K, the most virtual tokens.
        dynamic: C, the most dynamic columns of a row; 0 for none at all, and then for no screen.
        recent: how many of those columns are reserved for tokens of the context.
        window: how many of the last tokens of the context these are taken from.
        bonuses: what may be added to the logits of recent dynamic tokens, if the samples say that
            it helps: `BONUSES` for lifted rows, nothing for a head that was trained with them.
        entries: the most entries in a row of similarities.
        samples: how many samples candidates are compared on.
        screen: the share of the bytes of the pruned rows that a screen may read, the rows of the
            tokens that it offers included; 0 for no screen (`screens_within`).
        batch: for how many positions at once it is read.
        seed: of the clusters.

    Raises:
        ValueError: a size below 1, or below 0 where that is allowed.
    """

    virtual: int = 64
    dynamic: int = 128
    recent: int = 32
    window: int = 256
    bonuses: tuple[float, ...] = ()
    entries: int = 128
    samples: int = 2048
    screen: float = 0.0
    batch: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("virtual", "recent", "window", "entries", "samples", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"Options: {name} is {getattr(self, name)}; needs at least 1")
        if self.dynamic < 0:
            raise ValueError(f"Options: dynamic is {self.dynamic}; needs at least 0")
        if not 0 <= self.screen <= 1:
            raise ValueError(f"Options: screen is {self.screen}; needs a share from 0 to 1")
        if self.screen and not self.dynamic:
            raise ValueError(
                f"Options: screen is {self.screen} and dynamic is 0; needs screen 0, since what it "
                "offers are dynamic tokens"
            )


@dataclass(frozen=True, eq=False)
class Material:
    """What all prunings of a drafter are built from.

    Attributes:
        recording: of target and drafter on the calibration text.
        full_head: the drafter's own, `[V_t, d]` and `[V_t]` or None.
        counts: which token follows which. None: dynamic tokens include no successors.
    """

    recording: Recording
    full_head: FullHead
    counts: SuccessorCounts | None = None


def successor_counts(
    documents: Iterable[Sequence[int]], recording: Recording, max_pairs: int = 1 << 23
) -> SuccessorCounts:
    """Which token follows which: in a text, and by the target's probabilities on the samples.

    Args:
        documents: token ids. Give all the text there is, since no model reads it here.
        max_pairs: as `SuccessorCounts`.
    """
    counts = SuccessorCounts(recording.counts.numel(), max_pairs)
    for document in documents:
        counts.add(document)
    samples = recording.samples
    samples = samples.select(samples.contexts[:, -1] >= 0)
    if len(samples):
        probs = samples.target_probs(samples.temperatures[0])[:, :_SUCCESSOR_TARGETS]
        targets = samples.targets[:, :_SUCCESSOR_TARGETS]
        counts.add_probs(samples.contexts[:, -1], targets, probs)
    return counts
