"""The drafters that the demo compares."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from rdk_cuda.calibration.drafter import PrunedDrafter
from rdk_cuda.calibration.windows import Window
from rdk_cuda.commands.models import Models
from rdk_cuda.integrations.huggingface import HuggingFaceModel

FULL, PRUNED = "full drafter", "pruned drafter"
FIRST_ORDER, DYNAMIC = "first-order RDK", "dynamic tokens"
VIRTUAL, VIRTUAL_DYNAMIC = "virtual tokens", "virtual+dynamic"


@dataclass(frozen=True)
class Method:
    """A drafter as it stands in the table.

    Attributes:
        name: FULL, PRUNED, FIRST_ORDER, DYNAMIC, VIRTUAL or VIRTUAL_DYNAMIC.
        keep: the share of the vocabulary that its head keeps.
        tuned: tau of the first-order affinity, the offset of virtual tokens (-inf: they are off).
    """

    name: str
    keep: float
    drafter: PrunedDrafter
    tuned: float | None = None

    def __str__(self) -> str:
        """For example `virtual tokens at 25 %`."""
        return f"{self.name} at {100 * self.keep:.4g} %"

    def mean_dynamic_columns(self, windows: Iterable[Window]) -> float:
        """How many dynamic tokens a position of the windows has."""
        source = self.drafter.dynamic_tokens
        if source is None:
            return 0.0
        used = [source(window.contexts) >= 0 for window in windows]
        return float(torch.cat(used).sum(1).double().mean())

    def model(self, models: Models) -> HuggingFaceModel:
        """The drafter's model with its head, for decoding."""
        if self.name == FULL:
            return HuggingFaceModel(models.drafter)
        return HuggingFaceModel(
            models.drafter, head=self.drafter.weight, head_bias=self.drafter.bias
        )
