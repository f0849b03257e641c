"""Progress on standard error: bars on a terminal, one line for each stage elsewhere."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.text import Text

Item = TypeVar("Item")


class Times(ProgressColumn):
    """How long a stage has taken and, as long as it runs, how long the rest will take."""

    def render(self, task: Task) -> Text:
        """For example `0:01:20, 0:05:00 left`."""
        if task.finished:
            return Text(clock(task.finished_time))
        left = None
        if task.elapsed is not None and task.completed:
            left = task.elapsed * (task.remaining or 0) / task.completed
        return Text(f"{clock(task.elapsed)}, {clock(left)} left")


def clock(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    return "-:--:--" if seconds is None else str(timedelta(seconds=int(seconds)))


class Stages:
    """What a command is doing and how far it is."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description:<35}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            Times(),
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
