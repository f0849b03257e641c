"""How long sampling and decoding take: each operator, a step, and whole texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..bench import host
from ..tables import figure, table
from .results import RESULTS, Link, Row, content, paragraph, threads

OPERATORS = "bench-cpu/serving"
ON_GPU, TRAINED_ON_GPU = "bench-gpu/serving", "bench-gpu/training"
HOST, PREDICTED = "host/cpu", "predictions/h200"
PEERS, PEERS_ON_GPU, DECODING = "peers/cpu", "peers/gpu", "gemma-decoding/cpu"
DEMO, REAL = "demo/results", "demo-gemma/results"
SHOWN = {  # of the GPU's, in bfloat16
    "draft": (1, 64),
    "draft+verify": (1, 64, 256),
    "redistribute": (64,),
    "overlap+backward": (512,),
}
GAIN = {
    "ours": "**rdk_cuda**",
    "eager": "PyTorch, eager",
    "compiled": "PyTorch, `torch.compile`",
    "transformers": "Transformers",
    "flashinfer": "FlashInfer",
    "vllm-v2": "vLLM V2",
    "sglang-chain": "SGLang",
}


def peers(file: str = PEERS, batch: int = 8) -> list[Row]:
    """One step of a batch, by all samplers that ran and were right; ours first."""
    return [
        row
        for row in content(f"{file}.json")["rows"]
        if (row["sampler"], row["batch"], row["status"]) == ("virtual", batch, "right")
    ]


def size(row: Row) -> str:
    """Of the vocabularies, and what logits are."""
    sizes = f"V_t {row['target_size']:,}, V_d {row['draft_size']:,}"
    return f"{sizes} with virtual tokens, {row['dtype']}"


def workload(row: Row) -> str:
    """The size of a row, and where it was measured."""
    batch = f"batch {row['batch']}, K = {row['draft_length']}"
    return f"{size(row)}, {batch}, on {threads(row)} of an {row['device_name']}"


def full(link: Link, file: str) -> str:
    """Links to the full table and to its data."""
    page, data = f"{RESULTS}/{file}.md", f"{RESULTS}/{file}.json"
    return f"{link('all rows', page)}, {link('data', data)}"


def gain_table(link: Link) -> str:
    """README.md"""
    return step_table(link, PEERS_ON_GPU, (1, 64))


def gain_on_cpu_table(link: Link) -> str:
    """docs/benchmarks.md"""
    return step_table(link, PEERS, (1, 8))


def step_table(link: Link, file: str, batches: Sequence[int]) -> str:
    """What a step takes by each sampler that ran on a machine, at some batch sizes."""
    measured = [{row["peer"]: row for row in peers(file, batch)} for batch in batches]
    ours = [rows["ours"] for rows in measured]
    lines = [
        [
            name + version_of(measured[0][peer]),
            *(
                cell
                for rows in measured
                for cell in time_and_ratio(rows[peer]["median_us"], rows["ours"]["median_us"])
            ),
            figure(measured[0][peer]["kept_bytes"] / 1000),
        ]
        for peer, name in GAIN.items()
        if all(peer in rows for rows in measured)
    ]
    titles = [title for batch in batches for title in (f"batch {batch}, ms", "× ours")]
    on_gpu, where = ours[0]["device"] == "cuda", f"an {ours[0]['device_name']}"
    where = where if on_gpu else f"{threads(ours[0])} of {where}"
    return "\n\n".join(
        [
            paragraph(
                f"**Sampling one decoding step** on {where}: {ours[0]['draft_length']} drafts and",
                f"their verification, a target of {ours[0]['target_size']:,} tokens, a drafter of",
                f"{ours[0]['draft_size']:,} with virtual tokens, {ours[0]['dtype']}, caches cold.",
                "× ours is the ratio of the times shown, before rounding. Memory is what a drafted",
                f"position keeps between draft and verify ({full(link, file)}):",
            ),
            table(["", *titles, "memory, KB"], lines, "lr"),
        ]
    )


def version_of(row: Row) -> str:
    """Of another package; PyTorch's and ours stand elsewhere."""
    if row["module"] in ("rdk_cuda", "torch"):
        return ""
    return f" {row['peer_version']}"


def time_and_ratio(median_us: float, ours_us: float) -> tuple[str, str]:
    """In milliseconds, and the ratio of the two."""
    return f"{median_us / 1000:,.2f}", figure(median_us / ours_us)


