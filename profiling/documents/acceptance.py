"""How much acceptance comes back after pruning, and what chains, blocks and trees accept."""

from __future__ import annotations

from ..tables import table
from .results import RESULTS, Link, Row, content, paragraph, share_of, threads

DEMO = {1.0: "demo/results.json", 0.7: "demo-temperature-0.7/results.json"}
KEEPS, CHARTED = (0.25, 0.0625), ("virtual tokens", "dynamic tokens", "virtual+dynamic")
COLUMNS = [(temperature, keep) for temperature in DEMO for keep in KEEPS]
SCREENS, HEADS, SHOWN = "gemma-screens/cpu.json", "gemma-heads/cpu.json", 0.0625
LIFTED, OTHER_LIFTED = "lifted-rows/gemma.json", "lifted-rows/demo.json"
PRUNING = {"pruning/demo": "demo", "pruning/gemma3-270m": "Gemma"}
TREES = {"trees/demo": "a model", "trees/eagle3": "EAGLE-3", "trees/gemma": "Gemma's head"}
TOKENIZERS = {  # with a batch of eight, and alone
    "text-drafters/demo.json": "text-drafters/demo.json",
    "text-drafters/smollm2.json": "text-drafters/smollm2-alone.json",
    "text-drafters/smollm2-by-gemma.json": "text-drafters/smollm2-by-gemma-alone.json",
}
NAMES = {
    "gemma3-270m": "Gemma",
    "demo": "Llama",
    "SmolLM2-135M-Instruct.Q4_1": "SmolLM2",
}
DRAFTS = ("between, from counts", "between, by prefix", "SLRS", "TLI", "SLEM")
PEER, NONE = "Transformers", "target alone"
WAYS = ("chain of 4, by block", "tree of 8 in 4", "chain of 8, by block")


def recovered() -> dict[tuple[str, tuple[float, float]], list[float]]:
    """By method, and temperature with share kept: of the demo's loss, with the interval's ends."""
    return {
        (row["method"], (temperature, row["keep"])): [
            row["recovered"][end] for end in ("value", "low", "high")
        ]
        for temperature, file in DEMO.items()
        for row in content(file)["acceptance"]
        if row["recovered"] is not None
    }


def real_shares() -> dict[tuple[str, float, str], str]:
    """By text, temperature and way to draft: percent of what Gemma loses at `SHOWN`."""
    return {
        (row["text"], row["temperature"], way_of(row)): share_of(row["recovered"])
        for row in content(SCREENS)["rows"]
        if row["recovered"] and row["method"] != "dissected" and row["keep"] == SHOWN
    }


def way_of(row: Row) -> str:
    """A method, with the bytes that its screen reads and the batch."""
    if row.get("budget") is None:
        return str(row["method"])
    batch = "" if row["batch"] == 1 else f", batch {row['batch']}"
    return f"{row['method']}, {100 * row['budget']:g} % of the bytes{batch}"


def screens_table(link: Link) -> str:
    """docs/calibration.md"""
    shares, positions = real_shares(), content(SCREENS)["rows"][0]["positions"]
    ways = ["recent and successor tokens", "virtual tokens"]
    ways += [f"screened tokens, {share} % of the bytes" for share in (5, 10)]
    ways += [f"all, {of}" for of in ("5 % of the bytes", "10 % of the bytes")]
    ways += ["all, 10 % of the bytes, batch 8"]
    columns = [(text, at) for text in ("code", "prose") for at in (1.0, 0.7)]
    lines = [[way, *(shares.get((*at, way), "") for at in columns)] for way in ways]
    return "\n\n".join(
        [
            paragraph(
                "Percent of what pruning loses that comes back, with 95 % intervals where enough",
                "is lost: Gemma 3 270M with 6.25 % of its 262,144 tokens kept drafts for itself,",
                f"from its last 40 to 47 tokens, at {positions} held-out positions. *All* is",
                "screened, recent, successor and virtual tokens; bytes are a share of the pruned",
                "rows",
                f"({link('all rows', page_of(SCREENS))},",
                f"{link('data', f'{RESULTS}/{SCREENS}')}, made by",
                "`python -m studies.gemma_acceptance`):",
            ),
            table(["", *(f"{text}, T = {at:g}" for text, at in columns)], lines, "lr"),
        ]
    )


