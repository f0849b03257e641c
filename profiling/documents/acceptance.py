"""How much acceptance comes back, and what calibration takes."""

from __future__ import annotations

from collections.abc import Sequence

from ..tables import table
from .results import RESULTS, Link, Row, content, paragraph, threads


def demo_share(row: Row) -> str:
    """Percent of the loss with its interval; empty if nothing was lost."""
    if row["recovered"] is None:
        return ""
    return share_of([row["recovered"][key] for key in ("value", "low", "high")])


def demo_cells(row: Row) -> list[str]:
    """The cells of a row of the demo's table after its method."""
    acceptance, columns = row["acceptance"], row["dynamic_columns"]
    return [
        f"{row['head_rows']}" + (f"+{columns:.0f}" if columns else ""),
        f"{acceptance['value']:.3f}" if acceptance else "",
        demo_share(row),
        f"{row['accepted_length']:.2f}" if acceptance else "",
        f"{row['target_passes_per_token']:.3f}",
        f"{row['tokens_per_second']:.0f}",
    ]


def demo_table(link: Link) -> str:
    """docs/benchmarks.md"""
    found = content("demo/results.json")
    lines, keep = [], None
    for row in found["table"]:
        begins = f"*{100 * row['keep']:g} % kept:* " if row["keep"] not in (None, 1, keep) else ""
        lines.append([begins + row["method"], *demo_cells(row)])
        keep = row["keep"]
    titles = ["", "head rows", "acceptance", "% of the loss recovered", "accepted length"]
    return "\n\n".join(
        [
            paragraph(
                f"Temperature {found['settings']['temperature']:g},",
                f"{found['positions']['held_out']:,} held-out positions, target 5.4 M and drafter",
                f"1.5 M parameters, {threads(found['versions'])} of a CPU,",
                f"{found['elapsed_seconds']:.0f} seconds",
                f"({link('data', f'{RESULTS}/demo/results.json')}):",
            ),
            table([*titles, "passes / token", "tokens / s"], lines, "lr"),
        ]
    )


def cool_demo_table(link: Link) -> str:
    """docs/benchmarks.md"""
    found = content("demo-temperature-0.7/results.json")
    temperature, keeps = found["settings"]["temperature"], found["settings"]["keep"]
    shares = {(row["method"], row["keep"]): demo_share(row) for row in found["table"]}
    methods = ("dynamic tokens", "virtual tokens", "virtual+dynamic")
    lines = [[method, *(shares[method, keep] for keep in keeps)] for method in methods]
    title = f"% of the loss recovered, temperature {temperature:g}"
    return "\n\n".join(
        [
            table([title, *(f"{100 * keep:g} % kept" for keep in keeps)], lines, "lr"),
            f"({link('data', f'{RESULTS}/demo-temperature-0.7/results.json')})",
        ]
    )


COLUMNS = [(1.0, 0.25), (1.0, 0.0625), (0.7, 0.25), (0.7, 0.0625)]


def recovered() -> dict[tuple[str, float, float], tuple[float, float, float]]:
    """By method, temperature and share kept: percent of the loss, and the interval's ends."""
    shares = {}
    for row in content("acceptance/methods.json")["rows"]:
        ends = row["recovered"], row["recovered_low"], row["recovered_high"]
        if None not in ends:
            at = (row["method"], row["temperature"], row["keep"])
            shares[at] = (100 * ends[0], 100 * ends[1], 100 * ends[2])
    return shares


def share_table(methods: dict[str, str]) -> str:
    """What methods, by the names that they have there, recover in `COLUMNS`."""
    shares = recovered()
    lines = [
        [name, *("{:.0f} [{:.0f}, {:.0f}]".format(*shares[method, at[0], at[1]]) for at in COLUMNS)]
        for method, name in methods.items()
    ]
    titles = [f"{100 * keep:g} % kept, T = {temperature:g}" for temperature, keep in COLUMNS]
    return table(["", *titles], lines, "lr")


