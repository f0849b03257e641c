"""`python -m rdk_cuda COMMAND`: reads the command line and hands over to the command."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from rdk_cuda.commands import calibrate, evaluate, inspect
from rdk_cuda.commands.errors import InputError
from rdk_cuda.demo import arguments as demo

# Of a program that a signal ended, as shells count it: 128 + SIGINT.
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Answers bad input with one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; returns its exit code."""
    parser = Parser(prog="python -m rdk_cuda", description="Reduced-vocabulary drafters, lossless.")
    commands = parser.add_subparsers(metavar="COMMAND")
    demo.add_command(commands)
    calibrate.add_command(commands)
    evaluate.add_command(commands)
    inspect.add_command(commands)
    arguments = parser.parse_args(argv)
    if "run" not in arguments:  # no command was named
        parser.print_help(sys.stderr)
        return 2
    try:
        return int(arguments.run(arguments))
    except (InputError, OSError) as error:  # the latter of a full disk, or without permission
        print(f"{arguments.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
