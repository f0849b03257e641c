"""A stage, and what stages read: the pair, the text, its recording, and earlier artifacts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

from ..inputs.documents import Text, Window, calibration_and_held_out
from ..inputs.pairs import Pair
from ..progress import Stages
from ..recording import Recording
from ..request import Asked, Setting
from .pruning import Method


@dataclass
class State(Generic[Asked]):
    """A run so far.

    Attributes:
        made: the artifacts of stages by their names.
    """

    request: Asked
    models: Pair
    text: Text
    held_out: Text
    progress: Stages
    recording: Recording = field(init=False)
    made: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Asked, models: Pair) -> State[Asked]:
        """Read the text to calibrate and to measure on."""
        text, held_out = calibration_and_held_out(
            models.tokenizer, request.text, request.held_out, models.context, request.draft_length
        )
        return cls(request, models, text, held_out, Stages())

    @cached_property
    def windows(self) -> list[Window]:
        """Of the held-out text, which drafters are measured on."""
        return self.held_out.held_out_windows()


class Stage(ABC, Generic[Asked]):
    """Makes one artifact.

    Attributes:
        name: of the artifact among `State.made`.
    """

    name: str

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
