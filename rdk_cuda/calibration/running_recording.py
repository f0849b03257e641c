"""A recording under way: sums over the positions read so far, within a bound of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _ops as operators
from .reading import Window
from .recording import Samples

_MOST_LIKELIEST = 16384  # target tokens of a sample, unless more are asked for

# Logits are worked through in blocks of rows, which does not depend on the bound: sums of floating
# point numbers depend on it. 16 rows of 128,256 tokens.
_BLOCK_ENTRIES = 1 << 21
# Bytes for each entry of a block: logits and probabilities in float32, or logits, those of the
# chosen rows, and who of them is among the likeliest; and for each of a row's likeliest tokens.
_ENTRY_BYTES, _LIKELIEST_BYTES = 20, 48
_COLUMNS = 64  # that are brought into order at a time
_FEWEST_SAMPLES = 256  # an acceptance measured on fewer says little


@dataclass(frozen=True)
class Plan:
    """What is kept of a text, and the memory for what is worked with.

    Attributes:
        samples, likeliest, context: positions kept, and of each the target's tokens and the text's.
        batch_bytes: for what one call of `read` returns.
    """

    temperatures: tuple[float, ...]
    target_size: int
    width: int
    samples: int
    likeliest: int
    context: int
    batch_bytes: int

    def batch_limit(self, length: int) -> int:
        """How many windows of this length may be read together."""
        return max(1, self.batch_bytes // window_bytes(length, self.target_size, self.width))


def window_bytes(length: int, target_size: int, width: int) -> int:
    """What `read` returns for one window, in float32."""
    return 4 * length * (target_size + width)


def block_rows(target_size: int) -> int:
    """How many positions are worked on at a time."""
    return max(1, _BLOCK_ENTRIES // target_size)


def plan_memory(
    memory: int,
    lengths: Sequence[int],
    temperatures: tuple[float, ...],
    target_size: int,
    width: int,
    samples: int | None,
    likeliest: int | None,
    context: int,
) -> Plan:
    """Divides `memory` between sums, a block, a batch (a quarter, or a window) and samples.

    None of it depends on the length of the text, except that a short one has fewer samples.
    """
    likeliest = min(target_size, _MOST_LIKELIEST) if likeliest is None else likeliest
    if not 1 <= likeliest <= target_size:
        raise ValueError(f"record: likeliest is {likeliest}; needs 1 to V_t = {target_size}")
    longest, total = max(lengths), sum(lengths)
    # One more sum over V_t: a block's, before it is added.
    sums = 8 * (target_size * (2 * len(temperatures) + 2) + width * width)
    rows = min(longest, block_rows(target_size))
    block = rows * (_ENTRY_BYTES * target_size + _LIKELIEST_BYTES * likeliest + 8 * width)
    block += 8 * longest * width  # a window's hidden states as float64
    window = window_bytes(longest, target_size, width)
    each = Reservoir.row_bytes(width, likeliest, context, len(temperatures))
    needed = min(total, _FEWEST_SAMPLES if samples is None else samples)
    batch = max(memory // 4, window)
    room = memory - sums - block - batch
    if room < needed * each:
        enough = sums + block + needed * each
        enough = max(enough + window, math.ceil(enough * 4 / 3) + 1)
        raise ValueError(
            f"record: memory is {memory:,} bytes; needs {enough:,} for V_t = {target_size} and "
            f"d = {width}: {sums:,} for sums, {block:,} to work in, {window:,} for a window of "
            f"{longest} tokens, a quarter at least for windows, and {each:,} for each of {needed} "
            "samples; give more, cut shorter windows, or keep fewer of samples or likeliest"
        )
    kept = min(total, room // each if samples is None else samples)
    return Plan(temperatures, target_size, width, kept, likeliest, context, batch)


class RunningRecording:
    """Sums over the windows read so far, and a reservoir of their positions.

    Windows are added one by one, and each in blocks of the same rows, so that the sums are the same
    to the bit however windows were batched.

    Attributes:
        windows, positions: how many were added.
        sums: `probs` and `squares` `[nT, V_t]` and `moment` `[d, d]` float64, on the devices of
            what they are sums of; `counts` `[V_t]` int64.
    """

    def __init__(self, plan: Plan, seed: int, device: torch.device, hidden: torch.device) -> None:
        self.plan, self.seed = plan, seed
        self.windows = self.positions = 0
        shape = len(plan.temperatures), plan.target_size
        self.sums = {
            "probs": torch.zeros(shape, dtype=torch.float64, device=device),
            "squares": torch.zeros(shape, dtype=torch.float64, device=device),
            "counts": torch.zeros(plan.target_size, dtype=torch.int64, device="cpu"),
            "moment": torch.zeros(plan.width, plan.width, dtype=torch.float64, device=hidden),
        }
        self.reservoir = Reservoir(
            plan.samples, plan.width, plan.likeliest, plan.context, plan.temperatures
        )

    def add(self, window: Window, logits: Tensor, hidden: Tensor) -> None:
        """Add a window: logits `[n, V_t]` and hidden states `[n, d]` after its last n tokens."""
        where = f"window {self.windows} (document {window.document})"
        ids = torch.tensor(window.ids, dtype=torch.int32, device="cpu")
        padded = torch.cat(
            [torch.full((self.plan.context - 1,), -1, dtype=torch.int32, device="cpu"), ids]
        )
        ids = ids[len(ids) - len(logits) :]
        contexts = padded.unfold(0, self.plan.context, 1)[-len(ids) :]
        places = torch.arange(self.positions, self.positions + len(ids), device="cpu")
        size = block_rows(self.plan.target_size)
        for start in range(0, len(ids), size):
            rows = slice(start, start + size)
            block, states = logits[rows].float(), hidden[rows].float()
            _refuse_bad_values(where, start, block, states)
            normalizers = self._add_probs(where, start, block)
            self._sample(
                block,
                log_normalizers=normalizers,
                hidden=states,
                contexts=contexts[rows],
                positions=places[rows],
                documents=torch.full(
                    (len(block),), window.document, dtype=torch.int64, device="cpu"
                ),
            )
        # Once for a window, as this reads and writes all of [d, d].
        exact = hidden.double()
        self.sums["moment"].addmm_(exact.T, exact)
        self.sums["counts"] += ids.bincount(minlength=self.plan.target_size)
        self.positions += len(ids)
        self.windows += 1

    def _sample(self, logits: Tensor, **values: Tensor) -> None:
        """Offers a block of positions to the reservoir; `values` by the names of its rows."""
        keys = random_keys(self.seed, values["positions"])
        taken, rows = self.reservoir.choose(keys)
        if len(taken):
            likeliest = logits[taken.to(logits.device)]
            targets, target_logits = likeliest_tokens(likeliest, self.plan.likeliest)
            self.reservoir.put(
                rows,
                keys=keys[taken],
                targets=targets,
                target_logits=target_logits,
                **{name: value[taken.to(value.device)] for name, value in values.items()},
            )

    def _add_probs(self, where: str, start: int, logits: Tensor) -> Tensor:
        """Adds the probabilities at every temperature; their log-normalizers `[rows, nT]`."""
        largest, normalizers = logits.amax(-1), []
        for t, temperature in enumerate(self.plan.temperatures):
            probs = (logits - largest[:, None]).div_(temperature).exp_()
            total = probs.sum(-1)
            normalizer = largest / temperature + total.log()
            _refuse(
                normalizer.isfinite(),
                where,
                start,
                f"target_logits / {temperature} overflow float32; needs a higher temperature",
            )
            normalizers.append(normalizer)
            # Float32 over the rows of a block, whose pairwise sums are as exact as the terms.
            self.sums["probs"][t] += probs.div_(total[:, None]).sum(0)
            self.sums["squares"][t] += probs.square_().sum(0)
        return torch.stack(normalizers, dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """All that is needed to continue."""
        filled = self.reservoir.filled
        return {**self.sums, **{name: row[:filled] for name, row in self.reservoir.rows.items()}}

    def restore(self, saved: dict[str, Tensor], windows: int) -> None:
        """Continue from `tensors()` that were saved after this many windows; empties `saved`."""
        for name, total in self.sums.items():
            total.copy_(saved.pop(name))
        self.reservoir.restore(saved)
        self.windows, self.positions = windows, int(self.sums["counts"].sum())


def _refuse_bad_values(where: str, start: int, logits: Tensor, hidden: Tensor) -> None:
    # The largest logit of a row is enough: amax propagates NaN.
    largest = logits.amax(-1)
    _refuse(~largest.isnan(), where, start, "target_logits has NaN; needs numbers or -inf")
    _refuse(largest != torch.inf, where, start, "target_logits has inf; needs numbers or -inf")
    _refuse(largest != -torch.inf, where, start, "target_logits are all -inf; needs a finite one")
    _refuse(hidden.isfinite().all(-1), where, start, "hidden has NaN or inf; needs finite numbers")


def _refuse(sound: Tensor, where: str, start: int, reason: str) -> None:
    if not bool(sound.all()):
        raise ValueError(
            f"record: {where}, position {start + int((~sound).nonzero()[0])}: {reason}"
        )


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
