"""The results file, which --resume reads, and the table that is printed last."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .machine import SAME
from .running import Outcome

FILE = "results.json"


def load(output: Path, machine: Mapping[str, Any]) -> dict[str, Outcome]:
    """What the results file says of the same sources on the same GPU; nothing of others."""
    try:
        saved = json.loads((output / FILE).read_text(encoding="utf-8"))
        if any(saved["machine"].get(name) != machine.get(name) for name in SAME):
            return {}
        return {name: Outcome(**outcome) for name, outcome in saved["parts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def save(output: Path, machine: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> None:
    """Whole or not at all, after every part."""
    output.mkdir(parents=True, exist_ok=True)
    parts = {name: outcome.as_json() for name, outcome in outcomes.items()}
    text = json.dumps({"machine": dict(machine), "parts": parts}, indent=2)
    unfinished = output / f"{FILE}.unfinished"
    unfinished.write_text(text + "\n", encoding="utf-8")
    os.replace(unfinished, output / FILE)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need; numbers, in the third, to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[2] = row[2].rjust(widths[2])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def summary(outcomes: Mapping[str, Outcome]) -> str:
    rows = [("part", "outcome", "seconds", "")]
    rows += [(name, o.outcome, f"{o.seconds:.1f}", o.detail[:120]) for name, o in outcomes.items()]
    return table(rows)


def in_words(machine: Mapping[str, Any]) -> str:
    """One line: what the results are of."""
    commit = str(machine.get("commit") or "unknown")[:12]
    changed = " with changes" if machine.get("dirty") else ""
    return (
        f"{machine.get('gpu')}, driver {machine.get('driver')}, torch {machine.get('torch')}, "
        f"nvcc {machine.get('nvcc')}, commit {commit}{changed}, sources {machine.get('sources')}"
    )
