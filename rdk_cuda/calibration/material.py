"""What methods are built from and what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..affinity import Affinity
from ..successors import SuccessorCounts
from ..vocabulary import Vocabulary
from .drafter import FullHead, PrunedDrafter
from .recording import Recording

__all__ = [
    "COVARIANCE",
    "DYNAMIC",
    "FIRST_ORDER",
    "FULL",
    "LOW_RANK",
    "PRUNED",
    "RECOMMENDED",
    "SECOND_MOMENT",
    "VIRTUAL",
    "Material",
    "Method",
    "Options",
    "successor_counts",
]

FULL, PRUNED = "full drafter", "pruned drafter"
FIRST_ORDER, SECOND_MOMENT, COVARIANCE = "first-order RDK", "RDK, E[p pᵀ]", "RDK, covariance"
LOW_RANK = "low-rank head"
DYNAMIC, VIRTUAL = "dynamic tokens", "virtual tokens"
RECOMMENDED = "virtual+dynamic"

_SUCCESSOR_TARGETS = 256  # likeliest next tokens of a sample that count as successors


@dataclass(frozen=True)
class Options:
    """How large drafters may be, and how much is looked at to build them.

    Attributes:
        virtual: K, virtual tokens at most.
        dynamic: C, dynamic columns of a row at most.
        recent: how many of them tokens of the context have for their own.
        window: from how many of the last tokens of the context they are taken.
        entries: of a row of similarities.
        samples: how many are looked at where a method compares candidates.
        seed: of the clusters.

    Raises:
        ValueError: a size below 1.
    """

    virtual: int = 64
    dynamic: int = 128
    recent: int = 32
    window: int = 256
    entries: int = 128
    samples: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("virtual", "dynamic", "recent", "window", "entries", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"Options: {name} is {getattr(self, name)}; needs at least 1")


@dataclass(frozen=True, eq=False)
class Material:
    """What all prunings of a drafter are built from.

    Attributes:
        recording: of target and drafter on the calibration text.
        full_head: the drafter's own, `[V_t, d]` and `[V_t]` or None.
        counts: which token follows which, or None: no successors among the dynamic tokens.
    """

    recording: Recording
    full_head: FullHead
    counts: SuccessorCounts | None = None


@dataclass(frozen=True, eq=False)
class Method:
    """A drafter and how it came about.

    Attributes:
        name: one of `METHODS`, or FULL.
        keep: the share of the vocabulary that its head keeps.
        tuned: what was chosen on the calibration text, in words; empty where nothing is.
        rank: of a low-rank head, whose `drafter` has the matrix that it makes.
    """

    name: str
    keep: float
    drafter: PrunedDrafter
    tuned: str = ""
    rank: int | None = None

    def __str__(self) -> str:
        """For example `virtual tokens at 25 %`."""
        return f"{self.name} at {100 * self.keep:.4g} %"

    @classmethod
    def full(cls, full_head: FullHead) -> Method:
        """The drafter as it is."""
        everything = Vocabulary.identity(full_head[0].shape[0])
        drafter = PrunedDrafter(everything, Affinity.intersection(everything), *full_head)
        return cls(FULL, 1.0, drafter)


def successor_counts(
    documents: Iterable[Sequence[int]], recording: Recording, max_pairs: int = 1 << 23
) -> SuccessorCounts:
    """Which token follows which: in a text, and by the target's probabilities on the samples.

    Args:
        documents: token ids; as much text as there is, since no model reads it here.
        max_pairs: as `SuccessorCounts`.
    """
    counts = SuccessorCounts(recording.counts.numel(), max_pairs)
    for document in documents:
        counts.add(document)
    samples = recording.samples
    after_something = samples.contexts[:, -1] >= 0
    some = samples.select(after_something)
    if len(some):
        probs = some.target_probs(samples.temperatures[0])[:, :_SUCCESSOR_TARGETS]
        targets = some.targets[:, :_SUCCESSOR_TARGETS]
        counts.add_probs(some.contexts[:, -1], targets, probs)
    return counts
