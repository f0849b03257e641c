"""What the commands of this folder share: devices they refuse, what to type again, pages."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Collection
from pathlib import Path

import torch

import rdk_cuda
from rdk_cuda.calibration.timing import others_at_work
from rdk_cuda.commands.errors import InputError
from rdk_cuda.commands.files import write_whole

from .results import Row


def refuse_device(arguments: argparse.Namespace) -> None:
    """A GPU that is not there or not built for, and threads where they mean nothing.

    Raises:
        InputError: one sentence.
    """
    if arguments.device == "cpu":
        return
    if arguments.threads:
        raise InputError("--threads is for --device cpu; leave it out")
    if not torch.cuda.is_available():
        raise InputError(f"--device cuda: torch {torch.__version__} sees no GPU; use --device cpu")
    build = rdk_cuda.build_info()
    if build["cuda"] is None:
        raise InputError(f"--device cuda: no CUDA operators were built ({build['cuda_reason']})")


def command_line(
    program: str,
    arguments: argparse.Namespace,
    defaults: argparse.Namespace,
    *,
    always: Collection[str] = ("device",),
    never: Collection[str] = ("output",),
) -> str:
    """The program with its options: no paths, and none at their defaults.

    Example:
        >>> given = argparse.Namespace(device="cpu", draft_length=5, peers=["eager"], output="x")
        >>> usual = argparse.Namespace(device="cpu", draft_length=4, peers=None, output=None)
        >>> command_line("python -m profiling.peers", given, usual)
        'python -m profiling.peers --device cpu --draft-length 5 --peers eager'
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


def write_page(text: str, output: Path) -> None:
    """Markdown beside a JSON file, whole or not at all."""
    page = output.with_suffix(".md")
    write_whole(page, lambda beside: beside.write_text(text, encoding="utf-8"))


def origin(row: Row) -> str:
    """Where, when and how a row was measured, for a page."""
    where = f"{row['device_name']}, torch {row['torch']}"
    if row["device"] == "cpu":
        where += f", threads: {row['threads']}, {row['capability']}"
    else:
        where += f", CUDA {row['cuda']}, driver {row['driver']}"
    commit = "unknown" if row["commit"] is None else row["commit"][:12]
    changed = ", with changes" if row["dirty"] else ""
    return f"{where}; {row['date']}, commit {commit}{changed}. `{row['command']}`"


def disturbance(row: Row, load: float) -> list[str]:
    """A paragraph that warns of a busy machine; nothing where it was not."""
    warning = others_at_work(load, row["threads"])
    return [] if warning is None else ["", warning]


class Progress:
    """A line on standard error: rewritten on a terminal, one for each step elsewhere."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def show(self, text: str) -> None:
        """What is being done now."""
        line = f"{time.monotonic() - self.start:5.0f} s  {text}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Something to keep."""
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the terminal's line empty."""
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def one_line(error: Exception) -> str:
    """An error's kind and the first line of what it says."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
