"""Progress on standard error: bars on a terminal, one line for each stage elsewhere."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")


class Stages:
    """What the demo is doing and how far it is."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description:<42}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> "Stages":
        """Start to draw."""
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self.bars.stop()

    def each(self, items: Sequence[Item], description: str) -> Iterator[Item]:
        """The items, one after the other, as one stage."""
        if not self.console.is_terminal:
            self.console.print(f"{description} ...", highlight=False)
        yield from self.bars.track(items, description=description)
