"""What the commands of this folder share: how they begin, refuse, show progress and end."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import torch

import rdk_cuda
from rdk_cuda.cli.errors import InputError
from rdk_cuda.cli.program import INTERRUPTED, Parser
from rdk_cuda.evaluation import EvaluationError
from rdk_cuda.evaluation.timing import others_at_work
from rdk_cuda.files import write_whole

from .results import Results, Row

__all__ = [
    "INTERRUPTED",
    "Parser",
    "Progress",
    "busy",
    "command_line",
    "measured",
    "one_line",
    "origin",
    "refuse_device",
    "run_command",
    "write_text",
]


def run_command(
    command: Parser,
    run: Callable[[argparse.Namespace], int | None],
    arguments: Sequence[str] | None,
    interrupted: str = "nothing was written",
) -> int:
    """Parse and run; returns the exit code.

    Args:
        run: returns an exit code, or None for 0; an InputError ends it with one line.
        interrupted: what Ctrl-C means for results.
    """
    options = command.parse_args(arguments)
    try:
        return run(options) or 0
    except (EvaluationError, InputError) as error:
        print(f"{command.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"Interrupted: {interrupted}.", file=sys.stderr)
        return INTERRUPTED


def measured(results: Results, measure: Callable[[Progress], int], show: Callable[[], None]) -> int:
    """Measure rows that go to a file one by one, then show them, also after Ctrl-C.

    Args:
        measure: appends to the results; returns an exit code.
    """
    progress = Progress()
    try:
        code = measure(progress)
    except KeyboardInterrupt:
        results.write()  # it may have come between a row and its file
        code = INTERRUPTED
    progress.clear()
    show()
    if code == INTERRUPTED:
        kept = f" in {results.path}" if results.path else ""
        print(f"Interrupted: {len(results.new_rows)} rows kept{kept}.", file=sys.stderr)
    return code


def refuse_device(arguments: argparse.Namespace) -> None:
    """A GPU that is not there or not built for, and threads where they mean nothing.

    Raises:
        InputError: one sentence.
    """
    if arguments.device == "cpu":
        return
    if getattr(arguments, "threads", None):
        raise InputError("--threads is for --device cpu; leave it out")
    if not torch.cuda.is_available():
        raise InputError(f"--device cuda: torch {torch.__version__} sees no GPU; use --device cpu")
    build = rdk_cuda.build_info()
    if build["cuda"] is None:
        raise InputError(f"--device cuda: no CUDA operators were built ({build['cuda_reason']})")


def command_line(
    command: Parser,
    arguments: argparse.Namespace,
    *,
    always: Collection[str] = ("device",),
    never: Collection[str] = ("output",),
) -> str:
    """The program with its options: no paths, and none at their defaults.

    Example:
        >>> command = Parser(prog="python -m profiling.peers")
        >>> for name in ("--device", "--output", "--peers"):
        ...     _ = command.add_argument(name)
        >>> given = command.parse_args(["--device", "cpu", "--output", "x", "--peers", "eager"])
        >>> command_line(command, given)
        'python -m profiling.peers --device cpu --peers eager'
    """
    words = command.prog.split()
    for name, value in vars(arguments).items():
        if name in never or (name not in always and value == command.get_default(name)):
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words += [str(each) for each in (value if isinstance(value, list | tuple) else [value])]
    return shlex.join(words)


def write_text(text: str, path: Path) -> None:
    """A file, whole or not at all."""
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def origin(row: Row) -> str:
    """Where, when and how a row was measured."""
    where = f"{row['device_name']}, torch {row['torch']}"
    if row["device"] == "cpu":
        where += f", threads: {row['threads']}, {row['capability']}"
    else:
        where += f", CUDA {row['cuda']}, driver {row['driver']}"
    commit = "unknown" if row["commit"] is None else row["commit"][:12]
    changed = ", with changes" if row["dirty"] else ""
    return f"{where}; {row['date']}, commit {commit}{changed}. `{row['command']}`"


def busy(rows: Iterable[Row]) -> list[str]:
    """A sentence that warns of a busy machine; nothing where it was not."""
    load, threads = max((row["load"], row["threads"]) for row in rows)
    warning = others_at_work(load, threads)
    return [] if warning is None else [warning]


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
