"""Options that the command lines of `python -m rdk_cuda`, and of other programs, share.

Imports nothing heavy: a command line is read before torch is loaded.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from ..recipes.errors import INSTALL, InputError

# Of a program that a signal ended, as shells count it: 128 + SIGINT.
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Answers bad input with one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def answered(prog: str, run: Callable[[], int]) -> int:
    """The exit code of `run`, or of what ended it, which is said on standard error.

    A `KeyboardInterrupt` may bring a sentence on what was kept.
    """
    try:
        return run()
    except (InputError, OSError) as error:  # the latter of a full disk, or without permission
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        print("Interrupted.", *interruption.args, file=sys.stderr)
        return INTERRUPTED


def refuse_missing(modules: Sequence[str], extra: str = "demo") -> None:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise InputError(f"needs {', '.join(missing)}: {INSTALL.format(extra)}")


def prepare_output(directory: Path) -> None:
    """Make the output directory now: fail before minutes of work."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"--output {directory}: is a file; needs a directory") from None
    except OSError as error:
        raise InputError(f"--output {directory}: {error.strerror}; needs a writable one") from None


def number(convert: Callable[[str], Any], allowed: Callable[[Any], bool], needs: str) -> Any:
    def parse(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise argparse.ArgumentTypeError(f"got {text!r}; needs {needs}")
        return value

    return parse


share = number(float, lambda value: 0 < value <= 1, "a share above 0 and at most 1, as 0.25")
natural = number(int, lambda value: 1 <= value < 2**63, "a whole number, at least 1")
natural_or_none = number(int, lambda value: 0 <= value < 2**63, "a whole number, 0 for none")
budget = number(float, lambda value: 0 <= value <= 1, "a share from 0 to 1, as 0.05")
gibibytes = number(float, lambda value: 0 < value <= 2**20, "GiB, above 0")
temperature = number(float, lambda value: 0 <= value < 1e6, "a temperature, 0 for greedy")
sampled = number(float, lambda value: 0 < value < 1e6, "a temperature above 0")
positive = number(float, lambda value: 0 < value < math.inf, "a number above 0")
seed = number(int, lambda value: 0 <= value < 2**31, "a whole number from 0 to 2^31 - 1")


class Options:
    """Adds options to a command, whose defaults are those of the fields of its request."""

    def __init__(self, parser: argparse.ArgumentParser, request: type[Any]) -> None:
        self.parser, self.request = parser, request

    def add(self, name: str, type_: Any, metavar: str, text: str, **how: Any) -> None:
        how.setdefault("default", getattr(self.request, name.replace("-", "_"), None))
        self.parser.add_argument(f"--{name}", type=type_, metavar=metavar, help=text, **how)

    def add_several(self, name: str, type_: Any, metavar: str, text: str, **how: Any) -> None:
        self.add(name, type_, metavar, text, nargs="+", **how)

    def add_numbers(self, *options: tuple[str, Any, str]) -> None:
        """Add an option of each name, type and help, which then says the default."""
        for name, type_, text in options:
            self.add(name, type_, "N", f"{text} (%(default)s)")

    def add_models(self, target: str, drafter: str | None = None) -> None:
        """Add both models, or a calibrated drafter as an argument, and text."""
        if drafter is None:
            add = self.parser.add_argument
            add("drafter", type=Path, metavar="DIR", help="what `calibrate` wrote")
        self.add("target", Path, "DIR", target, required=True)
        if drafter is not None:
            self.add("drafter", Path, "DIR", drafter, required=True)
        self.add_several("text", Path, "FILE", "UTF-8, each a document", required=True)

    def add_out(self, held_out: str) -> None:
        add = self.parser.add_argument
        self.add("out", Path, "DIR", "what to write; must not exist", required=True)
        replaces = "replace what an earlier calibration wrote there"
        add("--overwrite", action="store_true", help=replaces)
        self.add_several("held-out", Path, "FILE", held_out)

    def add_device(self) -> None:
        add = self.parser.add_mutually_exclusive_group().add_argument
        add("--device", help="of the models: cpu or cuda (cpu)")
        add(
            "--device-map",
            choices=("auto",),
            help="spread the target over all GPUs, then the processor's memory and the disk, by "
            "accelerate; the drafter is where the target's embeddings are",
        )
        self.parser.add_argument(
            "--dtype",
            choices=("float32", "bfloat16", "float16"),
            default=self.request.dtype,
            help="that the models compute in (%(default)s); calibration itself is in float32",
        )


def output_of(arguments: argparse.Namespace) -> Path:
    output = Path(os.path.abspath(arguments.out))  # a name of its own, even for "." and ".."
    if os.path.lexists(output) and not arguments.overwrite:
        raise InputError(
            f"--out {output}: exists; name another directory, or --overwrite an earlier calibration"
        )
    if not output.parent.is_dir():
        raise InputError(f"--out {output}: {output.parent} is no directory; make it first")
    if not os.access(output.parent, os.W_OK):
        raise InputError(f"--out {output}: {output.parent} cannot be written to")
    named = (arguments.target, *arguments.text, *arguments.held_out, vars(arguments).get("kept"))
    for path in named:
        if path is not None and path.resolve().is_relative_to(output.resolve()):
            raise InputError(f"--out {output}: {path} is in it and would be gone; move it first")
    return output


def refuse_paths_beyond_utf8(arguments: argparse.Namespace) -> None:
    for name, value in vars(arguments).items():
        if isinstance(value, Path):
            try:
                str(value).encode()
            except UnicodeEncodeError:
                raise InputError(f"--{name} {str(value)!a}: is not UTF-8; rename it") from None


def add_command(
    commands: Any, run: Callable[[argparse.Namespace], int], summary: str, description: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        run.__name__, help=summary, description=description
    )
    parser.set_defaults(run=run, prog=parser.prog)
    return parser


def prepare_models(arguments: argparse.Namespace, *more: str) -> None:
    refuse_missing(("transformers", "tokenizers", *more))
    refuse_paths_beyond_utf8(arguments)
    if arguments.device_map is not None:  # Transformers needs accelerate for nothing else here
        refuse_missing(("accelerate",), "devices")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported


def refuse_unknown(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in known]:
        raise InputError(f"{option} {unknown[0]}: needs one of {', '.join(known)}")