def recovered_table(link: Link) -> str:
    """README.md"""
    methods = {name: name for name in ("virtual tokens", "dynamic tokens")}
    return "\n\n".join(
        [
            paragraph(
                "For the demo's models, which are small, on held-out text (more methods are in",
                f"{link('calibration', 'docs/calibration.md')}):",
            ),
            share_table({**methods, "virtual+dynamic": "**both**"}),
        ]
    )


def acceptance_table(link: Link) -> str:
    """docs/calibration.md"""
    names = ("low-rank head", "dynamic tokens", "virtual tokens", "virtual+dynamic")
    report = f"{RESULTS}/acceptance/report.md"
    return "\n\n".join(
        [
            paragraph(
                "Of the acceptance that is lost to pruning, this much comes back on held-out text",
                f"for the demo's models, in percent with 95 % intervals ({link('report', report)},",
                "made by `python -m profiling.studies.acceptance`):",
            ),
            share_table({name: name for name in names}),
        ]
    )


Way = tuple[str, int | None, float | None]
"""A method, with the batch and the share of the bytes that a screen may read."""

SCREENS = "gemma-screens/cpu.json"


def real_shares() -> dict[tuple[str, float, float, Way], str]:
    """By text, share kept, temperature and way: percent of the loss of Gemma 3 270M."""
    return {
        (
            row["text"],
            row["keep"],
            row["temperature"],
            (row["method"], row.get("batch"), row.get("budget")),
        ): share_of(row["recovered"])
        for row in content(SCREENS)["rows"]
        if row["recovered"] and row["method"] != "dissected"
    }


def real_table(link: Link) -> str:
    """README.md"""
    shares = real_shares()
    ways: dict[Way, str] = {
        ("recent and successor tokens", None, None): "tokens of the context",
        ("screened tokens", 1, 0.05): "screened tokens, reading 5 % of the pruned rows' bytes",
        ("all", 1, 0.1): "**both**, reading 10 %",
    }
    columns = [(text, 0.0625, at) for text in ("code", "prose") for at in (1.0, 0.7)]
    lines = [[name, *(shares.get((*at, way), "") for at in columns)] for way, name in ways.items()]
    return "\n\n".join(
        [
            paragraph(
                "**Acceptance that comes back**, in percent of what pruning the drafter's head",
                "loses, with 95 % intervals. For a real model, Gemma 3 270M with 262,144 tokens,",
                "6.25 % of them kept, drafted by itself with a context of 40 tokens, batch 1",
                f"({link('more', 'docs/calibration.md')}):",
            ),
            table(["", *(f"{text}, T = {at:g}" for text, _, at in columns)], lines, "lr"),
        ]
    )


def screens_table(link: Link) -> str:
    """docs/calibration.md"""
    shares, positions = real_shares(), content(SCREENS)["rows"][0]["positions"]
    ways: list[Way] = [
        (method, None, None) for method in ("recent and successor tokens", "virtual tokens")
    ]
    ways += [("screened tokens", 1, budget) for budget in (0.05, 0.1)]
    ways += [("all", 1, 0.05), ("all", 1, 0.1), ("all", 8, 0.1)]
    columns = [(text, keep) for text in ("code", "prose") for keep in (0.125, 0.0625, 0.03)]
    blocks = [
        paragraph(
            "For a real model, Gemma 3 270M with its 262,144 tokens, drafted by itself with the",
            "last 40 to 47 tokens as its only context",
            f"({link('data', f'{RESULTS}/{SCREENS}')}, made by",
            "`python -m profiling.studies.gemma_screens`), in percent of what pruning loses, with",
            f"95 % intervals where there are losses enough, on {positions} positions of held-out",
            "documents. Bytes are a share of those of the pruned rows in bfloat16. *All* is",
            "screened, recent, successor and, but for greedy decoding, 64 virtual tokens.",
        )
    ]
    for temperature in sorted({at[2] for at in shares}, reverse=True):
        lines = [
            [name_of(*way), *(shares.get((*at, temperature, way), "") for at in columns)]
            for way in ways
        ]
        lines = [line for line in lines if any(line[1:])]
        titles = [f"{text}, {100 * keep:g} % kept" for text, keep in columns]
        named = f"T = {temperature:g}" if temperature else "greedy"
        blocks.append(table([named, *titles], lines, "lr"))
    return "\n\n".join(blocks)


