"""The results file, which --resume reads, the archive, and the table that is printed last."""

from __future__ import annotations

import json
import os
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .machine import SAME
from .running import Outcome

FILE = "results.json"
UNFINISHED = ".unfinished"  # ends the names of files that are being written
LARGEST = 15e6  # bytes of an archive: a machine may hand back no larger file


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
    unfinished = output / f"{FILE}{UNFINISHED}"
    unfinished.write_text(text + "\n", encoding="utf-8")
    os.replace(unfinished, output / FILE)


def archive(folder: Path, results: Path) -> tuple[Path, list[str]]:
    """The folder as one file in `results`, whole or not at all, and which files had no room."""
    results.mkdir(parents=True, exist_ok=True)
    target = results / f"{folder.name}.tar.gz"
    unfinished = target.with_name(f"{target.name}{UNFINISHED}")
    own = (target, unfinished)  # `results` may lie in the folder
    files = [path for path in folder.rglob("*") if path.is_file() and path not in own]
    left_out, size = [], 0
    with tarfile.open(unfinished, "w:gz") as file:
        for path in sorted(files, key=lambda path: (path.stat().st_size, path)):
            name = str(path.relative_to(folder.parent))
            packed = len(zlib.compress(path.read_bytes(), 1)) + 1024  # with what says its name
            if size + packed > LARGEST:
                left_out.append(name)
            else:
                size += packed
                file.add(path, name)
    os.replace(unfinished, target)
    return target, left_out


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
