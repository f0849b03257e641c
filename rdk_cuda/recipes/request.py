"""The request of a command, from its line to `calibration.json`; without torch."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, fields
from itertools import product, starmap
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Asked = TypeVar("Asked", bound="Command")


class Setting(NamedTuple):
    """A share of the vocabulary, and a temperature, that one drafter is calibrated for."""

    keep: float
    temperature: float


@dataclass(frozen=True)
class Command:
    """The request of any command.

    Attributes:
        device, device_map, dtype: as `load_pair` takes them.
    """

    target: Path
    drafter: Path
    text: tuple[Path, ...]
    output: Path
    held_out: tuple[Path, ...] = ()
    draft_length: int = 4
    device: str | None = None
    device_map: str | None = None
    dtype: str = "float32"
    seed: int = 0
    overwrite: bool = False

    @property
    def measured(self) -> int | None:
        """At how many positions of the held-out text; None: of every document some."""
        return None

    @classmethod
    def of(cls: type[Asked], arguments: argparse.Namespace, output: Path) -> Asked:
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in vars(arguments).items()
            if name in {field.name for field in fields(cls)} - {"output"}
        }
        return cls(output=output, **given)


@dataclass(frozen=True)
class Evaluation(Command):
    """The request of `evaluate`; without temperatures, the one calibrated for."""

    temperature: tuple[float, ...] = ()
    positions: int | None = None

    @property
    def measured(self) -> int | None:
        return self.positions


@dataclass(frozen=True)
class Training(Command):
    """The request of `distill`; without a temperature, the one calibrated for."""

    train: str = "head"
    loss: tuple[str, ...] = ("tv",)
    data: str = "target"
    temperature: float | None = None
    steps: int = 200
    batch: int = 8
    prompt: int = 64
    tokens: int = 128
    learning_rate: float = 3e-4


@dataclass(frozen=True)
class Request(Command):
    """The request of `calibrate`. There is a drafter for each pair of `keep` and `temperature`.

    Attributes:
        keep, keep_by: shares of the vocabulary that pruned drafters keep, and by which score.
        kept: a file with the ids to keep instead (`read_token_map`), or None.
        recording: where to keep what the models said about the text. None: in a folder next to the
            output, until that is written.
        screen_bytes, batch: the share of the pruned rows' bytes that a screen may read, 0 for none,
            and for how many positions at once.
        draft_cost: the time of a drafter's pass in passes of the target, to find when drafts should
            end; None: not asked.
        positions, memory: how many the models read, spread over the text; GiB for the recording.
    """

    keep: tuple[float, ...] = (0.25,)
    keep_by: str = "probability"
    kept: Path | None = None
    virtual: int = 64
    dynamic: int = 128
    window: int = 256
    screen_bytes: float = 0.0
    batch: int = 1
    temperature: tuple[float, ...] = (1.0,)
    draft_cost: float | None = None
    positions: int = 24576
    memory: float = 2.0
    recording: Path | None = None

    @property
    def settings(self) -> list[Setting]:
        return list(dict.fromkeys(starmap(Setting, product(self.keep, self.temperature))))

    def name(self, setting: Setting) -> str:
        keep, temperature = map(plain, setting)
        # A drafter with another tokenizer keeps all tokens, whatever is asked of others.
        one_keep = self.kept is not None or setting.keep not in self.keep
        return ("" if one_keep else f"keep-{keep}-") + f"temperature-{temperature}"

    def said(self) -> dict[str, Any]:
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(self).items()
            if name not in ("output", "overwrite", "recording", "text", "held_out")
        }


def plain(value: float) -> str:
    return str(value).removesuffix(".0")
