"""Progress on standard error: bars on a terminal, elsewhere lines at the start and now and then."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")

SILENT_SECONDS = 20  # without a terminal, at most about so long nothing is said


class Stages(Progress):
    """The stages of a command, and how far each is."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        super().__init__(
            *(TextColumn("{task.description:<35}"), BarColumn(bar_width=10), MofNCompleteColumn()),
            *(TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("left")),
            console=console,
            disable=not console.is_terminal,
        )

    def say(self, words: str) -> None:
        self.console.print(words, soft_wrap=True, highlight=False, markup=False)

    def each(self, items: Sequence[Item], description: str) -> Iterator[Item]:
        """The items, one after the other, as one stage."""

        def say(rest: str) -> None:
            if not self.console.is_terminal:
                self.console.print(f"{description} {rest}", highlight=False)

        say("...")
        task = self.add_task(description, total=len(items))
        begin = said = self.get_time()
        for done, item in enumerate(items, start=1):
            yield item
            self.update(task, completed=done)
            now = self.get_time()
            if now - said >= SILENT_SECONDS and done < len(items):
                said, left = now, (now - begin) * (len(items) - done) / done
                gone, left_ = (timedelta(seconds=int(seconds)) for seconds in (now - begin, left))
                say(f"... {done} of {len(items)}, {gone}, {left_} left")
