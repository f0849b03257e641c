"""Progress on standard error: bars on a terminal, elsewhere lines at the start and now and then."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
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

SILENT_SECONDS = 20  # without a terminal, at most about so long nothing is said


class Times(ProgressColumn):
    """How long a stage has taken and, as long as it runs, how long the rest will take."""

    def render(self, task: Task) -> Text:
        """For example `0:01:20, 0:05:00 left`."""
        if task.finished:
            return Text(clock(task.finished_time))
        ends = task.fields.get("ends")  # as was expected when an item was last done: it counts down
        left = None if ends is None else max(0.0, ends - task.get_time())
        return Text(f"{clock(task.elapsed)}, {clock(left)} left")


def clock(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    return "-:--:--" if seconds is None else str(timedelta(seconds=int(seconds)))


class Stages(Progress):
    """What a command is doing and how far it is."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        super().__init__(
            TextColumn("{task.description:<35}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            Times(),
            console=console,
            disable=not console.is_terminal,
        )

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
            now = self.get_time()
            left = (now - begin) * (len(items) - done) / done
            self.update(task, completed=done, ends=now + left)
            if now - said >= SILENT_SECONDS and done < len(items):
                said = now
                say(f"... {done} of {len(items)}, {clock(now - begin)}, {clock(left)} left")