def tokenizers_table(link: Link) -> str:
    """docs/samplers.md"""
    drafted: dict[tuple[str, float], dict[str, Row]] = {}
    speeds: dict[tuple[str, float], dict[str, Row]] = {}
    for file, alone in TOKENIZERS.items():
        for name, batch, found in ((file, 8, drafted), (alone, 1, speeds)):
            for row in content(name)["rows"]:
                if row["batch"] == batch and row["temperature"] != 0.7:
                    found.setdefault((row["pair"], row["temperature"]), {})[row["method"]] = row
    lines = []
    for (pair, temperature), of in sorted(drafted.items(), key=lambda item: -item[0][1]):
        drafter, target = (NAMES[name] for name in pair.split(" for "))
        seconds = {
            name: row["tokens_per_second"][0] for name, row in speeds[pair, temperature].items()
        }
        best = max(seconds[name] for name in seconds.keys() - {PEER, NONE})
        lines.append(
            [
                f"{target} by {drafter}",
                f"{temperature:g}",
                *(f"{of[name]['acceptance']:.2f}" for name in DRAFTS),
                *(f"{speed / seconds[NONE]:.2f}" for speed in (best, seconds[PEER])),
            ]
        )
    widest = max(of[name]["interval"] for of in drafted.values() for name in DRAFTS)
    files = dict.fromkeys([*TOKENIZERS, *TOKENIZERS.values()])
    data = ", ".join(link(str(n), f"{RESULTS}/{file}") for n, file in enumerate(files, start=1))
    of_demo, of_other, *_ = (content(file) for file in TOKENIZERS.values())
    return "\n\n".join(
        [
            paragraph(
                "First drafts accepted in batches of 8, with 95 % intervals of at most",
                f"± {widest:.2f}; and the speed of one sequence, × the target alone in the same",
                "run, of our fastest way and of Transformers' assistance, on",
                f"{threads(of_demo)} of an {of_demo['device_name']} ({of_demo['capability']} for",
                f"the demo's Llama, otherwise {of_other['capability']}), with Gemma 3 270M and",
                "SmolLM2-135M-Instruct",
                f"(data: {data}, made by `python -m studies.text_drafters`):",
            ),
            table(["target by drafter", "T", *DRAFTS, "ours, ×", f"{PEER}, ×"], lines, "lr"),
        ]
    )


def page_of(data: str) -> str:
    """The page next to a result file."""
    return f"{RESULTS}/{data.removesuffix('.json')}.md"


def lifted_table(link: Link) -> str:
    """docs/calibration.md"""
    rows, columns = content(LIFTED)["rows"], (1.0, 0.7, 0.0)
    cells: dict[str, dict[float, str]] = {"lost": {}}
    for row in rows:
        if row["method"] == "pruned drafter":
            cells["lost"][row["temperature"]] = points(row["lost"])
        else:
            cells.setdefault(row["method"], {})[row["temperature"]] = lifted_of(row)
    lines = [[method, *(of[at] for at in columns)] for method, of in cells.items()]
    others = f"{link('the same', page_of(OTHER_LIFTED))} of the demo's former drafter"
    return "\n\n".join(
        [
            paragraph(
                "An EAGLE-3 drafter of Gemma 3 270M without its pruned rows: points of acceptance",
                "*lost* against all tokens, points gained and, in brackets, the percentage of the",
                "loss where it is more than chance, at",
                f"{rows[0]['positions']:,} held-out positions",
                f"({link('all rows', page_of(LIFTED))}, {link('data', f'{RESULTS}/{LIFTED}')};",
                f"{others}, {link('data', f'{RESULTS}/{OTHER_LIFTED}')}; made by",
                "`python -m studies.lifted_rows`):",
            ),
            table(["", *(f"T = {at:g}" if at else "greedy" for at in columns)], lines, "lr"),
        ]
    )


