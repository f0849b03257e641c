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
    refused = [f"`{row['type']}`" for row in found["rows"] if "refused" in row]
    lines.append(["refused, with the reason", ", ".join(refused), ""])
    titles = ["rolled back by", "model types", "logits off by"]
    return "\n\n".join(
        [
            paragraph(
                f"Model types of Transformers {found['transformers']}, and how far logits behind a",
                "rollback are off, of their norm, with tiny random models in float32",
                f"({link('data', f'{RESULTS}/{SERVED}')}, made by",
                "`python -m tests.served_models`). A mask hides rejected tokens in slots:",
            ),
            table(titles, lines, "llr"),
        ]
    )
