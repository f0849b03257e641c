"""A stage, and what stages read: the pair, the text, its recording, and earlier artifacts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from ..inputs.documents import Text, Window
from ..inputs.pairs import Pair
from ..recording import Each, Recording
from ..request import Asked, Setting
from .pruning import Method


@dataclass
class State(Generic[Asked]):
    """A run so far.

    Attributes:
        progress: a `recipes.progress.Stages`.
        made: the artifacts of stages by their names.
    """

    request: Asked
    models: Pair
    text: Text
    held_out: Text
    progress: Any
    recording: Recording = field(init=False)
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def each(self) -> Each:
        each: Each = self.progress.each
        return each

    @property
    def say(self) -> Callable[[str], None]:
        """On the way, beside the progress."""
        say: Callable[[str], None] = self.progress.say
        return say

    @property
    def windows(self) -> list[Window]:
        """Of the held-out text, what is measured on."""
        return self.held_out.held_out_windows(self.request.measured)


class Stage(ABC, Generic[Asked]):
    """Makes one artifact.

    Attributes:
        name: of the artifact among `State.made`.
        needs: names of artifacts that have to be there.
    """

    name: str
    needs: tuple[str, ...] = ()

    def check(self, state: State[Asked]) -> None:
        """Refuse what cannot be made, before anything is read."""

    @abstractmethod
    def run(self, state: State[Asked]) -> Any:
        """The artifact; None where none is asked for."""

    def describe(self, state: State[Asked], place: int) -> str:
        """Say what it is for a setting, in a sentence."""
        return ""

    def summary(self, state: State[Asked]) -> str:
        """Say what it is for all settings."""
        return ""

    def settings(self, state: State[Asked], place: int) -> dict[str, Any]:
        """Say what `calibration.json` keeps of it for a setting."""
        return {}


class DrafterStage(Stage[Asked]):
    """Makes drafters, which are measured."""

    @abstractmethod
    def found(self, state: State[Asked]) -> Sequence[Found]:
        """Of each setting."""

    def save(self, state: State[Asked], place: int, path: Path, settings: dict[str, Any]) -> None:
        """Write a directory, from which `saved.load_saved` reads the drafter."""

    def calibrated_for(self, state: State[Asked]) -> float | None:
        """A temperature that is not named where it is the one of a table."""
        return None

    def about_text(self, state: State[Asked]) -> str:
        """Say how much of the text was measured on."""
        return ""


@dataclass(frozen=True, eq=False)
class Found:
    """A drafter for one setting.

    Attributes:
        method: the best of what was tried.
        compared: what is measured.
    """

    setting: Setting
    method: Method
    compared: Sequence[Method]
