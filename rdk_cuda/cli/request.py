"""What `calibrate` is asked for. The command line takes its defaults from here, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product, starmap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..calibration import Setting


@dataclass(frozen=True)
class Request:
    """What `calibrate` is asked for. There is a drafter for each pair of `keep` and `temperature`.

    Attributes:
        keep, keep_by: shares of the vocabulary that pruned drafters keep, and by which score.
        kept: a file with the ids to keep instead (`read_token_map`), or None.
        recording: where to keep what the models said about the text. None: in a file next to the
            output, until that is written.
        screen_bytes, batch: the share of the pruned rows' bytes that a screen may read, 0 for none,
            and for how many positions at once.
        draft_cost: the time of a drafter's pass in passes of the target, to find when drafts should
            end; None: not asked.
        positions, memory: how many the models read, spread over the text; GiB for the recording.
        device, device_map, dtype: as `load_pair` takes them.
    """

    target: Path
    drafter: Path
    text: tuple[Path, ...]
    output: Path
    held_out: tuple[Path, ...] = ()
    keep: tuple[float, ...] = (0.25,)
    keep_by: str = "probability"
    kept: Path | None = None
    virtual: int = 64
    dynamic: int = 128
    window: int = 256
    screen_bytes: float = 0.0
    batch: int = 1
    temperature: tuple[float, ...] = (1.0,)
    draft_length: int = 4
    draft_cost: float | None = None
    positions: int = 24576
    memory: float = 2.0
    recording: Path | None = None
    device: str | None = None
    device_map: str | None = None
    dtype: str = "float32"
    seed: int = 0
    overwrite: bool = False

    @property
    def settings(self) -> list[Setting]:
        """Each share with each temperature, once."""
        from ..calibration import Setting

        return list(dict.fromkeys(starmap(Setting, product(self.keep, self.temperature))))

    def name(self, setting: Setting) -> str:
        """The name of its directory among several, for example `keep-0.25-temperature-1`."""
        keep, temperature = map(plain, setting)
        return ("" if self.kept else f"keep-{keep}-") + f"temperature-{temperature}"

    @contextmanager
    def places(self, drafters: int) -> Iterator[Callable[[str], Path]]:
        """Where each drafter is written, by name: `--out` itself, or with several in it."""
        from ..integrations.huggingface.saved_drafter import written_whole

        with naming_out():
            if drafters == 1:
                yield lambda name: self.output
            else:
                with written_whole(self.output, self.overwrite) as folder:
                    yield lambda name: folder / name


def plain(value: float) -> str:
    """All of its digits, for a name."""
    return str(value).removesuffix(".0")


@contextmanager
def naming_out() -> Iterator[None]:
    """What cannot be written is a fault of `--out`."""
    from ..drafter import SavedDrafterError
    from ..pair.errors import InputError

    try:
        yield
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error
