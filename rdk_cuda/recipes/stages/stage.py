"""A stage, and what stages read: the pair, the text, its recording, and earlier artifacts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..inputs.documents import Text
from ..inputs.pairs import Pair
from ..recording import Each, Recording
from ..request import Request, Setting
from .pruning import Method


@dataclass
class State:
    """A run so far.

    Attributes:
        made: the artifacts of stages by their names.
    """

    request: Request
    models: Pair
    text: Text
    each: Each
    recording: Recording = field(init=False)
    made: dict[str, Any] = field(default_factory=dict)


class Stage(ABC):
    """Makes one artifact.

    Attributes:
        name: of the artifact among `State.made`.
        needs: names of artifacts that have to be there.
    """

    name: str
    needs: tuple[str, ...] = ()

    def check(self, state: State) -> None:  # noqa: B027 (most have nothing to check)
        """Refuse what cannot be made, before anything is read."""

    @abstractmethod
    def run(self, state: State) -> Any:
        """The artifact; None where none is asked for."""

    def describe(self, state: State, place: int) -> str:
        """Say what it is for a setting, in a sentence."""
        return ""

    def settings(self, state: State, place: int) -> dict[str, Any]:
        """Say what `calibration.json` keeps of it for a setting."""
        return {}


class DrafterStage(Stage):
    """Makes a drafter for each setting, which can be measured and saved."""

    @abstractmethod
    def found(self, state: State) -> Sequence[Found]:
        """Of each setting."""

    @abstractmethod
    def save(self, state: State, place: int, path: Path, settings: dict[str, Any]) -> None:
        """Write a directory, from which `saved.load_saved` reads the drafter."""


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
