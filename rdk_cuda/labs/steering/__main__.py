"""`python -m rdk_cuda.labs.steering`: `distill` and `evaluate` for steered drafters."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ...cli.arguments import (
    Parser,
    answered,
    output_of,
    prepare_models,
    prepare_output,
    refuse_unknown,
)
from ...cli.distill import add_distill
from ...cli.evaluate import add_evaluate
from ...recipes.request import Evaluation, Training


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; returns its exit code."""
    parser = Parser(prog="python -m rdk_cuda.labs.steering", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_distill(commands)
    add_evaluate(commands)
    commands.choices["distill"].set_defaults(run=distill, train="steering")
    commands.choices["evaluate"].set_defaults(run=evaluate)
    arguments = parser.parse_args(argv)
    return answered(arguments.prog, lambda: int(arguments.run(arguments)))


def distill(arguments: argparse.Namespace) -> int:
    prepare_models(arguments, "rich")
    request = Training.of(arguments, output_of(arguments))
    from ...integrations.huggingface.saved_drafter import refuse_existing
    from ...recipes.directories import naming_out
    from ...recipes.distill import trained
    from ...recipes.inputs.loading import quiet
    from ...training import LOSSES, PARTS
    from .job import STEERED, loaded

    refuse_unknown("--train", [arguments.train], (*PARTS, STEERED))
    refuse_unknown("--loss", arguments.loss, LOSSES)
    quiet()
    with naming_out():
        refuse_existing(request.output, request.overwrite)
    return trained(request, *loaded(request))


def evaluate(arguments: argparse.Namespace) -> int:
    prepare_models(arguments, "matplotlib", "rich")
    prepare_output(arguments.output)
    request = Evaluation.of(arguments, arguments.output)
    from ...recipes.evaluate import report
    from ...recipes.inputs.loading import quiet
    from ...recipes.saved import methods_of
    from .job import load_pair_of

    quiet()
    models, drafter, settings = load_pair_of(request)
    methods = methods_of(models, drafter, str(settings.get("tuned", "")))
    return report(request, models, methods, settings)


if __name__ == "__main__":
    sys.exit(main())
