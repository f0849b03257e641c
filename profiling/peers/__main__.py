"""`python -m profiling.peers`: how long other samplers take for the same step.

Each row of the results is one peer at one case, as is a peer that cannot run:

    case ... acceptance       the shape, as in cases.Case
    peer, module, peer_version
                              its name, and the package that it is from
    status, reason            "right", or "WRONG" and the test that it failed, or "missing" and why
    check                     figures of the tests (losslessness.py): "low", "high", "size"
    draws, false_alarm        steps of the first two; how often a right sampler fails a test
    median_us, p10_us,        cold: nothing in the last-level cache
    p90_us, rounds, ratio     how many; time over ours, median of the rounds
    warm_us                   directly after the same call; of ours alone
    host_us                   until the calls of a step have returned, with vocabularies so small
                              that there is next to nothing to compute; of ours, also captured
    accepted_mean             accepted drafts of a step in the calls that were timed
    accepted_expected         what a right sampler accepts there, by its rule
    peak_bytes, kept_bytes    for a drafted position: beyond the inputs at the peak of a call, and
                              kept between drafting and verifying; `memory` says how it was measured
    run, date, load ...       as in results.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from rdk_cuda import Affinity
from rdk_cuda.cli.arguments import natural, positive
from rdk_cuda.recipes.timing import spread

from ..bench.cases import ACCEPTANCES, PAIR, Case
from ..bench.measure import against
from ..bench.timing import clock_of, interleaved
from ..bench.workloads import Call, affinity_of, draw_inputs, number_of_sets
from ..commands import (
    Parser,
    Progress,
    add_measuring,
    measure_rows,
    one_line,
    run_columns,
    run_command,
)
from ..machine import now
from ..results import Row
from . import losslessness
from .carried import importable
from .installed import known_peers
from .memory import MEASURED_BY, kept_bytes, peak_bytes
from .page import MISSING, RIGHT, WRONG, page
from .samplers import CAPTURED, OURS, Peer, Sampler, Step

PRESETS = ("tiny", "short", "full")
SECONDS = {"tiny": 0.02, "short": 20.0, "full": 20.0}
CHECKED = (300, 100)  # V_t and V_d of the tests: small, so that every token has enough draws
DRAWS = 16384
HOST_CALLS = 100

SHAPE = (*("sampler", "target_size", "draft_size", "batch", "draft_length", "dtype", "acceptance"),)
MEASURED = (
    *("median_us", "p10_us", "p90_us", "rounds", "ratio", "warm_us", "host_us"),
    *("peak_bytes", "kept_bytes"),
)


def cases(preset: str, device: str) -> list[Case]:
    """The cases of a preset; tiny is there to see that all runs."""
    if preset == "tiny":
        case = Case(PAIR, "float32", *CHECKED, batch=2, draft_length=2, acceptance="high")
        return [replace(case, sampler=sampler) for sampler in ("virtual", "pruned")]
    on_gpu, full = device == "cuda", preset == "full"
    batches = ((1, 8, 64, 256) if full else (1, 64)) if on_gpu else (1, 8)
    return [
        Case(PAIR, dtype, 128256, 32768, batch, 5 if on_gpu else 4, 0, 0, sampler, acceptance)
        for dtype in (("bfloat16", "float32") if full else ("bfloat16",))
        for sampler in ("virtual", "pruned")
        for batch in batches
        for acceptance in (ACCEPTANCES if full else ("high",))
    ]


def parser() -> Parser:
    """The command line."""
    summary = (__doc__ or "").splitlines()[0]
    parser = Parser(prog="python -m profiling.peers", description=summary)
    add_measuring(parser, "JSON file to append rows to; next to it the same rows as tables")
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="short", help="how many cases (%(default)s)")
    others = [name for name, peer in known_peers().items() if peer.module != "rdk_cuda"]
    some = f"some of {', '.join(others)} (all)"
    add("--peers", nargs="+", choices=others, metavar="NAME", default=others, help=some)
    add("--draws", type=natural, metavar="N", default=DRAWS, help="steps of a test (%(default)s)")
    add("--repeats", type=natural, metavar="N", default=200, help="rounds at most (%(default)s)")
    add("--seconds", type=positive, metavar="S", help="for the rounds of one case (by preset)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(parser(), run, arguments)


def run(arguments: argparse.Namespace) -> int:
    """All cases, one after the other."""

    if arguments.device == "cuda":
        importable()

    def rows(progress: Progress) -> Iterator[Row]:
        comparison = Comparison(arguments, progress)
        chosen = cases(arguments.preset, arguments.device)
        for number, case in enumerate(chosen, 1):
            progress.show(f"[{number}/{len(chosen)}] {case.name}")
            try:
                yield from comparison.rows(case)
            except RuntimeError as error:  # out of memory, or a GPU that a peer has left broken
                progress.fail(case.name, error)

    return measure_rows(arguments, "compare", rows, page)


class Comparison:
    """What stays the same through a run."""

    def __init__(self, arguments: argparse.Namespace, progress: Progress) -> None:
        self.arguments, self.progress = arguments, progress
        self.device = torch.device(arguments.device)
        self.clock = clock_of(self.device, arguments.preset == "tiny")
        self.peers = [known_peers()[name] for name in (OURS, CAPTURED, *arguments.peers)]
        self.common: Row = {
            "memory": MEASURED_BY[self.device.type],
            "draws": arguments.draws,
            "false_alarm": losslessness.FALSE_ALARM,
            **run_columns(parser(), arguments),
        }
        self.tested = lru_cache(maxsize=None)(self._tested)

    def rows(self, case: Case) -> list[Row]:
        """Test and time every peer at a case, and measure its memory."""
        missing: dict[str, str] = {}
        checks: dict[str, dict[str, losslessness.Verdict]] = {}
        for peer in self.peers:
            reason = peer.missing(self.device, case.sampler)
            if reason is None:
                try:
                    self.progress.show(f"testing {peer.name}, {case.sampler}, {case.dtype}")
                    checks[peer.name] = self.tested(peer, case.sampler, case.dtype)
                except Exception as error:  # another package may raise anything
                    reason = f"raises {one_line(error)}"
            if reason is not None:
                missing[peer.name] = reason
        affinity, steps = self.inputs(case)
        torch.compiler.reset()  # beyond some number of shapes it would run functions as they are
        samplers: dict[str, Sampler] = {}
        for peer in self.peers:
            if peer.name in missing:
                continue
            try:
                self.progress.show(f"preparing {peer.name}, {case.name}")
                samplers[peer.name] = peer.make(affinity)
                samplers[peer.name](steps[0])
            except Exception as error:
                missing[peer.name] = f"raises {one_line(error)}"
                samplers.pop(peer.name, None)
        if OURS in missing:
            raise RuntimeError(f"our own operators: {missing[OURS]}")
        self.progress.show(f"timing {case.name}")
        figures = self.measure(samplers, steps, affinity, self.host_us(case, samplers))
        return [
            self.row(case, peer, missing.get(peer.name), checks.get(peer.name, {}), figures)
            for peer in self.peers
        ]

    def _tested(self, peer: Peer, sampler: str, dtype: str) -> dict[str, losslessness.Verdict]:
        """The verdicts of the tests on small vocabularies, by acceptance."""
        torch.compiler.reset()
        verdicts = {}
        for acceptance in ACCEPTANCES:
            case = Case(PAIR, dtype, *CHECKED, 1, 2, sampler=sampler, acceptance=acceptance)
            affinity, (step, *_) = self.inputs(case)
            torch.manual_seed(0)
            verdicts[acceptance] = losslessness.check(
                peer.make(affinity),
                step,
                affinity,
                draws=self.arguments.draws,
                acceptance=peer.acceptance,
            )
        return verdicts

    def inputs(self, case: Case) -> tuple[Affinity, list[Step]]:
        """The affinity, and steps that are always the same."""
        random = torch.Generator(self.device).manual_seed(0)
        affinity = affinity_of(case.sampler, case.target_size, case.draft_size).to(self.device)
        steps = []
        for _ in range(number_of_sets(case)):
            drawn = draw_inputs(case, affinity, random)
            target = drawn.target_logits.unflatten(0, (case.batch, case.draft_length + 1))
            steps.append(
                Step(
                    drawn.draft_logits,
                    target,
                    drawn.temperature,
                    drawn.step_keys,
                    drawn.positions[0],
                )
            )
        return affinity, steps

    def host_us(self, case: Case, samplers: dict[str, Sampler]) -> dict[str, float]:
        """The host's time for a step of ours, in microseconds: of many calls, one by one."""
        target_size, draft_size = CHECKED
        small = replace(case, target_size=target_size, draft_size=draft_size)
        affinity, (step, *_) = self.inputs(small)
        times = {}
        for peer in self.peers:
            if peer.name not in samplers or peer.module != "rdk_cuda":
                continue
            sampler, taken = peer.make(affinity), []
            for _ in range(HOST_CALLS):
                start = time.perf_counter()
                sampler(step)
                taken.append(time.perf_counter() - start)
                if self.device.type == "cuda":
                    torch.cuda.synchronize()  # nothing waits in the queue of the next call
            times[peer.name] = 1e6 * statistics.median(taken)
        return times

    def measure(
        self,
        samplers: dict[str, Sampler],
        steps: list[Step],
        affinity: Affinity,
        host_us: dict[str, float],
    ) -> dict[str, Row]:
        """Times, memory, and what was accepted in the calls that were timed."""
        counts: dict[str, list[tuple[int, Tensor]]] = {name: [] for name in samplers}

        def call(name: str, index: int) -> None:
            counts[name].append((index, samplers[name](steps[index])[1]))

        torch.manual_seed(0)
        calls: dict[str, Call] = {name: partial(call, name) for name in samplers}
        seconds = self.arguments.seconds or SECONDS[self.arguments.preset]
        times = interleaved(
            self.clock, calls, len(steps), seconds=seconds, repeats=self.arguments.repeats
        )
        positions = steps[0].draft_logits.shape[0] * steps[0].draft_logits.shape[1]
        rules = {peer.name: peer.acceptance for peer in self.peers}
        rates = {
            rule: [losslessness.acceptance_rates(step, affinity, rule) for step in steps]
            for rule in {rules[name] for name in samplers}
        }
        return {
            name: {
                **against(times[name], times[OURS]),
                "rounds": len(times[name]),
                "warm_us": 1e6 * spread(times["warm"]).value if name == OURS else None,
                "host_us": host_us.get(name),
                "verdict": losslessness.check_accepted(
                    [count for _, count in counts[name]],
                    [rates[rules[name]][index] for index, _ in counts[name]],
                ),
                "peak_bytes": peak_bytes(partial(sampler, steps[0]), self.device) / positions,
                "kept_bytes": kept_bytes(sampler.draft(steps[0])) / positions,
            }
            for name, sampler in samplers.items()
        }

    def row(
        self,
        case: Case,
        peer: Peer,
        missing: str | None,
        checks: dict[str, losslessness.Verdict],
        figures: dict[str, Row],
    ) -> Row:
        """The row of a peer at a case."""
        found = figures.get(peer.name, {})
        verdicts = dict(checks)
        if found:
            verdicts["size"] = found.pop("verdict")
        wrong = [verdict.wrong for verdict in verdicts.values() if verdict.wrong is not None]
        at_size = verdicts["size"].figures if "size" in verdicts else {}
        return {
            "case": case.name,
            **{name: getattr(case, name) for name in SHAPE},
            "peer": peer.name,
            "module": peer.module,
            "peer_version": getattr(sys.modules.get(peer.module), "__version__", None),
            "status": MISSING if missing else WRONG if wrong else RIGHT,
            "reason": missing or (wrong[0] if wrong else None),
            "check": {name: verdict.figures for name, verdict in verdicts.items()},
            **(found or dict.fromkeys(MEASURED)),
            "accepted_mean": at_size.get("accepted_mean"),
            "accepted_expected": at_size.get("accepted_expected"),
            "date": now(),
            "load": os.getloadavg()[0],
            **self.common,
        }


if __name__ == "__main__":
    sys.exit(main())
