"""What decoding takes: the parts of a step, and Hugging Face's generate."""

from __future__ import annotations

from ..tables import figure, table
from .results import RESULTS, Link, Row, content, paragraph, threads


def step_rows() -> list[Row]:
    """Steps of a batch of 8, but for drafters that are pruned alone."""
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


WAYS = {
    "generate": "`generate` alone",
    "assistant_model": "`assistant_model=`, its own number of drafts",
    "assistant_model, K = 4": "`assistant_model=`, K = 4",
    "ours: full drafter": "`Generate`, full drafter",
    "ours: virtual tokens": "`Generate`, 25 % kept, virtual tokens",
    "ours: virtual+dynamic": "`Generate`, 25 % kept, virtual and dynamic",
}


def assisted_table(link: Link) -> str:
    """docs/benchmarks.md"""
    found = content("assisted/results.json")
    settings = found["settings"]
    greedy, warm = (
        {(row["way"], row["batch"]): row for row in found["rows"] if row["temperature"] == at}
        for at in (0, 1)
    )
    same = all(row["same_greedy_text"]["passed"] for row in greedy.values())

    def cells(row: Row) -> list[str]:
        return [f"{row['accepted_length']:.2f}", f"{row['tokens_per_second']:.0f}"]

    lines = [
        [WAYS[way], str(batch), *cells(greedy[way, batch]), *cells(warm[way, batch])]
        for way, batch in sorted(greedy, key=lambda key: key[1])
    ]
    return "\n\n".join(
        [
            paragraph(
                f"The demo's models on {threads(found)} of an {found['device_name']},",
                f"{settings['prompts']} prompts continued by {settings['tokens']} tokens, K =",
                f"{settings['draft_length']}, medians of {settings['rounds']} rounds",
                f"({link('data', f'{RESULTS}/assisted/results.json')},",
                f"{link('other temperatures', f'{RESULTS}/assisted/table.md')}).",
                "All greedy texts are the same." if same else "NOT all greedy texts are the same.",
            ),
            table(
                ["", "batch", "accepted, T = 0", "tokens / s", "accepted, T = 1", "tokens / s"],
                lines,
                "lr",
            ),
        ]
    )
