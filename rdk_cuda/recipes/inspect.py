"""`inspect`: what an affinity does, in words."""

from __future__ import annotations

from pathlib import Path

import torch

from .. import Affinity, AffinityError, Vocabulary
from ..drafter import SavedDrafterError
from .errors import InputError

UNKNOWN = (
    "An affinity does not say which drafter tokens are kept tokens: here those with one entry are "
    "taken for them."
)


def run_inspection(path: Path) -> int:
    """Read the files and print; returns the exit code."""
    try:
        affinity, vocabulary, note = read(path)
    except (AffinityError, SavedDrafterError) as error:
        raise InputError(getattr(error, "reason", str(error))) from error
    rows = summary(affinity, vocabulary)
    width = max(len(name) for name in rows)
    print(path)
    print("\n".join(f"{name:<{width}}  {figure:>10}" for name, figure in rows.items()))
    if note:
        print(f"\n{note}")
    return 0


def read(path: Path) -> tuple[Affinity, Vocabulary | None, str]:
    """Read an affinity, which tokens its drafter kept, if that is known, and what else to say."""
    if not path.is_dir():
        return Affinity.load(path), None, UNKNOWN
    # Transformers takes seconds to import, and an affinity alone needs none of it.
    from ..integrations.huggingface.saved_drafter import load_pruned
    from ..integrations.huggingface.text_drafter import is_text_drafter, load_affinity
    from .stages.tokenizers import COMMON, in_words

    if not is_text_drafter(path):
        drafter, _ = load_pruned(path)
        return drafter.affinity, drafter.vocabulary, ""
    affinity, settings = load_affinity(path)
    said = settings.get("common")
    shares = said if isinstance(said, dict) else {}
    known = all(isinstance(shares.get(name), float) for name in COMMON)
    return affinity, None, in_words(shares) if known else ""


def summary(affinity: Affinity, vocabulary: Vocabulary | None) -> dict[str, str]:
    """Sizes, and how many target tokens are drafted which way at best.

    Args:
        affinity: on the CPU.
        vocabulary: the drafter's kept tokens, which come before its virtual ones. None if unknown:
            a row with one entry then counts as the row of a kept token.
    """
    entries, targets = affinity.row_offsets.long().diff(), affinity.row_targets.long()
    own = torch.full((affinity.draft_size,), -1, dtype=torch.int64, device="cpu")
    if vocabulary is not None:
        own[: vocabulary.draft_size] = vocabulary.draft_ids
    else:
        single = entries == 1
        own[single] = targets[affinity.row_offsets[:-1][single].long()]
    rows = torch.arange(affinity.draft_size, device="cpu").repeat_interleave(entries)
    of_own, shared = torch.zeros(2, affinity.target_size, dtype=torch.bool, device="cpu")
    of_own[targets[own[rows] == targets]] = True
    shared[targets] = True
    by_prior = (affinity.prior[(affinity.spread > 0).any(0)] > 0).any(0)
    masked = affinity.bias == -torch.inf
    figures = {
        "drafter tokens (V_d)": affinity.draft_size,
        "  with a target token of their own": (~masked & (own >= 0)).sum(),
        "  virtual, without one": (~masked & (own < 0)).sum(),
        "  masked, never drafting": masked.sum(),
        "target tokens (V_t)": affinity.target_size,
        "  drafted by a drafter token of their own": of_own.sum(),
        "  drafted by a drafter token that they share": (shared & ~of_own).sum(),
        "  drafted by priors alone": (by_prior & ~shared).sum(),
        "  never drafted": (~(shared | by_prior)).sum(),
        "entries of S": affinity.nnz,
        "priors (rank R)": affinity.rank,
    }
    memory = sum(value.nbytes for value in vars(affinity).values() if torch.is_tensor(value))
    return {name: str(int(count)) for name, count in figures.items()} | {
        "memory": f"{memory / 1e6:.3g} MB"
    }
