"""What all command lines share: bad input is answered with one line, an interruption too."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from .errors import InputError

# Of a program that a signal ended, as shells count it: 128 + SIGINT.
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Answers bad input with one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
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
