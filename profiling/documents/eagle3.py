"""EAGLE-3 drafters of a real model: what they lose to a small vocabulary, and tokens a second."""

from __future__ import annotations

from typing import Any

from rdk_cuda.calibration.methods import PRUNED

from ..tables import table
from .acceptance import name_of, share_of
from .results import RESULTS, Link, Row, content, paragraph, threads

LIFTED = {
    "lifted-rows/demo.json": "of the demo, with 2,048 of 16,384 tokens, chosen on other text",
    "lifted-rows/gemma.json": "of Gemma 3 270M, of 450 steps, with 32,768 of 262,144 tokens",
}
HEADS = "gemma-heads/cpu.json"
DECODING = "gemma-decoding/cpu.json", "gemma-decoding/cpu-avx2.json"


def losses_table(link: Link) -> str:
    """docs/calibration.md"""
    found = [row for row in content(HEADS)["rows"] if "lost" in row]
    rows: dict[tuple[str, float, str], dict[float, Row]] = {}
    for row in found:
        key = row["text"], row["keep"], row["chosen"]
        rows.setdefault(key, {})[row["temperature"]] = row
    temperatures = sorted({row["temperature"] for row in found}, reverse=True)
    sizes = {row["text"]: row["positions"] for row in found}
    positions = " and ".join(f"{size} positions of {text}" for text, size in sizes.items())
    lines = [
        [f"{text}, {100 * keep:.3g} % kept, {chosen}", *(loss_of(own[at]) for at in temperatures)]
        for (text, keep, chosen), own in rows.items()
    ]
    return "\n\n".join(
        [
            paragraph(
                "What an EAGLE-3 drafter of Gemma 3 270M loses to a small vocabulary, by",
                "`python -m examples.eagle3.gemma --steps 1300`, which took 27 minutes on two",
                "threads with AVX-512. It has all tokens and is pruned to those that are likely in",
                "*like text*, or to the tokenizer's first ones, *a general vocabulary*. Acceptance",
                "with all tokens, and what is lost, in percent with 95 % intervals, on",
                f"{positions} that it has not read ({link('data', f'{RESULTS}/{HEADS}')}, made by",
                "`python -m profiling.studies.gemma_heads`):",
            ),
            table(["", *(f"T = {at:g}" for at in temperatures)], lines, "lr"),
        ]
    )


def loss_of(row: Row) -> str:
    """Acceptance, and the loss with its interval, in percent."""
    return f"{100 * row['full'][0]:.1f}, {lost_of(row)}"


def heads_table(_: Link) -> str:
    """docs/calibration.md"""
    rows = [
        row for row in content(HEADS)["rows"] if row.get("recovered") and row.get("batch", 1) == 1
    ]
    shares: dict[tuple[str, float, float], dict[str, str]] = {}
    for row in rows:
        own = shares.setdefault((row["text"], row["keep"], row["temperature"]), {})
        own[name_of(row["method"], 1, row.get("budget"))] = share_of(row["recovered"])
    methods = list(dict.fromkeys(method for own in shares.values() for method in own))
    lines = [
        [
            f"{text}, {100 * keep:.3g} %, " + (f"T = {temperature:g}" if temperature else "greedy"),
            *(own.get(method, "") for method in methods),
        ]
        for (text, keep, temperature), own in shares.items()
    ]
    return "\n\n".join(
        [
            paragraph(
                "What comes back of that with a general vocabulary, in percent, where the drafter",
                "has its own rows of the other tokens and decodes one sequence; the same data has",
                "batches of 8:",
            ),
            table(["", *methods], lines, "lr"),
        ]
    )


