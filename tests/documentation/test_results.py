"""The README quotes no figure but those of a committed result."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def demo(folder: str) -> list[dict]:
    table: list[dict] = json.loads(
        (ROOT / "profiling/results" / folder / "results.json").read_text()
    )["table"]
    return table


def readme_rows() -> list[list[str]]:
    text = (ROOT / "README.md").read_text()
    table = text.split("<!-- demo table -->")[1].split("<!-- end of demo table -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def shown(row: dict) -> list[str]:
    acceptance, recovered = row["acceptance"], row["recovered"]
    share = [f"{100 * recovered[key]:.0f}" for key in ("value", "low", "high")] if recovered else []
    return [
        str(row["head_rows"]),
        f"{acceptance['value']:.3f}" if acceptance else "",
        f"{share[0]} [{share[1]}, {share[2]}]" if share else "",
        f"{row['accepted_length']:.2f}" if acceptance else "",
        f"{row['target_passes_per_token']:.3f}",
        f"{row['tokens_per_second']:.0f}",
    ]


def test_the_demo_table_is_that_of_the_committed_run() -> None:
    rows, results = readme_rows(), demo("demo")
    assert len(rows) == len(results) == 8
    for cells, result in zip(rows, results, strict=True):
        assert cells[0].endswith(result["method"])
        assert cells[1:] == shown(result)


def test_what_virtual_tokens_recover_at_a_low_temperature_is_that_of_the_committed_run() -> None:
    shares = [
        f"{100 * row['recovered']['value']:.0f} %"
        for row in demo("demo-temperature-0.7")
        if row["method"] == "virtual tokens"
    ]
    assert f"shows {shares[0]}\n  and {shares[1]} of the loss" in (ROOT / "README.md").read_text()
