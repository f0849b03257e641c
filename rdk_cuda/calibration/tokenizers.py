"""An affinity between two tokenizers from text, next to the rules for it (DESIGN section 2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..affinity import Affinity
from ..drafter import FullHead, PrunedDrafter
from ..vocabulary import Vocabulary
from ..vocabulary.text_tokens import TextTokens
from .methods import Method

INTERSECTION, PREFIX, COUNTS = "TLI", "between, by prefix", "between, from counts"
LEVEL = (INTERSECTION, PREFIX, COUNTS)
"""The methods on the level of tokens."""

Counts = Mapping[int, Mapping[int, int]]
"""Of each of the drafter's tokens, how often each of the target's is at the same place."""


@dataclass(frozen=True)
class SharedText:
    """Which tokens both tokenizers put at the same places of some text.

    Attributes:
        counts: where both begin a token.
        places: of each target token, where the drafter's tokens may begin one or not.
        shared: those of them where it does.
    """

    counts: Counts
    places: int
    shared: int


def shared_text(
    documents: Iterable[Sequence[int]], drafter: TextTokens, target: TextTokens
) -> SharedText:
    """Counts of a text that no model has to read.

    Args:
        documents: token ids of the target; special ones spell nothing.
    """
    counts: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    places = shared = 0
    for document in documents:
        spelled = [(id, target.spellings[id]) for id in document if id < len(target.spellings)]
        ordinary = [(id, drafter.readable(each)) for id, each in spelled if isinstance(each, bytes)]
        own = drafter.encode(b"".join(text for _, text in ordinary))
        ends = accumulate(len(drafter.spellings[id] or b"") for id in own)
        begun = dict(zip([0, *ends], own, strict=False))
        at = 0
        for id, text in ordinary:
            places += 1
            if text and at in begun:
                shared += 1
                counts[begun[at]][id] += 1
            at += len(text)
    return SharedText(counts, places, shared)


def counted_affinity(by_rule: Affinity, counts: Counts) -> Affinity:
    """A drafter token's row is what the target has where it is; the rule's row counts as one more.

    Args:
        by_rule: `Affinity.between`, on the CPU.
    """
    offsets, targets = by_rule.row_offsets.tolist(), by_rule.row_targets.tolist()
    rows: list[dict[int, float]] = []
    for draft_id in range(by_rule.draft_size):
        row = dict.fromkeys(targets[offsets[draft_id] : offsets[draft_id + 1]], 1.0)
        if row:
            for token, count in counts.get(draft_id, {}).items():
                row[token] = row.get(token, 0.0) + count
        total = sum(row.values())
        rows.append({token: count / total for token, count in row.items()})
    return Affinity.from_rows(rows, target_size=by_rule.target_size, bias=by_rule.bias)


def token_level_methods(
    full_head: FullHead,
    vocabulary: Vocabulary,
    by_rule: Affinity,
    affinity: Affinity,
    name: str = COUNTS,
) -> list[Method]:
    """TLI, the prefix rule, and the affinity of this name, all with the drafter's whole head."""
    affinities = {INTERSECTION: Affinity.intersection(vocabulary), PREFIX: by_rule, name: affinity}
    return [
        Method(each, 1.0, PrunedDrafter(vocabulary, affinity, *full_head))
        for each, affinity in affinities.items()
    ]


COMMON = ("drafter_vocabulary", "target_vocabulary", "target_mass", "text")
"""Shares: of either vocabulary in both, of the target's mean probability on these tokens, and of
the places in the text where the target begins a token and the drafter, too."""


def in_words(common: Mapping[str, float]) -> str:
    """The shares `COMMON`."""
    drafter, target, mass, text = (common[name] for name in COMMON)
    return (
        f"The tokenizers differ. By their bytes, {drafter:.1%} of the drafter's tokens and "
        f"{target:.1%} of the target's are in both vocabularies; these have {mass:.1%} of the "
        f"target's mean probability. Where the target begins a token, the drafter does, too, at "
        f"{text:.1%} of the places."
    )
