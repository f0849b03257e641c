"""What the commands of this folder share: how they begin, refuse, measure and end."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import rdk_cuda
from rdk_cuda.cli.arguments import INTERRUPTED, Parser, answered, natural
from rdk_cuda.evaluation import EvaluationError
from rdk_cuda.files import write_json, write_whole
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.timing import others_at_work

from .machine import describe, now
from .results import Results, Row

__all__ = [
    "Parser",
    "Progress",
    "add_measuring",
    "busy",
    "measure_rows",
    "one_line",
    "page_of",
    "refuse_device",
    "run_columns",
    "run_command",
    "write_found",
    "write_text",
]


def run_command(
    command: Parser,
    run: Callable[[argparse.Namespace], int | None],
    arguments: Sequence[str] | None,
) -> int:
    """Parse and run; returns the exit code.

    Args:
        run: returns an exit code, or None for 0. Bad input ends it with one line. The folder of
            its `--output` is there: without it, hours of measuring would be lost at their end.
    """
    options = command.parse_args(arguments)

    def run_or_refuse() -> int:
        make_folder_of(getattr(options, "output", None))
        try:
            return run(options) or 0
        except EvaluationError as error:
            raise InputError(str(error)) from error

    return answered(command.prog, run_or_refuse)


def make_folder_of(output: Path | None) -> None:
    """Refuses a place where no folder can be."""
    if output is None:
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: {error.strerror}; needs a file to write to") from None


def add_measuring(command: Parser, output: str) -> None:
    """The options of `measure_rows`; `output` says what its JSON file is."""
    add = command.add_argument
    add("--device", choices=("cpu", "cuda"), required=True)
    add("--threads", type=natural, metavar="N", help="on the CPU (torch's own number)")
    add("--output", type=Path, metavar="FILE", help=output)


def measure_rows(
    arguments: argparse.Namespace,
    program: str,
    rows: Callable[[Progress], Iterator[Row]],
    page: Callable[[Sequence[Row]], str],
) -> int:
    """Measure rows, print them as a page, and write the whole file's page next to it.

    Each row is on disk as soon as it is there, and Ctrl-C keeps the finished ones.

    Args:
        program: what kind of file it is, for `Results`.
        rows: measures them one after the other; reports failures to its argument.

    Returns:
        The exit code: 1 if something failed.
    """
    refuse_device(arguments)
    results = Results(arguments.output, program)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    progress, interrupted = Progress(), False
    try:
        for row in rows(progress):
            results.append(row)
    except KeyboardInterrupt:
        interrupted = True
        results.write()  # it may have come between a row and its file
    progress.clear()
    if results.new_rows:
        print(page(results.new_rows))
        if results.path:
            write_text(f"{page(results.rows)}\n", results.path.with_suffix(".md"))
    if interrupted:
        kept = f" in {results.path}" if results.path else ""
        print(f"Interrupted: {len(results.new_rows)} rows kept{kept}.", file=sys.stderr)
        return INTERRUPTED
    return int(progress.failed)


def refuse_device(arguments: argparse.Namespace) -> None:
    """Refuse a GPU that is missing or was not built for, and --threads on a GPU.

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


def run_columns(command: Parser, arguments: argparse.Namespace) -> Row:
    """The columns that all rows of a run have in common."""
    typed = command_line(command, arguments)
    return {"run": now(), "command": typed, **describe(torch.device(arguments.device))}


def command_line(command: Parser, arguments: argparse.Namespace) -> str:
    """The program with its options, but those at their defaults; places of files are not told.

    Example:
        >>> command = Parser(prog="python -m profiling.peers")
        >>> for name, kind in (("--device", str), ("--output", Path), ("--models", Path)):
        ...     _ = command.add_argument(name, type=kind)
        >>> given = command.parse_args(["--device", "cpu", "--output", "x", "--models", "y"])
        >>> command_line(command, given)
        'python -m profiling.peers --device cpu --models PATH'
    """
    words = command.prog.split()
    for name, value in vars(arguments).items():
        if name != "output" and value != command.get_default(name):
            words.append("--" + name.replace("_", "-"))
            every = value if isinstance(value, list) else [value]
            words += ["PATH" if isinstance(each, Path) else str(each) for each in every]
    return shlex.join(words)


def write_found(output: Path | None, page: str | None = None, /, **found: Any) -> None:
    """Write what a run on the CPU found, and where and when, as JSON; next to it its page.

    Nothing if `output` is None.
    """
    if output is None:
        return
    write_json({"run": now(), **describe(torch.device("cpu")), **found}, output)
    if page is not None:
        write_text(f"{page}\n", output.with_suffix(".md"))


def write_text(text: str, path: Path) -> None:
    """Write a file, whole or not at all."""
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def page_of(
    title: str,
    preamble: Callable[[Row], str],
    key: str,
    section: Callable[[Sequence[Row]], list[str]],
    rows: Sequence[Row],
) -> str:
    """Rows as Markdown: for each run where and how it was measured, then its sections.

    Args:
        preamble: of a row, what is said of its run.
        key: the column whose values have a section each.
        section: the blocks of one.
    """
    blocks = [f"# {title}"]
    for run in dict.fromkeys(row["run"] for row in rows):
        own = [row for row in rows if row["run"] == run]
        blocks += [origin(own[-1]), preamble(own[-1]), *busy(own)]
        for value in dict.fromkeys(row[key] for row in own):
            blocks += section([row for row in own if row[key] == value])
    return "\n\n".join(blocks)


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
    """A line on standard error: rewritten on a terminal, one for each step elsewhere.

    Attributes:
        failed: whether anything did.
    """

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.failed = False

    def show(self, text: str) -> None:
        """Show what is being done now."""
        line = f"{time.monotonic() - self.start:5.0f} s  {text}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def fail(self, what: str, error: Exception) -> None:
        """Something was not measured; the rest goes on."""
        self.clear()
        self.failed = True
        print(f"failed: {what}: {one_line(error)}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the terminal's line empty."""
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def one_line(error: Exception) -> str:
    """An error's kind and the first line of what it says."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
