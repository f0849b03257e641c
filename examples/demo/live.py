"""A text as it grows: by the target alone, then with drafts, coloured by who proposed a token."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from rdk_cuda.decoding.generation import Kind

from .arguments import Settings
from .decoding import WARM_UP_TOKENS, Case, Way
from .text import Prompt

SHOWN_PROMPT = 48  # tokens of the prompt that are shown before its continuation

# How a token is shown by the way it came about: a style and, where there is no colour, brackets.
STYLES: dict[Kind, tuple[str, str, str]] = {
    "accepted": ("green", "", "draft that the target accepted"),
    "out_of_vocabulary": (
        "black on bright_yellow",
        "⟦⟧",
        "accepted draft that the pruned vocabulary alone cannot propose",
    ),
    "resampled": ("bold red", "«»", "token drawn in place of a rejected draft"),
    "bonus": ("cyan", "‹›", "token drawn after the last draft"),
}


class Continuation(NamedTuple):
    """A prompt's text, and what was decoded after it.

    Attributes:
        speeds: tokens a second of the target alone and of `method`, for this one text.
    """

    method: str
    source: str
    prompt: str
    tokens: list[int]
    pieces: list[str]
    kinds: list[Kind]
    speeds: tuple[float, float]


@dataclass
class Growing:
    """The text of a way while it is decoded.

    Attributes:
        begin: when decoding began; drawing the text meanwhile does not count.
    """

    name: str
    tokens: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    begin: float = 0.0
    speed: float = 0.0

    def decode(
        self, way: Way, prompt: Prompt, settings: Settings, draw: Callable[[], None]
    ) -> None:
        """Fill it; `draw` is called whenever it has grown."""
        options = Case(settings.temperature, settings.batches[0]), [settings.seed]
        way([prompt.ids], WARM_UP_TOKENS, *options)
        self.begin = time.perf_counter()
        way([prompt.ids], settings.tokens, *options, partial(self._grow, draw))

    def _grow(self, draw: Callable[[], None], _: int, new: list[int], how: list[Kind]) -> None:
        now = time.perf_counter()
        self.tokens += new
        self.kinds += how
        self.speed = len(self.tokens) / (now - self.begin)
        draw()
        self.begin += time.perf_counter() - now


def continue_live(
    ways: tuple[Way, Way], prompts: Sequence[Prompt], tokenizer: Any, settings: Settings
) -> Continuation:
    """Continue a prompt with the target alone and with drafts, and show both on a terminal."""
    prompt = prompts[settings.seed % len(prompts)]
    console = Console(stderr=True)
    alone, ours = (Growing(way.name) for way in ways)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw() -> None:
            if console.is_terminal:
                panels = [panel(console, tokenizer, prompt, one) for one in (alone, ours)]
                live.update(Columns(panels), refresh=True)

        for way, one in zip(ways, (alone, ours), strict=True):
            one.decode(way, prompt, settings, draw)
    return Continuation(
        ours.name,
        prompt.source,
        text_of(tokenizer, prompt),
        ours.tokens,
        pieces(tokenizer, prompt.ids[-SHOWN_PROMPT:], ours.tokens),
        ours.kinds,
        (alone.speed, ours.speed),
    )


def panel(console: Console, tokenizer: Any, prompt: Prompt, one: Growing) -> Panel:
    """A text in half of the terminal."""
    return Panel(
        Text.assemble((text_of(tokenizer, prompt), "dim"), *coloured(tokenizer, prompt, one)),
        title=f"{one.name}: {one.speed:.0f} tokens/s",
        width=max(30, console.width // 2 - 1),
        height=max(12, console.height - 2),
    )


def coloured(tokenizer: Any, prompt: Prompt, one: Growing) -> list[tuple[str, str]]:
    """The pieces of a growing text with their styles; the target's own are plain."""
    parts = pieces(tokenizer, prompt.ids[-SHOWN_PROMPT:], one.tokens)
    drafted = any(kind != "bonus" for kind in one.kinds)
    return [
        (piece, STYLES[kind][0] if drafted else "")
        for piece, kind in zip(parts, one.kinds, strict=True)
    ]


def text_of(tokenizer: Any, prompt: Prompt) -> str:
    """The end of a prompt, from the beginning of a line."""
    text: str = tokenizer.decode(prompt.ids[-SHOWN_PROMPT:])
    return printable(text.split("\n", 1)[-1] if len(prompt.ids) > SHOWN_PROMPT else text)


def pieces(tokenizer: Any, ids: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """The text that each token adds to `ids`; a character belongs to its last token."""
    added = []
    before = tokenizer.decode(ids)
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode([*ids, *tokens[:count]])
        unfinished = text.endswith("\ufffd") and count < len(tokens)
        added.append("" if unfinished else printable(text[len(before) :]))
        before = before if unfinished else text
    return added


def printable(text: str) -> str:
    """The text without characters that would steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
