"""Which models the decoder serves."""

from __future__ import annotations

from ..tables import table
from .results import RESULTS, Link, content, paragraph

SERVED = "served-models/transformers.json"


def served_table(link: Link) -> str:
    """docs/tutorial.md"""
    found = content(SERVED)
    served: dict[str, list[tuple[str, float]]] = {}
    for row in found["rows"]:
        if "how" in row:
            served.setdefault(row["how"], []).append((row["type"], row["error"]))
    lines = [
        [how, ", ".join(f"`{name}`" for name, _ in rows), f"{max(off for _, off in rows):.0e}"]
        for how, rows in served.items()
    ]
    refused = [row for row in found["rows"] if "refused" in row]
    lines += [[f"refused: it {row['refused']}", f"`{row['type']}`", ""] for row in refused]
    titles = ["rolled back by", "model types", "logits off by"]
    return "\n\n".join(
        [
            paragraph(
                f"Transformers {found['transformers']}, by tiny models of random weights in",
                "float32, and how far logits behind a rollback are off, of their norm",
                f"({link('data', f'{RESULTS}/{SERVED}')}, made by",
                "`python -m tests.served_models`). A mask hides rejected tokens in slots. Classes",
                "that also read images are served as the text model in them is:",
            ),
            table(titles, lines, "llr"),
        ]
    )
