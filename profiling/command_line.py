"""What to type for the same rows again."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection


def command_line(
    program: str,
    arguments: argparse.Namespace,
    defaults: argparse.Namespace,
    *,
    always: Collection[str] = ("device",),
    never: Collection[str] = ("output", "csv"),
) -> str:
    """The program with its options: no paths, and none at their defaults.

    Example:
        >>> given = argparse.Namespace(device="cpu", draft_length=5, peers=["eager"], output="x")
        >>> usual = argparse.Namespace(device="cpu", draft_length=4, peers=None, output=None)
        >>> command_line("python -m profiling.compare", given, usual)
        'python -m profiling.compare --device cpu --draft-length 5 --peers eager'
    """
    words = program.split()
    for name, value in vars(arguments).items():
        if name in never or (name not in always and value == getattr(defaults, name)):
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words += [
                str(each) for each in (value if isinstance(value, (list, tuple)) else [value])
            ]
    return shlex.join(words)
