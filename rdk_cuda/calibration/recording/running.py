"""A recording under way: sums over the positions read so far, within a bound of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .reservoir import Reservoir, likeliest_tokens, random_keys
from .windows import Window

__all__ = ["Plan", "RunningRecording", "plan_memory"]

_MOST_LIKELIEST = 16384  # target tokens of a sample, unless more are asked for

# Logits are worked through in blocks of rows, which does not depend on the bound: sums of floating
# point numbers depend on it. 16 rows of 128,256 tokens.
_BLOCK_ENTRIES = 1 << 21
# Bytes for each entry of a block: logits and probabilities in float32, or logits, those of the
# chosen rows, and who of them is among the likeliest; and for each of a row's likeliest tokens.
_ENTRY_BYTES, _LIKELIEST_BYTES = 20, 48
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

    Raises:
        ValueError: too little memory, and how much would do.
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
        """Add a window, with logits `[n, V_t]` and hidden states `[n, d]` after its last n tokens.

        Raises:
            ValueError: values that do not make a distribution or a sum, and where they are.
        """
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
