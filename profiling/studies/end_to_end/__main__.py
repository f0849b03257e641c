"""`python -m profiling.studies.end_to_end`: where the time of a decoding step goes.

Each row of the results is a head with a way to sample, or the target alone, at a batch:

    size, models, target_size     which models (model_pairs.py), and V_t
    batch, draft_length, context  sequences, K, and tokens in the models' caches
    head, method, keep            as the accepted lengths name them; null for the target alone
    head_rows, sampling           V_d; "PyTorch" or "rdk_cuda"
    parts, shares                 seconds of each part (decoding_steps.py), medians of `rounds`;
                                  and of their sum
    step_seconds                  of a whole step, median
    accepted_length               by calibration, from the file `accepted_from`
    accepted_here                 mean over the rounds, of what was verified in its place
    tokens_per_second             (1 + accepted_length) * batch / step_seconds
    speed_up                      over the target alone
    run, date, load ...           as in results.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from rdk_cuda.cli.arguments import natural, refuse_missing
from rdk_cuda.cli.errors import InputError
from rdk_cuda.evaluation.rows import read_evaluation
from rdk_cuda.evaluation.speed import speed_up

from ...commands import (
    Parser,
    Progress,
    add_measuring,
    measure_rows,
    run_columns,
    run_command,
)
from ...machine import ROOT, now
from ...results import Row
from .decoding_steps import BODY, DRAFT, HEAD, VARIANTS, Steps, Variant, noise_for
from .model_pairs import HEADS, SIZES, Head, make_pair
from .page import page

ACCEPTED = Path("profiling/results/acceptance/methods.json")
ALONE = "target alone"
TARGET_LAYERS = {"cpu": 2, "cuda": 32}
BATCHES, CONTEXT, ROUNDS = (1, 8), 256, 15


def parser() -> Parser:
    """The command line."""
    summary = (__doc__ or "").splitlines()[0]
    parser = Parser(prog="python -m profiling.studies.end_to_end", description=summary)
    add_measuring(parser, "JSON file to append rows to; next to it the same rows as tables")
    add = parser.add_argument
    add(
        "--size",
        choices=SIZES,
        required=True,
        help="tiny: whether it runs; demo: the demo's models; serving: random ones of d 4,096 and "
        "V 128,256, about 4 GB on the CPU and 18 GB on a GPU",
    )
    layers = "of a random target (2 on the CPU, 32 on a GPU, as Llama 3.1 8B has)"
    add("--target-layers", type=natural, metavar="N", help=layers)
    add("--batch", type=natural, nargs="+", default=list(BATCHES), metavar="B", help="(1 8)")
    add("--context", type=natural, default=CONTEXT, metavar="N", help="tokens (%(default)s)")
    add("--rounds", type=natural, default=ROUNDS, metavar="N", help="(%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(parser(), run, arguments)


def run(arguments: argparse.Namespace) -> int:
    """All batches, one after the other."""
    refuse_missing(["transformers"])
    if arguments.size == "demo" and arguments.target_layers:
        raise InputError("--target-layers is for random models; leave it out")
    return measure_rows(arguments, "end_to_end", lambda shown: rows(arguments, shown), page)


def accepted_lengths() -> tuple[int, dict[Head, float]]:
    """K, and the accepted length of each head at temperature 1, as calibration measured them."""
    rows = read_evaluation(ROOT / ACCEPTED)["rows"]
    found = {
        (row["method"], row["keep"]): row
        for row in rows
        if row["pair"] == "demo" and row["temperature"] == 1
    }
    missing = [head.name for head in HEADS if (head.method, head.keep) not in found]
    if missing:
        raise InputError(f"{ACCEPTED}: has no row of {missing[0]}; run the study acceptance")
    chosen = {head: found[head.method, head.keep] for head in HEADS}
    (draft_length,) = {row["draft_length"] for row in chosen.values()}
    return draft_length, {head: row["accepted_length"] for head, row in chosen.items()}


def rows(arguments: argparse.Namespace, progress: Progress) -> Iterator[Row]:
    """The rows, batch by batch."""
    device = torch.device(arguments.device)
    layers = arguments.target_layers or TARGET_LAYERS[arguments.device]
    progress.show(f"making models of size {arguments.size}")
    pair = make_pair(arguments.size, device, layers)
    draft_length, accepted = accepted_lengths()
    noises = {head: noise_for(length, draft_length) for head, length in accepted.items()}
    steps = Steps(pair, context=arguments.context, draft_length=draft_length, noises=noises)
    common: Row = {
        "size": arguments.size,
        "models": pair.about,
        "target_size": steps.vocabulary,
        "draft_length": draft_length,
        "context": arguments.context,
        "rounds": arguments.rounds,
        "accepted_from": ACCEPTED.as_posix(),
        **run_columns(parser(), arguments),
    }
    for batch in arguments.batch:
        progress.show(f"batch {batch}: reading the context")
        steps.begin(batch)
        times: dict[Variant | None, list[dict[str, float]]] = defaultdict(list)
        lengths: dict[Variant, list[float]] = defaultdict(list)
        for turn in range(arguments.rounds + 1):  # the first does not count
            progress.show(f"batch {batch}: round {turn} of {arguments.rounds}")
            alone = steps.take_alone()
            taken = {each: steps.take(each) for each in VARIANTS}
            if turn:
                times[None].append(alone)
                for each, (seconds, length) in taken.items():
                    times[each].append(seconds)
                    lengths[each].append(length)
        common |= {"batch": batch, "date": now(), "load": os.getloadavg()[0]}
        alone_seconds = statistics.median(sum(each.values()) for each in times[None])
        for variant in (None, *VARIANTS):
            length = accepted[variant.head] if variant else 0.0
            yield {
                **described(variant, steps.vocabulary),
                "accepted_here": statistics.fmean(lengths[variant]) if variant else None,
                **figures(times[variant], length, common, alone_seconds),
                **common,
            }


def described(variant: Variant | None, vocabulary: int) -> Row:
    """The columns of a head and a way to sample; None is the target alone."""
    if variant is None:
        named: Row = {"head": ALONE, "method": None, "keep": None}
        return {**named, "head_rows": vocabulary, "sampling": "PyTorch"}
    head = variant.head
    named = {"head": head.name, "method": head.method, "keep": head.keep}
    return {**named, "head_rows": head.rows(vocabulary), "sampling": variant.sampling}


def figures(times: Sequence[dict[str, float]], accepted: float, common: Row, alone: float) -> Row:
    """The figures of a row from the times of its steps."""
    parts = {name: statistics.median(each[name] for each in times) for name in times[0]}
    step = statistics.median(sum(each.values()) for each in times)
    total, length = sum(parts.values()), common["draft_length"]
    drafting = step * sum(parts.get(name, 0.0) for name in (BODY, HEAD, DRAFT)) / total
    return {
        "parts": parts,
        "shares": {name: seconds / total for name, seconds in parts.items()},
        "step_seconds": step,
        "accepted_length": accepted,
        "tokens_per_second": (1 + accepted) * common["batch"] / step,
        "speed_up": speed_up(
            accepted,
            length,
            target_time=step - drafting,
            draft_time=drafting / length,
            alone_time=alone,
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
