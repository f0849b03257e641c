"""`python -m rdk_cuda inspect`: what an affinity does, in words.

Nothing heavy is imported before its command line is read.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import refuse_missing
from .errors import InputError

if TYPE_CHECKING:
    from rdk_cuda import Affinity, Vocabulary

DESCRIPTION = """\
Says what an affinity does: its sizes, and how its drafter tokens reach the target's. Reads an
affinity file, or the directory of a calibrated drafter, which also says which tokens were kept."""


def add_command(commands: Any) -> None:
    """Add `inspect` to the subparsers of `python -m rdk_cuda`."""
    parser = commands.add_parser(
        "inspect", help="what an affinity does, in words", description=DESCRIPTION
    )
    parser.set_defaults(run=run, prog=parser.prog)
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="an affinity file or a calibrated drafter"
    )


def run(arguments: argparse.Namespace) -> int:
    """Read the files and print; returns the exit code."""
    path: Path = arguments.file
    if not path.exists():
        raise InputError(f"{path}: no such file; needs an affinity file or a calibrated drafter")
    refuse_missing(("transformers",) if path.is_dir() else ())
    affinity, vocabulary = read(path)
    rows = summary(affinity, vocabulary)
    width = max(len(name) for name in rows)
    print(path)
    print("\n".join(f"{name:<{width}}  {figure:>10}" for name, figure in rows.items()))
    if vocabulary is None:
        print(
            "\nAn affinity does not say which drafter tokens are kept tokens: here those with one "
            "entry are taken for them."
        )
    return 0


def read(path: Path) -> tuple[Affinity, Vocabulary | None]:
    """The affinity and, in a calibrated drafter's directory, the kept tokens."""
    from rdk_cuda import Affinity, AffinityError

    if not path.is_dir():
        try:
            return Affinity.load(path), None
        except AffinityError as error:
            raise InputError(str(error)) from error
    from rdk_cuda.integrations.huggingface.saved_drafter import SavedDrafterError, load_pruned

    try:
        drafter, _ = load_pruned(path)
    except SavedDrafterError as error:
        raise InputError(error.reason) from error
    return drafter.affinity, drafter.vocabulary


def summary(affinity: Affinity, vocabulary: Vocabulary | None) -> dict[str, str]:
    """Sizes, and how many target tokens are drafted which way at best.

    Args:
        affinity: on the CPU.
        vocabulary: the drafter's kept tokens, which come before its virtual ones. None if unknown:
            a row with one entry then counts as the row of a kept token.
    """
    import torch

    entries, targets = affinity.row_offsets.long().diff(), affinity.row_targets.long()
    own = torch.full((affinity.draft_size,), -1)
    if vocabulary is not None:
        own[: vocabulary.draft_size] = vocabulary.draft_ids
    else:
        single = entries == 1
        own[single] = targets[affinity.row_offsets[:-1][single].long()]
    rows = torch.arange(affinity.draft_size).repeat_interleave(entries)
    of_own, shared = torch.zeros(2, affinity.target_size, dtype=torch.bool)
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