def dissected_table(link: Link) -> str:
    """docs/calibration.md"""
    rows = [row for row in content(SCREENS)["rows"] if row["method"] == "dissected"]
    shares = {
        (row["clusters"], row["kind"], row["temperature"], row["screened"]): share_of(
            row["recovered"]
        )
        for row in rows
    }
    columns = [(at, screened) for at in (1.0, 0.7) for screened in (False, True)]
    lines = [
        [f"{key[0]:,}, {key[1]}", *(shares[key + at] for at in columns)]
        for key in dict.fromkeys((row["clusters"], row["kind"]) for row in rows)
    ]
    titles = [f"T = {at:g}, {'beside a screen' if on else 'alone'}" for at, on in columns]
    first = rows[0]
    return "\n\n".join(
        [
            paragraph(
                f"What bounds virtual tokens, for {first['text']} with",
                f"{100 * first['keep']:g} % kept, alone and beside the screen",
                "of 5 % of the bytes: more clusters; the exact mass of a cluster in place of",
                "Jensen's bound on it; and weights within a cluster that follow the state.",
                "Each has the best offset for all of calibration positions",
                f"({link('data', f'{RESULTS}/{SCREENS}')}):",
            ),
            table(["clusters", *titles], lines, "lr"),
        ]
    )


def share_of(interval: Sequence[float | None]) -> str:
    """In percent, with its ends where there are any."""
    value, low, high = (None if end is None else 100 * end for end in interval)
    return f"{value:.0f}" + ("" if low is None or high is None else f" [{low:.0f}, {high:.0f}]")


def name_of(method: str, batch: int | None, budget: float | None) -> str:
    """A row's name."""
    if budget is None:
        return method
    return f"{method}, {100 * budget:g} % of the bytes" + (f", batch {batch}" if batch != 1 else "")


def cost_table(link: Link) -> str:
    """docs/calibration.md"""
    found = content("calibration-scale/cpu.json")
    minutes = sum(row["seconds"] for row in found["rows"]) / 60
    peak = max(row["peak_bytes"] for row in found["rows"]) / 1e9
    lines = [
        [row["stage"], f"{row['seconds'] / 60:.1f}", f"{row['peak_bytes'] / 1e9:.1f}"]
        for row in found["rows"]
    ]
    return "\n\n".join(
        [
            paragraph(
                "With models of the size of Llama 3.1 8B, but three layers and random weights: a",
                f"target of {found['tokens']:,} × {found['width']:,} in bfloat16 and an EAGLE-3",
                f"drafter with {found['kept']:,} tokens and rows of its own, so that the others",
                f"are lifted, a screen of {100 * found['screen_bytes']:g} % of the bytes and",
                f"{found['positions']:,} positions of text. `calibrate` and `evaluate` take",
                f"{minutes:.0f} minutes and {peak:.1f} GB on {threads(found)} of an",
                f"{found['device_name']} ({link('data', f'{RESULTS}/calibration-scale/cpu.json')},",
                "made by `python -m profiling.studies.calibration_scale`):",
            ),
            table(["stage", "minutes", "peak GB"], lines, "lr"),
        ]
    )


def growth_sentence(link: Link) -> str:
    """docs/samplers.md"""
    folder = "first-order-growth"
    forms = ("first-order", "dense")
    found = content(f"{folder}/results.json")
    sizes = ({row["size"] for row in found["rows"] if row["form"] == form} for form in forms)
    size = max(set.intersection(*sizes))
    fastest = {
        row["form"]: f"{1000 * row['fastest_seconds']:.1f} ms"
        for row in found["rows"]
        if row["size"] == size
    }
    exponents = found["exponents"]
    return paragraph(
        f"On {threads(found)} of a CPU its time grows as V^{exponents['first-order']:.2f} with a",
        f"shared vocabulary V, and that of the dense matrix as V^{exponents['dense']:.2f}.",
        f"At {size:,} tokens, {found['batch']} rows take {fastest['first-order']} and",
        f"{fastest['dense']} ({link('data', f'{RESULTS}/{folder}/results.json')},",
        f"{link('plot', f'{RESULTS}/{folder}/growth.png')}).",
    )
