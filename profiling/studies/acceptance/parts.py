"""The parts of the acceptance report: what is calibrated, and what is measured.

A `Run` is one calibration with everything that is built from it; a part has one or more of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdk_cuda.calibration.material import Options
from rdk_cuda.calibration.methods import (
    COVARIANCE,
    DYNAMIC,
    FIRST_ORDER,
    LOW_RANK,
    PRUNED,
    RECOMMENDED,
    SECOND_MOMENT,
    VIRTUAL,
)

__all__ = ["PARTS", "Run"]

PRUNINGS = (0.5, 0.25, 0.125, 0.0625, 0.03125, 0.01)
TWO_PRUNINGS = (0.25, 0.0625)
MAIN = (PRUNED, DYNAMIC, VIRTUAL, RECOMMENDED)


@dataclass(frozen=True)
class Run:
    """One calibration, and what is built from it and measured; the full drafter always is.

    Attributes:
        keeps: shares of the vocabulary; kept are the tokens that the target is likeliest to say at
            T = 1.
        temperatures: 0 for greedy.
        positions: of calibration text; None for those of the settings.
        all_successors: whether successors are counted in all of the calibration text, and not only
            where the models read it.
        virtual: numbers of virtual rows at most.
    """

    keeps: tuple[float, ...]
    temperatures: tuple[float, ...]
    methods: tuple[str, ...] = MAIN
    positions: int | None = None
    all_successors: bool = True
    virtual: tuple[int, ...] = (Options.virtual,)

    @property
    def label(self) -> str:
        """The calibration text, in words."""
        positions = "" if self.positions is None else f", {self.positions:,} positions"
        return f"code{positions}{'' if self.all_successors else ', successors of the text read'}"

    @property
    def recorded(self) -> tuple[float, ...]:
        """Temperatures to record: 1.0, at which tokens are kept, then those it needs."""
        return tuple(dict.fromkeys((1.0, *filter(None, self.temperatures))))


PARTS: dict[str, tuple[Run, ...]] = {
    "methods": (
        Run(
            PRUNINGS,
            (1.0, 0.7),
            (PRUNED, FIRST_ORDER, LOW_RANK, DYNAMIC, VIRTUAL, RECOMMENDED),
        ),
    ),
    # Their time grows with the samples and with the kept tokens: minutes for each.
    "similarities": (Run(PRUNINGS, (1.0,), (PRUNED, SECOND_MOMENT, COVARIANCE), positions=1536),),
    "temperatures": (Run(PRUNINGS, (0.8, 0.6, 0.0)),),
    "sizes": tuple(
        Run(
            TWO_PRUNINGS,
            (1.0, 0.7),
            (PRUNED, RECOMMENDED),
            positions=positions,
            all_successors=all_successors,
        )
        for positions in (1536, 6144, 24576)
        for all_successors in (True, False)
    ),
    "virtual": (Run(TWO_PRUNINGS, (1.0, 0.7), virtual=(1, 4, 16, 64, 256)),),
}
