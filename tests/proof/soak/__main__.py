"""Draw very many tokens and compare their frequencies with the exact distributions.

python -m tests.proof.soak --tokens 1e8 --log soak.json

Speculative steps of two drafts over a dozen pairs of target and drafter; chi-square tests, with a
pooled tail, of drafted tokens, first tokens, pairs of an accepted token and its successor, and
accepted lengths. A right implementation fails one of them with probability 1e-6. Controls, steps
done wrong with as many tokens, must be caught with a p-value below 1e-12. 10^9 tokens take about
ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.proof.emulated.module_builder import replacing
from tests.proof.statistics.chi_square import p_value
from tests.tolerances import CERTAIN, FALSE_ALARM

from .cases import CASES, CONTROLS, Case

ROOT = Path(__file__).resolve().parents[3]


class Soak:
    """Counts of all cases. What a case draws is a function of the seed and of what it drew."""

    def __init__(self, seed: int) -> None:
        self.seed, self.seconds = seed, 0.0
        self.cases = [*CASES, *CONTROLS]
        self.counts = [case.new_counts() for case in self.cases]

    def sequences(self, index: int) -> int:
        return int(self.counts[index]["length"].sum())

    def tokens(self, index: int) -> int:
        return self.cases[index].tokens(self.counts[index])

    @property
    def total(self) -> int:
        return sum(self.tokens(index) for index in range(len(self.cases)))

    def run(self, tokens: int) -> None:
        """Draws until there are so many, a batch at a time for the case that has the fewest."""
        start = time.monotonic()
        while self.total < tokens:
            index = min(range(len(self.cases)), key=self.tokens)
            drawn = self.cases[index].batch(self.seed + index, self.sequences(index))
            for name, counts in drawn.items():
                self.counts[index][name] += counts
        self.seconds = time.monotonic() - start

    def row(self, index: int) -> dict[str, Any]:
        case, counts = self.cases[index], self.counts[index]
        values = {name: p_value(counts[name], probs) for name, probs in self.compared(case)}
        control = bool(case.wrong)
        smallest = min(values.values())
        return {
            "case": case.name,
            "control": control,
            "vocabulary": case.size,
            "sequences": self.sequences(index),
            "tokens": self.tokens(index),
            "p_values": values,
            "as_it_should_be": smallest <= CERTAIN if control else smallest >= FALSE_ALARM,
        }

    @staticmethod
    def compared(case: Case) -> list[tuple[str, torch.Tensor]]:
        one_hot = case.draft_temperature == 0  # every draft is the same, so q is not drawn from
        return [item for item in case.expected.items() if not one_hot or item[0] != "drafted"]

    def log(self) -> dict[str, Any]:
        described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
        commit = subprocess.run(described, capture_output=True, text=True).stdout.strip()
        return {
            "format": "rdk_cuda.soak",
            "seed": self.seed,
            "commit": commit or "unknown",
            "date": datetime.date.today().isoformat(),
            "tokens": self.total,
            "seconds": round(self.seconds, 1),
            "tokens_per_second": round(self.total / max(self.seconds, 1e-9)),
            "threads": torch.get_num_threads(),
            "false_alarm_of_one_test": FALSE_ALARM,
            "cases": [self.row(index) for index in range(len(self.cases))],
        }


def table(log: dict[str, Any]) -> str:
    names = ["drafted", "first", "pairs", "length"]
    lines = [f"{'case':<34}{'V':>6}{'tokens':>12}" + "".join(f"{name:>10}" for name in names)]
    for row in log["cases"]:
        values = [row["p_values"].get(name) for name in names]
        shown = "".join(f"{'' if value is None else f'{value:.2g}':>10}" for value in values)
        meant = "caught" if row["control"] else "right"
        verdict = meant if row["as_it_should_be"] else f"NOT {meant.upper()}"
        lines.append(
            f"{row['case']:<34}{row['vocabulary']:>6}{row['tokens']:>12}{shown}  {verdict}"
        )
    lines.append(f"{log['tokens']} tokens in {log['seconds']:.0f} s")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokens", type=float, default=1e8, help="default: 1e8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="file for the results, JSON (default: none)")
    options = parser.parse_args()
    soak = Soak(options.seed)
    soak.run(int(options.tokens))
    log = soak.log()
    if options.log is not None:
        with replacing(options.log) as unfinished:
            unfinished.write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    print(table(log))
    return 0 if all(row["as_it_should_be"] for row in log["cases"]) else 1


if __name__ == "__main__":
    sys.exit(main())
