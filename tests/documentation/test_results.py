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


def readme_rows(first_cells: str) -> list[list[str]]:
    """The cells of the demo's table that begins with these."""
    text = (ROOT / "README.md").read_text()
    part = text.split("<!-- demo table -->")[1].split("<!-- end of demo table -->")[0]
    table = part.split(first_cells)[1].split("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def share(row: dict) -> str:
    if row["recovered"] is None:
        return ""
    value, low, high = (100 * row["recovered"][key] for key in ("value", "low", "high"))
    return f"{value:.0f} [{low:.0f}, {high:.0f}]"


def shown(row: dict) -> list[str]:
    acceptance, columns = row["acceptance"], row["dynamic_columns"]
    return [
        f"{row['head_rows']}" + (f"+{columns:.0f}" if columns else ""),
        f"{acceptance['value']:.3f}" if acceptance else "",
        share(row),
        f"{row['accepted_length']:.2f}" if acceptance else "",
        f"{row['target_passes_per_token']:.3f}",
        f"{row['tokens_per_second']:.0f}",
    ]


def test_the_demo_table_is_that_of_the_committed_run() -> None:
    rows, results = readme_rows("| | head rows "), demo("demo")
    assert len(rows) == len(results) == 12
    for cells, result in zip(rows, results, strict=True):
        assert cells[0].endswith(result["method"])
        assert cells[1:] == shown(result)


def test_what_is_recovered_at_a_low_temperature_is_that_of_the_committed_run() -> None:
    rows, results = readme_rows("| % of the loss recovered, temp"), demo("demo-temperature-0.7")
    assert [cells[0] for cells in rows] == ["dynamic tokens", "virtual tokens", "virtual+dynamic"]
    for method, *shares in rows:
        assert shares == [share(row) for row in results if row["method"] == method]


def test_the_benchmark_table_is_that_of_the_committed_run() -> None:
    results = ROOT / "profiling/results/bench-cpu/targets.json"
    rows = json.loads(results.read_text())["rows"]
    shown = {
        (
            row["operator"]
            + (f", {row['accepted_mean']:.2f} accepted" if row["acceptance"] else ""),
            row["dtype"],
            f"{row['median_us']:.0f}",
            f"{100 * row['share_of_floor']:.0f} %",
            *(f"{row['peers'][peer]['ratio']:.3g}" for peer in ("eager", "compiled")),
        )
        for row in rows
    }
    table = (ROOT / "README.md").read_text().split("| | logits | µs |")[1].split("\n\n")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    assert len(lines) == 8
    assert {tuple(cell.strip() for cell in line) for line in lines} <= shown


def test_the_growth_of_first_order_rdk_is_that_of_the_committed_run() -> None:
    folder = ROOT / "profiling/results/first-order-growth"
    content = json.loads((folder / "results.json").read_text())
    fastest = {
        row["form"]: f"{1000 * row['fastest_seconds']:.1f} ms"
        for row in content["rows"]
        if row["size"] == 8192
    }
    text = " ".join((ROOT / "README.md").read_text().split())
    exponents = content["exponents"]
    assert (
        f"its time grows as V^{exponents['first-order']:.2f} with a shared vocabulary V, that of "
        f"the dense matrix as V^{exponents['dense']:.2f}; at 8,192 tokens {content['batch']} rows "
        f"take {fastest['first-order']} and {fastest['dense']}"
    ) in text


def test_the_cost_of_calibration_is_that_of_the_committed_run() -> None:
    content = json.loads((ROOT / "profiling/results/calibration-scale/cpu.json").read_text())
    minutes = sum(row["seconds"] for row in content["rows"]) / 60
    peak = max(row["peak_bytes"] for row in content["rows"]) / 1e9
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"With a vocabulary of {content['tokens']:,} and a width of {content['width']:,}, "
        f"clusters, rows and offsets of {content['virtual']} virtual tokens take "
        f"{minutes:.0f} minutes and {peak:.1f} GB"
    ) in text


def test_the_calibration_table_is_that_of_the_committed_report() -> None:
    text = (ROOT / "README.md").read_text()
    part = text.split("<!-- acceptance report -->")[1].split("<!-- end of acceptance report -->")[0]
    header, _, *lines = [line for line in part.splitlines() if line.startswith("|")]
    columns = [(1.0, 0.25), (1.0, 0.0625), (0.7, 0.25), (0.7, 0.0625)]
    for cell, (temperature, keep) in zip(header.split("|")[2:-1], columns, strict=True):
        assert cell.strip() == f"{100 * keep:g} % kept, T = {temperature:g}"
    recovered = {}
    for name in ("methods", "sharp"):
        content = json.loads((ROOT / f"profiling/results/acceptance/{name}.json").read_text())
        for row in content["rows"]:
            ends = [row["recovered"], row["recovered_low"], row["recovered_high"]]
            at = (row["pair"], row["method"], row["temperature"], row["keep"])
            recovered[at] = (
                None
                if None in ends
                else "{:.0f} [{:.0f}, {:.0f}]".format(*(100 * end for end in ends))
            )
    assert len(lines) >= 4
    for line in lines:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        pair, method = name.split(": ")
        assert cells == [recovered[(pair.removesuffix(" models"), method, *at)] for at in columns]


def assisted(row: dict) -> list[str]:
    return [f"{row['accepted_length']:.2f}", f"{row['tokens_per_second']:.0f}"]


def test_the_table_of_assisted_generation_is_that_of_the_committed_run() -> None:
    content = json.loads((ROOT / "profiling/results/assisted/results.json").read_text())
    greedy, warm = (
        {(row["way"], row["batch"]): row for row in content["rows"] if row["temperature"] == at}
        for at in (0, 1)
    )
    assert all(row["same_greedy_text"]["passed"] for row in greedy.values())
    text = (ROOT / "README.md").read_text()
    part = text.split("<!-- assisted generation -->")[1].split("<!-- end of assisted")[0]
    lines = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")][2:]
    expected = [
        [str(batch), *assisted(greedy[way, batch]), *assisted(warm[way, batch])]
        for way, batch in sorted(greedy, key=lambda key: key[1])
    ]
    assert [[cell.strip() for cell in line[1:]] for line in lines] == expected


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table_between(name: str) -> list[list[str]]:
    """The cells of the table within the comments of that name."""
    text = (ROOT / "README.md").read_text()
    part = text.split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]
    lines = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def rows_of(file: str) -> list[dict]:
    rows: list[dict] = json.loads((ROOT / "profiling/results" / file).read_text())["rows"]
    return rows


def test_the_table_of_peers_is_that_of_the_committed_run() -> None:
    expected = [
        [
            row["peer"],
            f"{row['median_us']:,.0f}",
            figure(row["ratio"]),
            figure(row["kept_bytes"] / 1000),
        ]
        for row in rows_of("compare/cpu.json")
        if (row["sampler"], row["batch"], row["status"]) == ("virtual", 8, "right")
    ]
    assert len(expected) >= 5
    assert table_between("peers") == expected


def test_the_table_of_a_decoding_step_is_that_of_the_committed_run() -> None:
    parts = ("drafter body", "drafter head", "draft", "target", "verify")
    expected = [
        [
            row["head"],
            row["sampling"],
            *(f"{figure(1000 * row['parts'][part])} ({row['shares'][part]:.0%})" for part in parts),
            figure(1000 * row["step_seconds"]),
        ]
        for row in rows_of("end-to-end/cpu-serving.json")
        if row["batch"] == 8 and row["head"].startswith(("full", "virtual"))
    ]
    assert len(expected) == 6
    assert table_between("decoding step") == expected