def operators_table(link: Link) -> str:
    """docs/benchmarks.md"""
    rows = [
        row
        for row in content(f"{OPERATORS}.json")["rows"]
        if row["operator"] in ("draft+verify", "redistribute", "gather_logits")
        and row["dtype"] == "bfloat16"
    ]
    of = rows[0]
    growth = link("how time grows", f"{RESULTS}/bench-cpu/growth.png")
    lines = [
        [
            row["operator"]
            + (f", {row['accepted_mean']:.2f} accepted" if row["acceptance"] else ""),
            f"{row['median_us']:.0f}",
            f"{100 * row['share_of_floor']:.0f} %",
            *(f"{row['peers'][peer]['ratio']:.3g}" for peer in ("eager", "compiled")),
        ]
        for row in rows
    ]
    titles = ["", "µs", "share of the floor", "times as fast as eager", "as compiled"]
    return "\n\n".join(
        [
            paragraph(
                f"On {threads(of)} of an {of['device_name']} with {of['capability']},",
                f"batch {of['batch']}, {size(of)} ({full(link, OPERATORS)}; {growth},",
                f"{link('data', f'{RESULTS}/bench-cpu/growth.json')}):",
            ),
            table(titles, lines, "lr"),
        ]
    )


def gpu_table(link: Link) -> str:
    """docs/benchmarks.md"""
    files = (ON_GPU, TRAINED_ON_GPU)
    found = [row for file in files for row in content(f"{file}.json")["rows"]]
    rows = [
        row
        for row in found
        if row["dtype"] == "bfloat16" and row["batch"] in SHOWN.get(row["operator"], ())
    ]
    lines = [
        [
            row["operator"],
            f"{row['batch']}",
            f"{row['accepted_mean']:.2f}" if row["acceptance"] else "",
            figure(row["median_us"]),
            figure(row["floor_us"]),
            f"{row['peers']['eager']['ratio']:.3g}",
        ]
        for row in rows
    ]
    titles = ["", "batch", "accepted of 5", "µs", "floor, µs", "times as fast as eager"]
    return "\n\n".join(
        [
            paragraph(
                f"On an {rows[0]['device_name']}, driver {rows[0]['driver']}, torch",
                f"{rows[0]['torch']}, {size(rows[0])}, caches cold",
                f"({full(link, ON_GPU)}; training: {full(link, TRAINED_ON_GPU)}):",
            ),
            table(titles, lines, "lr"),
        ]
    )


def predictions_table(link: Link) -> str:
    """docs/benchmarks.md"""
    found, key = content(f"{PREDICTED}.json"), ("operator", "batch", "acceptance")
    measured = {
        tuple(row[name] for name in key): row
        for row in content(f"{ON_GPU}.json")["rows"]
        if row["dtype"] == found["dtype"] and row["stats"] is not False
    }
    lines = []
    for row in found["rows"]:
        own = measured.get(tuple(row[name] for name in key))
        if own is None or row["batch"] not in (1, 64):
            continue
        lines.append(
            [
                row["operator"],
                f"{row['batch']}",
                row["acceptance"] or "",
                *map(figure, (own["median_us"], row["measured_kernels_us"], row["kernels_us"])),
            ]
        )
    titles = ["", "batch", "acceptance", "measured", "predicted of it", "predicted now"]
    return "\n\n".join(
        [
            paragraph(
                f"Microseconds with the launch on an {found['device_name']}, caches cold,",
                f"{size(found)}, five drafts, at commit {found['commit'][:7]} and later",
                f'({link("data", f"{RESULTS}/{PREDICTED}.json")}). **Nothing under "predicted',
                "now\" has been measured:** a simulator outside of this repository executes nvcc's",
                "machine code by the cycle. Compare its predictions of the measured kernels:",
            ),
            table(titles, lines, "lrlr"),
            paragraph(
                "Rows that miss by more than half a microsecond what was aimed at, and what the",
                "kernel's critical path waits for in the same simulator: code that is in no cache,",
                "loads (latency), instructions before it (issue) or of other warps (slots):",
            ),
            missed_table(found["rows"]),
        ]
    )


def missed_table(rows: Sequence[Row]) -> str:
    """Say what bounds the predicted rows, of those that know it."""
    titles = ["", "batch", "acceptance", "aim", "predicted", "µs of it", "bound by"]
    lines = [
        [
            row["operator"],
            f"{row['batch']}",
            row["acceptance"] or "",
            figure(row["aim_us"]),
            figure(row["kernels_us"]),
            ", ".join(f"{why} {figure(time)}" for why, time in row.get("path_us", {}).items()),
            row["bound_by"],
        ]
        for row in rows
        if "bound_by" in row
    ]
    return table(titles, lines, "lrlrrll")


