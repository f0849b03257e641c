"""`python -m examples.demo`, or `make demo`. Refusals come before models load."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields

from rdk_cuda.cli.arguments import answered, prepare_output, refuse_missing
from rdk_cuda.recipes.errors import InputError

from .arguments import MODEL_DEFAULTS, Settings, make_parser

REQUIRED = ("transformers", "tokenizers", "sklearn", "matplotlib", "rich")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; returns its exit code."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.model is not None:
        parser.set_defaults(**MODEL_DEFAULTS)
        arguments = parser.parse_args(argv)
    return answered(parser.prog, lambda: run(arguments))


def run(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then run the demo; returns its exit code."""
    refuse_missing(REQUIRED)
    if arguments.model is not None and (arguments.target or arguments.drafter or arguments.train):
        raise InputError("--model names both models: leave --target, --drafter and --train out")
    if (arguments.target is None) != (arguments.drafter is None):
        raise InputError("--target and --drafter belong together: give both or none")
    if arguments.prompt is not None and not arguments.prompt.strip():
        raise InputError("--prompt is empty: give some text to continue, or leave it out")
    prepare_output(arguments.output)
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from . import command

    if arguments.train:
        return command.train(arguments.output)
    chosen = {field.name: getattr(arguments, field.name) for field in fields(Settings)}
    chosen["keep"] = tuple(sorted(set(arguments.keep), reverse=True))
    for name in ("batches", "draft_lengths"):
        chosen[name] = tuple(sorted(set(getattr(arguments, name))))
    settings = Settings(**chosen)
    if arguments.model is not None:
        return command.gemma_demo(arguments.output, settings)
    return command.demo(arguments.target, arguments.drafter, arguments.output, settings)


if __name__ == "__main__":
    sys.exit(main())