def lifted_table(link: Link) -> str:
    """docs/calibration.md"""
    found = {file: content(file) for file in LIFTED}
    (screen_bytes,) = {each["screen_bytes"] for each in found.values()}
    parts = [
        paragraph(
            "What comes back for EAGLE-3 drafters whose pruned rows nobody has. First the points",
            "of acceptance that such a drafter has less than one of the same recipe with all",
            "tokens; then the points that are gained, and in brackets the recovered share in",
            "percent where something is lost by more than chance; all with 95 % intervals, on",
            "modules that nothing was trained or calibrated on. *virtual+dynamic* has recent,",
            f"successor and screened tokens, at {100 * screen_bytes:g} % of the bytes. Made by",
            "`python -m profiling.studies.lifted_rows`.",
        )
    ]
    for file, which in LIFTED.items():
        first = found[file]["rows"][0]
        where = f"{first['positions']:,} positions of {first['documents']} modules"
        data = link("data", f"{RESULTS}/{file}")
        parts += [
            paragraph(f"The drafter {which}, on {where} ({data}):"),
            lifted_lines(found[file]),
        ]
    return "\n\n".join(parts)


def lifted_lines(found: Row) -> str:
    """The table of one drafter."""
    rows: dict[str, dict[float, Row]] = {}
    for row in found["rows"]:
        rows.setdefault(row["method"], {})[row["temperature"]] = row
    temperatures = sorted(rows[PRUNED], reverse=True)
    lines = [["lost", *(lost_of(rows[PRUNED][at]) for at in temperatures)]]
    lines += [
        [method, *(lifted_of(own[at]) for at in temperatures)]
        for method, own in rows.items()
        if method != PRUNED
    ]
    return table(["", *(f"T = {at:g}" if at else "greedy" for at in temperatures)], lines, "lr")


def lost_of(row: Row) -> str:
    """Points of acceptance."""
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * end for end in row["lost"]))


def lifted_of(row: Row) -> str:
    """Points gained, and the share of what was lost."""
    gain = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * end for end in row["gain"]))
    if row["recovered"] is None:
        return gain
    return f"{gain} ({share_of(row['recovered'])})"


def decoding_table(link: Link) -> str:
    """docs/benchmarks.md"""
    return "\n\n".join(decoding_part(link, file) for file in DECODING)


def decoding_part(link: Link, file: str) -> str:
    """What one machine measured."""
    rows = content(file)["rows"]
    columns = sorted({(row["batch"], -row["temperature"]) for row in rows})
    best: dict[Any, Row] = {}
    for row in rows:
        key = row["decoder"], (row["batch"], -row["temperature"])
        if key not in best or row["tokens_per_second"][0] > best[key]["tokens_per_second"][0]:
            best[key] = row
    lines = [
        [name, *(speed_of(best[name, column]) for column in columns)]
        for name in dict.fromkeys(row["decoder"] for row in rows)
    ]
    titles = [f"batch {batch}, T = {-at:g}" for batch, at in columns]
    first = rows[0]
    return "\n\n".join(
        [
            paragraph(
                f"Tokens a second with Gemma 3 270M in {first['dtype']} on {threads(first)} of an",
                f"{first['device_name']} with {first['capability']}, with one drafter, full and",
                f"pruned to the first 32,768 tokens: the median of {first['rounds']} rounds at the",
                "best draft length K, in brackets × the target alone, accepted drafts a pass, and",
                f"K ({link('data', f'{RESULTS}/{file}')},",
                f"{link('all K and the parts of a step', tables_of(file))},",
                "made by `python -m profiling.studies.gemma_decoding`):",
            ),
            table(["", *titles], lines, "lr"),
        ]
    )


def tables_of(data: str) -> str:
    """The page next to a result file."""
    return f"{RESULTS}/{data.removesuffix('.json')}.md"


def speed_of(row: Row) -> str:
    """A decoder's cell."""
    speed, ratio = row["tokens_per_second"][0], row["speed_up"][0]
    if row["draft_length"] == 0:
        return f"{speed:.1f} ({ratio:.2f} ×)"
    return f"{speed:.1f} ({ratio:.2f} ×, {row['accepted_length']:.2f}, {row['draft_length']})"
