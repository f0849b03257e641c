"""How much acceptance comes back, and what calibration takes."""

from __future__ import annotations

from ..tables import table
from .results import RESULTS, Link, Row, content, paragraph, threads


def demo_share(row: Row) -> str:
    """Percent of the loss with its interval; empty if nothing was lost."""
    if row["recovered"] is None:
        return ""
    value, low, high = (100 * row["recovered"][key] for key in ("value", "low", "high"))
    return f"{value:.0f} [{low:.0f}, {high:.0f}]"


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
                "**Acceptance that comes back**, in percent of what pruning the drafter's head",
                "loses, with 95 % intervals, for the demo's models on held-out text. More methods",
                f"are in {link('calibration', 'docs/calibration.md')}:",
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


def cost_sentence(link: Link) -> str:
    """docs/calibration.md"""
    found = content("calibration-scale/cpu.json")
    minutes = sum(row["seconds"] for row in found["rows"]) / 60
    peak = max(row["peak_bytes"] for row in found["rows"]) / 1e9
    return paragraph(
        f"With a vocabulary of {found['tokens']:,} and a width of {found['width']:,}, the",
        f"clusters, rows and offsets of {found['virtual']} virtual tokens take {minutes:.0f}",
        f"minutes and {peak:.1f} GB on {threads(found)} of an {found['device_name']}",
        f"({link('data', f'{RESULTS}/calibration-scale/cpu.json')}).",
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
