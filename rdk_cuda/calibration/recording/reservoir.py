"""A uniform sample of a text's positions in bounded memory, whatever the order of work."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _ops as operators
from .samples import Samples

__all__ = ["Reservoir", "likeliest_tokens", "random_keys"]

_COLUMNS = 64  # that are brought into order at a time


def random_keys(seed: int, positions: Tensor) -> Tensor:
    """A random int64 for each position of the text, which depends on nothing but the seed."""
    keys: Tensor = operators.step_keys(torch.full_like(positions, seed), positions)
    return keys


def likeliest_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest logits of each row: ids int32, and values, both `[n, count]`.

    Descending, lowest id on ties, also of those that just find room, which `torch.topk` leaves
    open; the logits of a bfloat16 model are full of ties.
    """
    largest = logits.topk(count, sorted=False).values
    last = largest.amin(1, keepdim=True)
    above, level = logits > last, logits == last
    room = (largest == last).sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1, dtype=torch.int32) <= room))
    ids = chosen.nonzero()[:, 1].view(len(logits), count)
    values, order = logits.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return ids.gather(1, order).int(), values


class Reservoir:
    """The positions with the smallest random keys, among those offered so far.

    So every set of `size` positions is equally likely, however many there are, and neither batches
    nor interruptions change which they are.

    Attributes:
        rows: by name, tensors of `size` rows: `keys` and `positions` `[size]` int64, and what
            `Samples` has. In no order.
        filled: how many of the rows are in use, the first ones.
    """

    def __init__(
        self, size: int, width: int, likeliest: int, context: int, temperatures: tuple[float, ...]
    ) -> None:
        self.size, self.filled, self.temperatures = size, 0, temperatures
        self.rows = {
            "keys": torch.empty(size, dtype=torch.int64, device="cpu"),
            "positions": torch.empty(size, dtype=torch.int64, device="cpu"),
            "hidden": torch.empty(size, width, dtype=torch.float32, device="cpu"),
            "targets": torch.empty(size, likeliest, dtype=torch.int32, device="cpu"),
            "target_logits": torch.empty(size, likeliest, dtype=torch.float32, device="cpu"),
            "log_normalizers": torch.empty(
                size, len(temperatures), dtype=torch.float32, device="cpu"
            ),
            "contexts": torch.empty(size, context, dtype=torch.int32, device="cpu"),
            "documents": torch.empty(size, dtype=torch.int64, device="cpu"),
        }

    @staticmethod
    def row_bytes(width: int, likeliest: int, context: int, temperatures: int) -> int:
        """The memory of one position."""
        return 3 * 8 + 4 * (width + 2 * likeliest + temperatures + context)

    def choose(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the positions with these keys are taken, and the rows to `put` them in."""
        old = self.filled
        every = torch.cat([self.rows["keys"][:old], keys])
        self.filled = min(self.size, len(every))
        dropped = torch.ones(len(every), dtype=torch.bool, device="cpu")
        dropped[every.topk(self.filled, largest=False, sorted=False).indices] = False
        taken = (~dropped[old:]).nonzero()[:, 0]
        free = torch.cat(
            [dropped[:old].nonzero()[:, 0], torch.arange(old, self.filled, device="cpu")]
        )
        return taken, free

    def put(self, rows: Tensor, **values: Tensor) -> None:
        """What belongs to the positions that were chosen, under the names of `rows`."""
        for name, value in values.items():
            self.rows[name][rows] = value.to(self.rows[name])

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Go on from rows that were saved. They are taken out of `saved` one by one: only one
        tensor is held twice.
        """
        self.filled = len(saved["keys"])
        for name, rows in self.rows.items():
            rows[: self.filled] = saved.pop(name)

    def samples(self) -> Samples:
        """The positions in the order of the text. They are put in order in place, block by block:
        a copy would be as large as the reservoir.
        """
        order = self.rows["positions"][: self.filled].argsort()
        for tensor in self.rows.values():
            for columns in tensor[: self.filled, None].flatten(1).split(_COLUMNS, dim=1):
                columns.copy_(columns[order])
        kept = {name: tensor[: self.filled] for name, tensor in self.rows.items()}
        del kept["keys"], kept["positions"]
        return Samples(temperatures=self.temperatures, **kept)
