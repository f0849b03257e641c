"""What drafting inside the target's top-p does to acceptance, with the demo's two models.

The target samples with top-p. Its drafter draws either from all of its columns, or only from those
that the same top-p leaves of them (DESIGN section 4, "Truncation"). Acceptance is exact,
`sum_x min(p, q)`, on held-out text. Tokens a pass are those of K drafts, each judged as the
position where it lies. Intervals are from documents, and paired.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo.shipped import load_shipped
from rdk_cuda import Affinity, Vocabulary, redistribute
from rdk_cuda.calibration.methods import PRUNED, RECOMMENDED, Method
from rdk_cuda.cli.arguments import natural
from rdk_cuda.cli.progress import Stages
from rdk_cuda.evaluation import Bootstrap
from rdk_cuda.evaluation.acceptance import acceptance
from rdk_cuda.evaluation.speed import expected_accepted_length
from rdk_cuda.files import write_json

from ..commands import Parser, run_columns, run_command
from ..machine import ROOT
from .acceptance.laboratory import Laboratory, Settings, build_methods
from .acceptance.parts import Run

RESULT = ROOT / "profiling" / "results" / "draft-truncation" / "demo.json"
RUN = Run((0.25,), (1.0, 0.7), (PRUNED, RECOMMENDED))
TOP_P = (0.95, 0.9, 0.8)

Row = dict[str, Any]


@torch.no_grad()
def rates_of(
    laboratory: Laboratory, methods: dict[float, list[Method]]
) -> dict[tuple[float, float], Tensor]:
    """By temperature and top-p: `[2, methods, windows, positions]`, all columns and top-p's."""
    size = laboratory.models.target.config.vocab_size
    identity = Affinity.intersection(Vocabulary.identity(size))
    rates: dict[tuple[float, float], list[Tensor]] = {
        (temperature, top_p): [] for temperature in methods for top_p in TOP_P
    }
    windows = laboratory.held_out_windows
    for window in laboratory.stages.each(windows, "Measuring acceptance: held-out text"):
        ids = torch.tensor([window.ids], dtype=torch.int64)
        logits, hidden = (rows[0].float() for rows in laboratory.read(ids))
        contexts = window.contexts[-len(hidden) :]
        for temperature, chosen in methods.items():
            columns = [m.drafter.columns(laboratory.models.drafter_head, hidden, contexts)
                       for m in chosen]  # fmt: skip
            for top_p in TOP_P:
                p = redistribute(logits, identity, temperature, top_p=top_p)
                drafted = [
                    [
                        acceptance(p, redistribute(affinity=m.drafter.affinity,
                                                   temperature=temperature, top_p=own, **each))
                        for m, each in zip(chosen, columns, strict=True)
                    ]
                    for own in (None, top_p)
                ]  # fmt: skip
                rates[temperature, top_p].append(torch.stack([torch.stack(d) for d in drafted]))
    return {key: torch.stack(parts, dim=2) for key, parts in rates.items()}


def rows_of(laboratory: Laboratory, methods: dict[float, list[Method]]) -> Iterator[Row]:
    """A row for each temperature, top-p and method."""
    settings, windows = laboratory.settings, laboratory.held_out_windows
    bootstrap = Bootstrap([window.document for window in windows], seed=settings.seed)
    for (temperature, top_p), rates in rates_of(laboratory, methods).items():
        for method, plain, same in zip(methods[temperature], *rates, strict=True):
            per_pass = [1 + expected_accepted_length(rate, settings.draft_length)
                        for rate in (plain, same)]  # fmt: skip
            yield {
                "temperature": temperature,
                "top_p": top_p,
                "method": method.name,
                "keep": method.keep,
                "positions": plain.numel(),
                "documents": len(bootstrap.members),
                "draft_length": settings.draft_length,
                "acceptance": list(bootstrap.mean(plain)),
                "acceptance_inside": list(bootstrap.mean(same)),
                "difference": list(bootstrap.mean(same - plain)),
                "tokens_ratio": list(bootstrap.ratio(per_pass[1], per_pass[0])),
            }


def main(arguments: Sequence[str] | None = None, settings: Settings | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.studies.draft_truncation", description=__doc__)
    command.add_argument("--threads", type=natural, default=1, metavar="N")
    command.add_argument(
        "--pruned",
        action="store_true",
        help="calibrate drafters with a quarter of the vocabulary, too, in some minutes",
    )
    command.add_argument("--output", type=Path, default=RESULT, metavar="FILE")
    command.set_defaults(device="cpu")

    def run(options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        with Stages() as stages:
            laboratory = Laboratory(load_shipped(), settings or Settings(), stages)
            full = {at: [Method.full(laboratory.models.drafter_head)] for at in RUN.temperatures}
            methods = build_methods(RUN, laboratory) if options.pruned else full
            rows = list(rows_of(laboratory, methods))
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_json({**run_columns(command, options), "rows": rows}, options.output)
        for row in rows:
            print(line(row))

    return run_command(command, run, arguments)


def line(row: Row) -> str:
    """A row on a terminal."""
    low, high = (100 * (end - 1) for end in row["tokens_ratio"][1:])
    return (
        f"T = {row['temperature']:g}, top-p {row['top_p']:g}, {row['method']}: "
        f"{row['acceptance'][0]:.3f} to {row['acceptance_inside'][0]:.3f}, "
        f"tokens a pass {low:+.1f} to {high:+.1f} %"
    )


if __name__ == "__main__":
    sys.exit(main())
