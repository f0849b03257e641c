"""`python -m rdk_cuda inspect`: what an affinity does, in words."""

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdk_cuda import Affinity, AffinityError, Vocabulary

from ..calibration.drafter import SavedDrafterError
from .arguments import refuse_missing
from .errors import InputError

if TYPE_CHECKING:
    from .affinity_report import TokenNames

DESCRIPTION = """\
Says what an affinity does: how its drafter tokens spread over the target's and, for a token,
whether it is kept, where its mass goes, and which virtual token or prior drafts it. Reads an
affinity file, or the directory of a calibrated drafter, which also has the tokenizer."""


def add_command(commands: Any) -> None:
    """Add `inspect` to the subparsers of `python -m rdk_cuda`."""
    parser = commands.add_parser(
        "inspect", help="what an affinity does to a token, in words", description=DESCRIPTION
    )
    parser.set_defaults(run=run, prog=parser.prog)
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="an affinity file or a calibrated drafter"
    )
    parser.add_argument(
        "--token",
        action="append",
        default=[],
        metavar="ID_OR_TEXT",
        help="a target id, a token as the tokenizer names it, or text; may be repeated",
    )
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="for the text of tokens")


def run(arguments: argparse.Namespace) -> int:
    """Read the files, find the tokens, print; returns the exit code."""
    path: Path = arguments.file
    if not path.exists():
        raise InputError(f"{path}: no such file; needs an affinity file or a calibrated drafter")
    directory = arguments.tokenizer or (path / "drafter" if path.is_dir() else None)
    refuse_missing(("rich",) if directory is None else ("rich", "tokenizers", "transformers"))
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from . import affinity_report

    affinity, vocabulary = read(path)

    names = affinity_report.TokenNames(load_tokenizer(directory, affinity.target_size))
    asked = [(given, ids_of(given, names, affinity.target_size)) for given in arguments.token]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # tokens have characters that terminals lack
    affinity_report.show(str(path), affinity, vocabulary, names, asked)
    return 0


def read(path: Path) -> tuple[Affinity, Vocabulary | None]:
    """The affinity and, in a calibrated drafter's directory, the kept tokens."""
    if not path.is_dir():
        try:
            return Affinity.load(path), None
        except AffinityError as error:
            raise InputError(str(error)) from error
    from rdk_cuda.integrations.huggingface.saved_drafter import load_pruned

    try:
        drafter, _ = load_pruned(path)
    except SavedDrafterError as error:
        raise InputError(error.reason) from error
    return drafter.affinity, drafter.vocabulary


def load_tokenizer(directory: Path | None, target_size: int) -> Any:
    """The tokenizer, if there is a directory for one and it fits the target."""
    if directory is None:
        return None
    from .models import load_tokenizer as load

    tokenizer = load("--tokenizer", directory)
    largest = max(tokenizer.get_vocab().values())
    if largest >= target_size:
        raise InputError(
            f"--tokenizer {directory}: has a token {largest}, the affinity {target_size} target "
            "tokens; needs the target's own tokenizer"
        )
    return tokenizer


def ids_of(given: str, names: "TokenNames", target_size: int) -> Sequence[int]:
    """The target ids that an argument of `--token` stands for."""
    if re.fullmatch("-?[0-9]+", given):
        token = int(given)
        if not 0 <= token < target_size:
            raise InputError(f"--token {given}: target ids are 0 to {target_size - 1}")
        return [token]
    if not names.known:
        raise InputError(f"--token {given!r}: is text; needs --tokenizer DIR, or a target id")
    ids = names.encode(given)
    if not ids:
        raise InputError(f"--token {given!r}: is no token")
    return ids
