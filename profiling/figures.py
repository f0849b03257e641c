"""The operators' colours in the plots of benchmarks."""

from __future__ import annotations

from .cases import PAIR

# Of middle lightness: a contrast of at least three with a white and with a black page.
COLOURS = {
    "draft": "#7d6ba0",
    "verify": "#c1440e",
    PAIR: "#17805b",
    "redistribute": "#2f6fa8",
    "gather_logits": "#8a7a1c",
}
