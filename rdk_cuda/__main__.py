"""`python -m rdk_cuda COMMAND`: reads the command line and hands over to the command."""

import sys
from collections.abc import Sequence

from rdk_cuda.cli import calibrate, evaluate, inspect
from rdk_cuda.cli.program import Parser, answered


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; returns its exit code."""
    parser = Parser(prog="python -m rdk_cuda", description="Reduced-vocabulary drafters, lossless.")
    commands = parser.add_subparsers(metavar="COMMAND")
    calibrate.add_command(commands)
    evaluate.add_command(commands)
    inspect.add_command(commands)
    arguments = parser.parse_args(argv)
    if "run" not in arguments:  # no command was named
        parser.print_help(sys.stderr)
        return 2
    return answered(arguments.prog, lambda: int(arguments.run(arguments)))


if __name__ == "__main__":
    sys.exit(main())
