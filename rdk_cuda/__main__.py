"""`python -m rdk_cuda COMMAND`: reads the command line and hands over to the command."""

import sys
from collections.abc import Sequence
from importlib import reload

import rdk_cuda

from .cli.arguments import Parser, answered
from .cli.calibrate import add_calibrate
from .cli.distill import add_distill
from .cli.evaluate import add_evaluate
from .cli.inspect import add_inspect


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; returns its exit code."""
    parser = Parser(prog="python -m rdk_cuda", description="Reduced-vocabulary drafters, lossless.")
    parser.add_argument("--version", action="version", version=f"rdk_cuda {rdk_cuda.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for add_command in (add_calibrate, add_distill, add_evaluate, add_inspect):
        add_command(commands)
    arguments = parser.parse_args(argv)
    if "run" not in arguments:  # no command was named
        parser.print_help(sys.stderr)
        return 2
    if "Affinity" not in vars(rdk_cuda):  # as long as nothing but its name was needed
        reload(rdk_cuda)
    return answered(arguments.prog, lambda: int(arguments.run(arguments)))


if __name__ == "__main__":
    sys.exit(main())
