"""A worker of which one rank has another drafter: the control of comparing ranks."""

from __future__ import annotations

from typing import Any

from rdk_cuda.integrations.vllm import CPUWorker

NAME = f"{__name__}.ChangedRank"


class ChangedRank(CPUWorker):  # type: ignore[misc]
    """Rank 1's last hidden states are larger by a thousandth."""

    def load_model(self, **kwargs: Any) -> None:
        super().load_model(**kwargs)
        if self.rank == 1:
            self._drafting.model.model.norm.weight.data.mul_(1.001)
