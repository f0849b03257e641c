"""How long sampling takes: alone, in a decoding step, and with other samplers."""

from __future__ import annotations

from ..tables import figure, table
from .results import RESULTS, Link, Row, content, paragraph, threads


def peers() -> list[Row]:
    """One step of a batch of 8, by all samplers that ran and were right; ours first."""
    return [
        row
        for row in content("peers/cpu.json")["rows"]
        if (row["sampler"], row["batch"], row["status"]) == ("virtual", 8, "right")
    ]


def workload(row: Row) -> str:
    """The size of a row, and where it was measured."""
    return (
        f"V_t {row['target_size']:,}, V_d {row['draft_size']:,} with virtual tokens, batch "
        f"{row['batch']}, K = {row['draft_length']}, {row['dtype']}, on {threads(row)} "
        f"of an {row['device_name']}"
    )


def peers_table(link: Link) -> str:
    """docs/benchmarks.md"""
    rows = peers()
    lines = [
        [
            row["peer"],
            f"{row['median_us']:,.0f}",
            figure(row["ratio"]),
            figure(row["kept_bytes"] / 1000),
        ]
        for row in rows
    ]
    return "\n\n".join(
        [
            paragraph(
                f"One step at {workload(rows[0])} ({link('data', f'{RESULTS}/peers/cpu.json')},",
                f"{link('tables', f'{RESULTS}/peers/cpu.md')}):",
            ),
            table(["", "µs", "times ours", "KB kept for a drafted position"], lines, "lr"),
        ]
    )


def step_rows() -> list[Row]:
    """Steps of a batch of 8, without those of drafters that are only pruned."""
    return [
        row
        for row in content("end-to-end/cpu-serving.json")["rows"]
        if row["batch"] == 8 and row["head"].startswith(("full", "virtual"))
    ]


def step_table(link: Link) -> str:
    """docs/benchmarks.md"""
    parts = ("drafter body", "drafter head", "draft", "target", "verify")
    rows, folder = step_rows(), f"{RESULTS}/end-to-end"
    lines = [
        [
            row["head"],
            row["sampling"],
            *(f"{figure(1000 * row['parts'][part])} ({row['shares'][part]:.0%})" for part in parts),
            figure(1000 * row["step_seconds"]),
        ]
        for row in rows
    ]
    return "\n\n".join(
        [
            paragraph(
                f"At batch {rows[0]['batch']} on {rows[0]['threads']} threads of an",
                f"{rows[0]['device_name']}, a drafter of one layer and a target of two, bfloat16,",
                "in milliseconds and shares of the step",
                f"({link('data', f'{folder}/cpu-serving.json')},",
                f"{link('tables', f'{folder}/cpu-serving.md')}):",
            ),
            table(
                ["drafter", "sampling", *(p.removeprefix("drafter ") for p in parts), "step"],
                lines,
                "llr",
            ),
        ]
    )


GAIN = {
    "ours": "**rdk_cuda**",
    "eager": "PyTorch, eager",
    "compiled": "PyTorch, `torch.compile`",
    "transformers": "Transformers",
}


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
    steps = {row["sampling"]: row for row in step_rows() if row["head"] == "virtual tokens, 25 %"}
    whole = [f"{1000 * steps[by]['step_seconds']:.0f} ms" for by in ("PyTorch", "rdk_cuda")]
    return "\n\n".join(
        [
            paragraph(
                "**Sampling one decoding step**: four drafts for each of 8 sequences, and",
                f"their verification. {workload(rows['ours'])}:",
            ),
            table(["", "time", "compared with ours", "kept for a drafted position"], lines, "lr"),
            paragraph(
                "Sampling is a part of a step. On the same machine a whole step of random models",
                f"of serving width takes {whole[0]} with PyTorch's sampling and {whole[1]} with",
                f"ours ({link('benchmarks', 'docs/benchmarks.md')}).",
            ),
        ]
    )


def operators_table(link: Link) -> str:
    """docs/benchmarks.md"""
    rows = [
        row
        for row in content("bench-cpu/serving.json")["rows"]
        if row["operator"] in ("draft+verify", "redistribute", "gather_logits")
    ]
    of = rows[0]
    folder = f"{RESULTS}/bench-cpu"
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
                f"On {of['threads']} threads of an {of['device_name']} with {of['capability']},",
                f"batch {of['batch']}, V_t {of['target_size']:,} and V_d {of['draft_size']:,} with",
                f"virtual tokens ({link('data', f'{folder}/serving.json')},",
                f"{link('growth', f'{folder}/growth.png')},",
                f"{link('its data', f'{folder}/growth.json')}):",
            ),
            table(titles, lines, "llr"),
        ]
    )
