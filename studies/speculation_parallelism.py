"""What copies of the target bring that judge drafts while drafting goes on (DSI).

    python -m studies.speculation_parallelism --output FILE

As in the paper (arXiv:2405.14105), passes are waits: a target's takes a fixed time, a drafter's the
share c of it, and each draft is accepted with probability a. With `--demo` they are passes of the
demo's models, on a thread each: one target beside the drafter, which is all that two cores have.
Every way decodes the same prompts, in turn: the target alone, drafts and verification in turn (SI)
at the K that is best in closed form, and 1, 2, 4 and 7 targets, DSI at its least lookahead and the
way that `ParallelDecoder` chooses. The demo's models go through each K and each lookahead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from examples.demo.shipped import load_shipped
from examples.demo.text import held_out_prompts
from profiling.commands import Parser, run_command, write_found
from rdk_cuda.cli.arguments import natural
from rdk_cuda.decoding import CausalModel, Output, SpeculativeDecoder
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.labs.parallel_decoder import (
    ParallelDecoder,
    least_lookahead,
    parallel_speed,
    serial_speed,
)

from .decoder_time import Constant

CASES = ((0.1, 0.8), (0.2, 0.9), (0.1, 0.5))  # c and a
SERVERS = (1, 2, 4, 7)
CONTEXT = 64  # of the demo's prompts


class Waiting(Constant):
    """A model of few tokens that says the same everywhere, after a wait."""

    def __init__(self, probs: Sequence[float], seconds: float) -> None:
        super().__init__(torch.tensor([[probs]]).log())
        self.seconds = seconds

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        """As `CausalModel.feed`."""
        time.sleep(self.seconds)
        return Output(super().feed(tokens, keep).logits.expand(len(tokens), max(keep), -1))


def waiting(acceptance: float, seconds: float, drafts: bool) -> Waiting:
    """A target that is even, or a drafter whose overlap with it is the acceptance."""
    torch.set_num_threads(1)
    moved = (1 - acceptance) / 8 if drafts else 0.0
    return Waiting([1 / 16 + moved] * 8 + [1 / 16 - moved] * 8, seconds)


def demo_target() -> HuggingFaceModel:
    """The demo's, on one thread."""
    torch.set_num_threads(1)
    return HuggingFaceModel(load_shipped().target)


def measured(
    target: Callable[[], CausalModel],
    drafter: CausalModel,
    prompts: list[list[int]],
    tokens: int,
    costs: tuple[float, float] | None,
    servers: Sequence[int],
) -> list[dict[str, Any]]:
    """A row for each way: seconds a token. Without c and a, each K and each L are tried."""
    rows: list[dict[str, Any]] = []

    def timed(way: str, decoder: SpeculativeDecoder, expected: float | None) -> None:
        began, accepted, judged = time.perf_counter(), 0, 0
        for turn, prompt in enumerate(prompts):
            counts = decoder.generate([prompt], max_new_tokens=tokens, seeds=turn).statistics
            accepted, judged = accepted + sum(counts.accepted), judged + sum(counts.drafted)
        seconds = (time.perf_counter() - began) / tokens / len(prompts)
        row = {"way": way, "seconds": seconds, "expected": expected}
        row["speed"] = rows[0]["seconds"] / seconds if rows else 1.0
        row |= {"servers": 0, "chosen": False, "acceptance": accepted / max(1, judged)}
        rows.append(row)
        print(row, flush=True)

    timed("target alone", SpeculativeDecoder(target(), draft_length=0), 1.0)
    lengths = range(1, 10)
    if costs is None:
        for k in lengths:
            timed(f"SI, K = {k}", SpeculativeDecoder(target(), drafter, draft_length=k), None)
    else:
        k = max(lengths, key=lambda k: serial_speed(*costs, k))
        serial = SpeculativeDecoder(target(), drafter, draft_length=k)
        timed(f"SI, K = {k}", serial, serial_speed(*costs, k))
    for count in servers:
        lookaheads = lengths if costs is None else [least_lookahead(costs[0], count)]
        for lookahead in (*lookaheads, None):
            expected = parallel_speed(*costs, lookahead) if costs and lookahead else None
            with ParallelDecoder([target] * count, drafter, lookahead=lookahead) as decoder:
                decoder.generate([prompts[0]], max_new_tokens=10, seeds=0)  # measures, and warms up
                way = f"L = {lookahead}" if lookahead else "as the decoder chose"
                timed(f"SP = {count}, {way}", decoder, expected)
                rows[-1] |= {"servers": count, "chosen": lookahead is None}
                rows[-1] |= {"plan": decoder.plan._asdict()}
    return rows


def run(options: argparse.Namespace) -> None:
    """Measure, print and, if asked to, write."""
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    if options.demo:
        pair = load_shipped()
        prompts = [list(each.ids)[-CONTEXT:] for each in held_out_prompts(pair.tokenizer)]
        drafter: CausalModel = HuggingFaceModel(pair.drafter)
        rows = measured(demo_target, drafter, prompts[:4], options.tokens, None, [1])
        results.append({"models": "the demo's", "rows": rows})
    for cost, acceptance in () if options.demo else CASES:
        target = partial(waiting, acceptance, options.seconds, False)
        drafter = waiting(acceptance, cost * options.seconds, True)
        prompts = [[0]] * options.prompts
        costs = (cost, acceptance)
        rows = measured(target, drafter, prompts, options.tokens, costs, options.servers)
        results.append({"cost": cost, "acceptance": acceptance, "rows": rows})
    about = {"seconds": options.seconds, "tokens": options.tokens}
    write_found(options.output, **about, results=results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.speculation_parallelism", description=__doc__)
    add = command.add_argument
    add("--demo", action="store_true", help="the demo's models in place of waits")
    add("--seconds", type=float, default=0.1, metavar="S", help="of a target's wait (%(default)s)")
    add("--tokens", type=natural, default=200, metavar="N", help="after each prompt (%(default)s)")
    add("--prompts", type=natural, default=4, metavar="N", help="with waits (%(default)s)")
    add("--servers", type=natural, nargs="+", default=SERVERS, metavar="SP", help="(1 2 4 7)")
    add("--output", type=Path, metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
