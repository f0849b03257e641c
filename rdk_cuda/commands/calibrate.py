"""The command line of `calibrate`. Nothing heavy is imported before it is read."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arguments import natural, number, positive, refuse_missing, seed, share
from .errors import InputError

REQUIRED = ("transformers", "tokenizers", "sklearn", "rich")
SCORES = ("probability", "frequency", "variance")

gibibytes = number(float, lambda value: 0 < value <= 2**20, "GiB, above 0")

DESCRIPTION = """\
Prunes a drafter's vocabulary and makes up for it: reads text with target and drafter, keeps the
tokens that matter, finds virtual tokens for the rest and dynamic ones for what the context names,
and calibrates them for a temperature. Writes one directory, whole or not at all: the drafter, its
small head, its affinity, a table of successors, and what each is worth on held-out text. A run that
was interrupted goes on where it was when the same command is given again."""


@dataclass(frozen=True)
class Request:
    """What `calibrate` is asked for.

    Attributes:
        keep: the share of the vocabulary to keep; `keep_by` says by which score.
        kept: a map with the ids to keep instead (`read_token_map`), or None.
        positions: to read with the models, spread over the text.
        memory: in GiB, for what is recorded.
    """

    target: Path
    drafter: Path
    text: tuple[Path, ...]
    output: Path
    held_out: tuple[Path, ...] = ()
    keep: float = 0.25
    keep_by: str = SCORES[0]
    kept: Path | None = None
    virtual: int = 64
    dynamic: int = 128
    window: int = 256
    temperature: float = 1.0
    draft_length: int = 4
    positions: int = 24576
    memory: float = 2.0
    device: str = "cpu"
    seed: int = 0
    overwrite: bool = False


def add_command(commands: Any) -> None:
    """Add `calibrate` to the subparsers of `python -m rdk_cuda`."""
    parser = commands.add_parser(
        "calibrate",
        help="prune a drafter, and find the affinity that makes up for it",
        description=DESCRIPTION,
    )
    parser.set_defaults(run=run, prog=parser.prog)
    add = parser.add_argument
    add("--target", type=Path, required=True, metavar="DIR", help="a local Hugging Face model")
    add("--drafter", type=Path, required=True, metavar="DIR", help="its drafter, same tokenizer")
    add(
        "--text", type=Path, nargs="+", required=True, metavar="FILE", help="UTF-8, each a document"
    )
    add("--out", type=Path, required=True, metavar="DIR", help="what to write; must not exist")
    add("--overwrite", action="store_true", help="replace what an earlier calibration wrote there")
    add(
        "--held-out",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="text to measure on (every fifth of --text, which then is not calibrated on)",
    )
    defaults = Request
    add("--keep", type=share, default=defaults.keep, metavar="SHARE", help="kept (%(default)s)")
    add(
        "--keep-by",
        choices=SCORES,
        default=defaults.keep_by,
        help="keep tokens by mean target probability, by their frequency in the text, or by the "
        "variance of the target's probability (%(default)s)",
    )
    add(
        "--kept",
        type=Path,
        metavar="FILE",
        help="keep these target ids instead, and as always special tokens and bytes: text with one "
        "a line, JSON, .npy, a list of FR-Spec or SGLang (.pt), or an EAGLE-3 checkpoint with d2t",
    )
    for name, type_, text in (
        ("virtual", natural, "virtual tokens, at most"),
        ("dynamic", natural, "dynamic tokens of a row, at most"),
        ("window", natural, "how many of the last tokens of the context are recent"),
        ("temperature", positive, "of target and drafter in use"),
        ("draft-length", natural, "drafts for each target pass, for the predicted speed-up"),
        ("positions", natural, "of the text that the models read, spread over it"),
        ("memory", gibibytes, "GiB for what is recorded of it"),
        ("seed", seed, "of samples and clusters"),
    ):
        default = getattr(defaults, name.replace("-", "_"))
        add(f"--{name}", type=type_, default=default, metavar="N", help=f"{text} (%(default)s)")
    add("--device", default=defaults.device, help="of the models: cpu or cuda (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then calibrate; returns the exit code."""
    refuse_missing(REQUIRED)
    output = Path(os.path.abspath(arguments.out))  # a name of its own, even for "." and ".."
    if os.path.lexists(output) and not arguments.overwrite:
        raise InputError(
            f"--out {output}: exists; name another directory, or --overwrite an earlier calibration"
        )
    if not output.parent.is_dir():
        raise InputError(f"--out {output}: {output.parent} is no directory; make it first")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from .calibration import calibrate

    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(arguments).items()
        if name not in ("run", "prog", "out")
    }
    return calibrate(Request(output=output, **given))
