"""`inspect`: its option, and what it hands over."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..recipes.errors import InputError
from .arguments import add_command, refuse_missing

INSPECT = """\
Says what an affinity does: its sizes, and how its drafter tokens reach the target's. Reads an
affinity file, or the directory of a calibrated drafter, which also says which tokens were kept."""


def add_inspect(commands: Any) -> None:
    parser = add_command(commands, inspect, "what an affinity does, in words", INSPECT)
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="an affinity file or a calibrated drafter"
    )


def inspect(arguments: argparse.Namespace) -> int:
    """Read the files and print; returns the exit code."""
    path: Path = arguments.file
    if not path.exists():
        raise InputError(f"{path}: no such file; needs an affinity file or a calibrated drafter")
    refuse_missing(("transformers",) if path.is_dir() else ())
    from ..recipes.inspect import run_inspection

    return run_inspection(path)