def host_table(link: Link) -> str:
    """docs/benchmarks.md"""
    rows = [row for row in content(f"{HOST}.json")["rows"] if row["call"].startswith("a step")]
    return "\n\n".join(
        [
            paragraph(
                f"On {threads(rows[0])} of an {rows[0]['device_name']}, batch 1, K =",
                f"{rows[0]['draft_length']}, V_t 64 ({full(link, HOST)}):",
            ),
            table(host.COLUMNS, map(host.cells, rows), "lr"),
        ]
    )


def demo_table(link: Link) -> str:
    """docs/benchmarks.md"""
    found = content(f"{DEMO}.json")
    return "\n\n".join(
        [
            paragraph(
                "**Tokens a second**, and in brackets × the target alone (medians of paired runs),",
                "decoding Python source at batch 1, with the repository's own models of 32 layers",
                f"and of one, on {threads(found['versions'])} of an",
                found["versions"]["device_name"],
                f"(`make demo`, {link('data', f'{RESULTS}/{DEMO}.json')}):",
            ),
            speeds_table(found),
        ]
    )


def decoding_table(link: Link) -> str:
    """README.md"""
    found = content(f"{REAL}.json")
    about = found["versions"]
    return "\n\n".join(
        [
            paragraph(
                "**Tokens a second**, and in brackets × the target alone (medians of paired runs,",
                "not ratios of the figures shown), with Gemma 3 270M and an EAGLE-3 head, on",
                f"{threads(about)} of an {about['device_name']}. The number of drafts",
                "was chosen for each way, on other text",
                f"(`make demo-gemma`, {link('data', f'{RESULTS}/{REAL}.json')},",
                f"{link('where it loses', 'docs/benchmarks.md#decoding-with-a-real-model')}):",
            ),
            speeds_table(found),
        ]
    )


def speeds_table(found: dict[str, Any]) -> str:
    """Ways to decode by batch and temperature, as a demo has measured them."""
    rows, batches = found["speed"], found["settings"]["batches"]
    cases = dict.fromkeys((row["batch"], row["temperature"]) for row in rows)
    cells = {
        (row["way"], (row["batch"], row["temperature"])): (
            f"{row['tokens_per_second']:.0f} ({row['relative_speed']['value']:.2f})"
        )
        for row in rows
    }
    lines = [
        [f"**{way}**" if way == rows[-1]["way"] else way, *(cells[way, case] for case in cases)]
        for way in dict.fromkeys(row["way"] for row in rows)
    ]
    names = [
        ("" if batches == [1] else f"batch {batch}, ") + (f"T = {at:g}" if at else "greedy")
        for batch, at in cases
    ]
    return table(["", *names], lines, "lr")


def passes_table(link: Link) -> str:
    """docs/benchmarks.md"""
    rows = content(f"{DECODING}.json")["rows"]
    of = rows[0]
    lines = [
        [
            f"{batch}",
            f"{length or 'none'}",
            f"{own[0]['pass_milliseconds'][0]:.1f}",
            f"{own[0]['draft_milliseconds'][0]:.1f}",
            *(f"{row[name][0]:.2f}" for name in ("speed_up", "while_all") for row in own),
        ]
        for batch, length in dict.fromkeys((row["batch"], row["draft_length"]) for row in rows)
        if (own := [r for r in rows if (r["batch"], r["draft_length"]) == (batch, length)])
    ]
    titles = ["batch", "drafts", "target's pass, ms", "drafting, ms"]
    titles += [f"×, {at}" for at in ("greedy", "T = 1")]
    titles += [f"all run, {at}" for at in ("greedy", "T = 1")]
    return "\n\n".join(
        [
            paragraph(
                f"Gemma 3 270M in {of['dtype']} on {threads(of)} of an {of['device_name']} with",
                f"{of['capability']}, with virtual and dynamic tokens and {of['kept']:,} tokens",
                f"kept: a step's times, and the speed of {of['tokens']} tokens a sequence, × the",
                "target alone (medians of paired rounds). *All run* ends with the first sequence",
                f"({full(link, DECODING)}, made by `python -m studies.gemma_decoding`):",
            ),
            table(titles, lines, "r"),
        ]
    )
