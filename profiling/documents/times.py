"""How long sampling and decoding take: each operator, a step, and whole texts."""

from __future__ import annotations

from typing import Any

from ..tables import figure, table
from .results import RESULTS, Link, Row, content, paragraph, threads

OPERATORS = "bench-cpu/serving"
PEERS, DECODING = "peers/cpu", "gemma-decoding/cpu"
DEMO = "demo/results"
GAIN = {
    "ours": "**rdk_cuda**",
    "eager": "PyTorch, eager",
    "compiled": "PyTorch, `torch.compile`",
    "transformers": "Transformers",
}


def peers() -> list[Row]:
    """One step of a batch of 8, by all samplers that ran and were right; ours first."""
    return [
        row
        for row in content(f"{PEERS}.json")["rows"]
        if (row["sampler"], row["batch"], row["status"]) == ("virtual", 8, "right")
    ]


def workload(row: Row) -> str:
    """The size of a row, and where it was measured."""
    return (
        f"V_t {row['target_size']:,}, V_d {row['draft_size']:,} with virtual tokens, batch "
        f"{row['batch']}, K = {row['draft_length']}, {row['dtype']}, on {threads(row)} "
        f"of an {row['device_name']}"
    )


def full(link: Link, file: str) -> str:
    """Links to the full table and to its data."""
    page, data = f"{RESULTS}/{file}.md", f"{RESULTS}/{file}.json"
    return f"{link('all rows', page)}, {link('data', data)}"


def gain_table(link: Link) -> str:
    """README.md"""
    rows = {row["peer"]: row for row in peers()}
    lines = [
        [
            name,
            f"{rows[peer]['median_us'] / 1000:,.1f} ms",
            f"{figure(rows[peer]['ratio'])}×",
            f"{figure(rows[peer]['kept_bytes'] / 1000)} KB",
        ]
        for peer, name in GAIN.items()
    ]
    return "\n\n".join(
        [
            paragraph(
                "**Sampling one decoding step**: four drafts for each of 8 sequences, and",
                f"their verification. {workload(rows['ours'])} ({full(link, PEERS)}):",
            ),
            table(["", "time", "compared with ours", "kept for a drafted position"], lines, "lr"),
        ]
    )


def operators_table(link: Link) -> str:
    """docs/benchmarks.md"""
    rows = [
        row
        for row in content(f"{OPERATORS}.json")["rows"]
        if row["operator"] in ("draft+verify", "redistribute", "gather_logits")
    ]
    of = rows[0]
    growth = link("how time grows", f"{RESULTS}/bench-cpu/growth.png")
    lines = [
        [
            row["operator"]
            + (f", {row['accepted_mean']:.2f} accepted" if row["acceptance"] else ""),
            row["dtype"],
            f"{row['median_us']:.0f}",
            f"{100 * row['share_of_floor']:.0f} %",
            *(f"{row['peers'][peer]['ratio']:.3g}" for peer in ("eager", "compiled")),
        ]
        for row in rows
    ]
    titles = ["", "logits", "µs", "share of the floor", "times as fast as eager", "as compiled"]
    return "\n\n".join(
        [
            paragraph(
                f"On {threads(of)} of an {of['device_name']} with {of['capability']},",
                f"batch {of['batch']}, V_t {of['target_size']:,} and V_d {of['draft_size']:,} with",
                f"virtual tokens ({full(link, OPERATORS)}; {growth} and",
                f"{link('its data', f'{RESULTS}/bench-cpu/growth.json')}):",
            ),
            table(titles, lines, "llr"),
        ]
    )


def decoding_table(link: Link) -> str:
    """README.md"""
    rows = content(f"{DECODING}.json")["rows"]
    columns = sorted({(row["batch"], -row["temperature"]) for row in rows})
    best: dict[Any, Row] = {}
    for row in rows:
        key = row["decoder"], (row["batch"], -row["temperature"])
        if key not in best or row["tokens_per_second"][0] > best[key]["tokens_per_second"][0]:
            best[key] = row
    lines = [
        [name, *(speed_of(best[name, column]) for column in columns)]
        for name in dict.fromkeys(row["decoder"] for row in rows)
        if not name.startswith("screened,")
    ]
    first = rows[0]
    return "\n\n".join(
        [
            paragraph(
                f"**Tokens a second** with Gemma 3 270M in {first['dtype']} on {threads(first)} of",
                f"an {first['device_name']} with {first['capability']}, and in brackets × the",
                "target alone. The drafter is an EAGLE-3 head with all tokens, or pruned to the",
                "first 32,768; each at its best draft length",
                f"({link('where it loses', 'docs/benchmarks.md#decoding-with-a-real-model')},",
                f"{full(link, DECODING)}):",
            ),
            table(["", *(f"batch {batch}, T = {-at:g}" for batch, at in columns)], lines, "lr"),
        ]
    )


def demo_table(link: Link) -> str:
    """README.md"""
    found = content(f"{DEMO}.json")
    rows, about = found["speed"], found["versions"]
    hot = found["settings"]["temperature"]
    cells = {
        (row["way"], row["temperature"]): (
            f"{row['tokens_per_second']:.0f} ({row['relative_speed']['value']:.2f} ×)"
        )
        for row in rows
    }
    lines = [
        [f"**{way}**" if way == rows[-1]["way"] else way, cells[way, 0.0], cells[way, hot]]
        for way in dict.fromkeys(row["way"] for row in rows)
    ]
    return "\n\n".join(
        [
            paragraph(
                "**Tokens a second**, and × the target alone, decoding Python source at batch 1,",
                "with the repository's own models of 32 layers and of one, on one thread of an",
                f"{about['device_name']} (`make demo`, {link('data', f'{RESULTS}/{DEMO}.json')};",
                "a real model is further down):",
            ),
            table(["", "greedy", f"T = {hot:g}"], lines, "lr"),
        ]
    )


def speed_of(row: Row) -> str:
    """A decoder's cell."""
    return f"{row['tokens_per_second'][0]:.1f} ({row['speed_up'][0]:.2f} ×)"