def points(interval: list[float]) -> str:
    """Of acceptance, with the interval's ends."""
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * end for end in interval))


def lifted_of(row: Row) -> str:
    """Points gained, and the share of what was lost."""
    gain = f"{100 * row['gain'][0]:+.1f}"
    return gain if row["recovered"] is None else f"{gain} ({share_of(row['recovered'])})"


def trees_table(link: Link) -> str:
    """docs/benchmarks.md"""
    lines = []
    for file, pair in TREES.items():
        rows = {
            (row["temperature"], row["way"]): row
            for row in content(f"{file}.json")["rows"]
            if row["method"] == "virtual+dynamic" and row["temperature"] in (0, 1)
        }
        lines += [
            [pair, f"{at:g}", *(accepted_of(rows[at, way]) for way in WAYS)]
            for at in sorted({at for at, _ in rows})
        ]
    first, *_, gemma = (content(f"{file}.json") for file in TREES)
    machine = f"on {threads(first)} of an {first['device_name']} with {first['capability']}"
    where = [link(name, f"{RESULTS}/{file}.md") for file, name in TREES.items()]
    data = [link(name, f"{RESULTS}/{file}.json") for file, name in TREES.items()]
    return "\n\n".join(
        [
            paragraph(
                "Accepted drafts a pass, with 95 % intervals, and × the target alone on the same",
                f"prompts, {machine}, with virtual and dynamic tokens. The demo's target has its",
                f"drafter or its EAGLE-3 drafter, {100 * first['keep']:g} % kept, and",
                f"{first['prompts']} prompts; Gemma 3 270M its EAGLE-3 head,",
                f"{100 * gemma['keep']:.2g} % kept, and {gemma['prompts']} prompts. A tree of 8 in",
                f"4 has 8 nodes for 4 passes of the drafter (all rows: {', '.join(where)};",
                f"data: {', '.join(data)}; made by `python -m studies.chains_and_trees`):",
            ),
            table(["drafter", "T", *WAYS], lines, "lr"),
        ]
    )


def pruning_table(link: Link) -> str:
    """docs/samplers.md"""
    found = {model: content(f"{file}.json") for file, model in PRUNING.items()}
    columns: list[tuple[str, list[str]]] = []
    for model, result in found.items():
        rows = [row for row in result["rows"] if row["text"] == "code"]
        cells = {(row["method"], row["kept"]): f"{row['value']:.3f}" for row in rows}
        _, *names = dict.fromkeys(name for name, _ in cells)
        sizes = sorted({kept for _, kept in cells}, reverse=True)[2::2]
        columns += [
            (f"{model}, {name}", [cells[name, kept] for kept in sizes])
            for name in names
            if all((name, kept) in cells for kept in sizes)
        ]
        shares = [f"{100 * kept / result['vocabulary']:.3g} %" for kept in sizes[:-1]]
    kept = [*shares, f"{sizes[-1]} tokens"]
    data = " and ".join(link(model, f"{RESULTS}/{file}.json") for file, model in PRUNING.items())
    whole = " and ".join(f"{result['rows'][0]['value']:.3f}" for result in found.values())
    return "\n\n".join(
        [
            paragraph(
                "Acceptance on code at temperature 1 of the demo's drafter and of Gemma 3 270M, by",
                f"the share of the vocabulary that the head keeps (data: {data}, made by",
                f"`python -m studies.pruning`); with all {whole}. Tau is tuned for each point;",
                "with first-order RDK no token keeps its own mass, as in the paper.",
            ),
            table(
                ["kept", *(title for title, _ in columns)],
                [[size, *(own[at] for _, own in columns)] for at, size in enumerate(kept)],
                "r",
            ),
        ]
    )


def accepted_of(row: Row) -> str:
    """With its interval, and the speed."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*row["accepted"]) + f", {row['speed'][0]:.2f} ×"
