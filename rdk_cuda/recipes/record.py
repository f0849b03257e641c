"""Stage 0: both models read a text once; what calibration needs is kept in bounded memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _ops as operators
from ..decoding.models import Read, Reading
from .inputs.documents import Window
from .recording import Each, Recording, Samples, silently
from .shards import Shards

SHARD = 8  # windows that are read together, at most, and then saved
_MOST_LIKELIEST = 16384  # target tokens of a sample
# Logits are worked through in blocks of rows, which does not depend on the bound of memory: sums of
# floating point numbers depend on it. 16 rows of 128,256 tokens.
_BLOCK_ENTRIES = 1 << 21
# Bytes for each entry of a block: logits and probabilities in float32, or logits, those of the
# chosen rows, and who of them is among the likeliest; and for each of a row's likeliest tokens.
_ENTRY_BYTES, _LIKELIEST_BYTES = 20, 48
_FEWEST_SAMPLES = 256  # an acceptance measured on fewer says little


class Plan(NamedTuple):
    """How much is kept of a text: positions and, of each, likeliest tokens and a context.

    Attributes:
        batch_bytes: for what one call of `read` returns.
    """

    temperatures: tuple[float, ...]
    target_size: int
    width: int
    samples: int
    likeliest: int
    context: int
    batch_bytes: int

    @property
    def block_rows(self) -> int:
        return max(1, _BLOCK_ENTRIES // self.target_size)

    def batches(self, lengths: Sequence[int], first: int = 0) -> list[range]:
        batches = []
        while first < len(lengths):
            window = _window_bytes(lengths[first], self.target_size, self.width)
            most, last = first + min(SHARD, max(1, self.batch_bytes // window)), first + 1
            while last < min(most, len(lengths)) and lengths[last] == lengths[first]:
                last += 1
            batches.append(range(first, last))
            first = last
        return batches


@torch.no_grad()
def record(
    read: Read,
    windows: Sequence[Window],
    *,
    temperatures: Sequence[float] = (1.0,),
    memory: int = 2 << 30,
    samples: int | None = None,
    context: int = 256,
    seed: int = 0,
    state: str | Path | None = None,
    models: str = "",
    each: Each = silently,
) -> Recording:
    """Read a text with both models and keep what calibration needs, in bounded memory.

    The result is the same to the bit after every interruption, as long as `read` returns the same
    outputs for a window.

    Args:
        read: both models, as from `read_models`. It is first called with two tokens 0, to learn the
            sizes of what it returns.
        windows: consecutive tokens of one document each; up to 8 of one length are read together.
        temperatures: of the target, positive and distinct.
        memory: bytes for what is kept and worked with here, a quarter of it for windows that are
            read together, whatever the length of the text.
        samples: how many positions to keep. None: as many as `memory` allows.
        context: how many tokens of the text to keep for each.
        seed: int64, of the choice of samples.
        state: a folder that a shard is added to after each windows read together, and that a later
            call continues from. It takes 4 bytes for each token of the vocabulary at each position
            kept, or 8 for each of the likeliest 16,384 if that is less.
        models: names the models, in any words. `state` is refused if it has another name.

    Raises:
        RecordingError: a `state` that is damaged or of a recording with other arguments.
        ValueError: no text, ids outside of the vocabulary, outputs that are no logits or hidden
            states, too little memory.

    Example:
        >>> table = torch.eye(5).log_softmax(-1)
        >>> def read(ids):
        ...     return Reading(table[ids], table[ids, :3])
        >>> recording = record(read, [Window(0, [1, 4, 2]), Window(1, [3])])
        >>> recording.positions, recording.counts.tolist(), len(recording.samples)
        (4, [0, 1, 1, 1, 1], 4)
    """
    temperatures = tuple(map(float, temperatures))
    _refuse_bad_arguments(windows, temperatures, context, seed, samples)
    sizes = read(torch.zeros(1, 2, dtype=torch.int64, device="cpu"))
    unread = int(sizes.target_logits.shape[1:2] == (1,))  # the first token of every text
    _checked(sizes, (1, 2 - unread), "two tokens 0")
    target_size, width = sizes.target_logits.shape[2], sizes.hidden.shape[2]
    _refuse_unreadable(windows, unread, target_size)
    lengths = [len(window.ids) - unread for window in windows]
    plan = plan_memory(memory, lengths, temperatures, target_size, width, samples, context)
    running = Running(plan, windows, lengths, seed, sizes)
    shards, done = None, 0
    if state is not None:
        text = f"{len(windows)} windows, {sum(lengths)} tokens, SHA-256 {_digest(windows)}"
        said = {**plan._asdict(), "text": text, "models": models, "seed": seed}
        del said["batch_bytes"]
        shards = Shards(
            Path(state), said, running.rows_of, len(lengths), running.sums, running.rows
        )
        done = shards.resume()
    left = plan.batches(lengths, done)
    for batch in each(left, "Calibrating: reading text"):
        running.read(read, batch, unread)
        if shards is not None:
            shards.add(batch)
    return running.finished()


def plan_memory(
    memory: int,
    lengths: Sequence[int],
    temperatures: tuple[float, ...],
    target_size: int,
    width: int,
    samples: int | None,
    context: int,
) -> Plan:
    """Divide `memory` between sums, a block, a batch (a quarter, or a window) and samples."""
    likeliest, longest, total = min(target_size, _MOST_LIKELIEST), max(lengths), sum(lengths)
    plan = Plan(temperatures, target_size, width, 0, likeliest, context, 0)
    # One more sum over V_t: a block's, before it is added.
    sums = 8 * (target_size * (len(temperatures) + 2) + width * width)
    rows = min(longest, plan.block_rows)
    block = rows * (_ENTRY_BYTES * target_size + _LIKELIEST_BYTES * likeliest + 8 * width)
    block += 8 * longest * width  # a window's hidden states as float64
    window = _window_bytes(longest, target_size, width)
    each = 3 * 8 + 4 * (width + 2 * likeliest + len(temperatures) + context)
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
            "samples; give more, cut shorter windows, or keep fewer samples"
        )
    kept = min(total, room // each if samples is None else samples)
    return plan._replace(samples=kept, batch_bytes=batch)


def sampled_positions(seed: int, total: int, count: int) -> Tensor:
    """`[count]` int64, ascending: every set of so many positions is equally likely.

    Those with the smallest random keys, which depend on nothing but seed and position.
    """
    places = torch.arange(total, dtype=torch.int64, device="cpu")
    keys: Tensor = operators.step_keys(torch.full_like(places, seed), places)
    return keys.topk(count, largest=False, sorted=False).indices.sort().values


class Running:
    """Sums over the windows read so far, and rows for the positions that are kept.

    Each window is added in blocks of the same rows, so that the sums are the same to the bit
    however windows were batched. `rows` are the tensors of `Samples`, by name.
    """

    def __init__(
        self,
        plan: Plan,
        windows: Sequence[Window],
        lengths: Sequence[int],
        seed: int,
        sizes: Reading,
    ) -> None:
        self.plan, self.windows = plan, windows
        self.begins = [0, *accumulate(lengths)]
        self.places = sampled_positions(seed, self.begins[-1], plan.samples)
        shape, wide = (len(plan.temperatures), plan.target_size), (plan.width, plan.width)
        device = sizes.target_logits.device
        self.sums = {
            "probs": torch.zeros(shape, dtype=torch.float64, device=device),
            "counts": torch.zeros(plan.target_size, dtype=torch.int64, device="cpu"),
            "moment": torch.zeros(wide, dtype=torch.float64, device=sizes.hidden.device),
        }
        count, real = plan.samples, torch.float32
        self.rows = {
            "hidden": torch.empty(count, plan.width, dtype=real, device="cpu"),
            "targets": torch.empty(count, plan.likeliest, dtype=torch.int32, device="cpu"),
            "target_logits": torch.empty(count, plan.likeliest, dtype=real, device="cpu"),
            "log_normalizers": torch.empty(count, len(plan.temperatures), dtype=real, device="cpu"),
            "contexts": torch.full((count, plan.context), -1, dtype=torch.int32, device="cpu"),
            "documents": torch.empty(count, dtype=torch.int64, device="cpu"),
        }
        for index, (window, length) in enumerate(zip(windows, lengths, strict=True)):
            own = self.rows_of(range(index, index + 1))
            unread = len(window.ids) - length - self.begins[index] + 1
            self.rows["documents"][own] = window.document
            for row, place in zip(range(len(self.places))[own], self.places[own], strict=True):
                seen = window.ids[: unread + int(place)][-plan.context :]
                self.rows["contexts"][row, -len(seen) :] = torch.tensor(
                    seen, dtype=torch.int32, device="cpu"
                )

    def rows_of(self, batch: range) -> slice:
        ends = torch.tensor(
            [self.begins[batch.start], self.begins[batch.stop]], dtype=torch.int64, device="cpu"
        )
        return slice(*torch.searchsorted(self.places, ends).tolist())

    def read(self, read: Read, batch: range, unread: int) -> None:
        windows = [self.windows[index] for index in batch]
        ids = torch.tensor([window.ids for window in windows], dtype=torch.int64, device="cpu")
        plan, where = self.plan, f"windows {batch.start} to {batch.stop - 1}"
        shape = ids.shape[0], ids.shape[1] - unread
        reading = _checked(read(ids), shape, where, plan.target_size, plan.width)
        for index, logits, hidden in zip(batch, *reading, strict=True):
            self.add(index, logits, hidden)

    def add(self, index: int, logits: Tensor, hidden: Tensor) -> None:
        """Add a window: logits `[n, V_t]` and hidden states `[n, d]` after its last n tokens."""
        where = f"window {index} (document {self.windows[index].document})"
        own = self.rows_of(range(index, index + 1))
        places = self.places[own] - self.begins[index]
        for start in range(0, len(logits), size := self.plan.block_rows):
            block, states = (part[start : start + size].float() for part in (logits, hidden))
            _refuse_bad_values(where, start, block, states)
            normalizers = self._add_probs(where, start, block)
            first, last = torch.searchsorted(
                places, torch.tensor([start, start + size], dtype=torch.int64, device="cpu")
            ).tolist()
            rows = slice(own.start + first, own.start + last)
            if first < last:
                taken = places[first:last] - start
                likeliest = likeliest_tokens(block[taken.to(block.device)], self.plan.likeliest)
                self.rows["targets"][rows], self.rows["target_logits"][rows] = likeliest
                self.rows["hidden"][rows] = states[taken.to(states.device)]
                self.rows["log_normalizers"][rows] = normalizers[taken.to(normalizers.device)]
        # Once for a window, as this reads and writes all of [d, d].
        exact = hidden.double()
        self.sums["moment"].addmm_(exact.T, exact)
        ids = torch.tensor(self.windows[index].ids[-len(logits) :], dtype=torch.int64, device="cpu")
        self.sums["counts"] += ids.bincount(minlength=self.plan.target_size)

    def _add_probs(self, where: str, start: int, logits: Tensor) -> Tensor:
        """Adds the probabilities at every temperature; their log-normalizers `[rows, nT]`."""
        largest, normalizers = logits.amax(-1), []
        for t, temperature in enumerate(self.plan.temperatures):
            probs = (logits - largest[:, None]).div_(temperature).exp_()
            total = probs.sum(-1)
            normalizer = largest / temperature + total.log()
            reason = f"target_logits / {temperature} overflow float32; needs a higher temperature"
            _refuse(normalizer.isfinite(), where, start, reason)
            normalizers.append(normalizer)
            # Float32 over the rows of a block, whose pairwise sums are as exact as the terms.
            self.sums["probs"][t] += probs.div_(total[:, None]).sum(0)
        return torch.stack(normalizers, dim=1)

    def finished(self) -> Recording:
        """The means; the sums are gone."""
        for name in ("probs", "moment"):
            self.sums[name].div_(self.begins[-1])
        sums, temperatures = self.sums, self.plan.temperatures
        return Recording(
            temperatures=temperatures,
            mean_probs=sums["probs"].cpu(),
            counts=sums["counts"],
            hidden_second_moment=sums["moment"].cpu(),
            samples=Samples(temperatures=temperatures, **self.rows),
        )


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


def _window_bytes(length: int, target_size: int, width: int) -> int:
    return 4 * length * (target_size + width)


def _digest(windows: Sequence[Window]) -> str:
    digest = hashlib.sha256()
    for window in windows:
        for numbers in ((window.document, len(window.ids)), window.ids):
            held = torch.tensor(numbers, dtype=torch.int64, device="cpu")
            digest.update(held.numpy().tobytes())
    return digest.hexdigest()[:16]


def _checked(
    reading: Reading,
    shape: tuple[int, ...],
    where: str,
    target_size: int | None = None,
    width: int | None = None,
) -> Reading:
    for name, tensor, size, last in (
        ("target_logits", reading.target_logits, "V_t", target_size),
        ("hidden", reading.hidden, "d", width),
    ):
        sound = tensor.is_floating_point() and tensor.dim() == 3 and tensor.shape[:2] == shape
        if not sound or tensor.shape[2] != (last or tensor.shape[2]) or tensor.shape[2] == 0:
            needed = f"[{shape[0]}, {shape[1]}, {size if last is None else f'{size} = {last}'}]"
            raise ValueError(
                f"record: read returned {name} {tensor.dtype} {list(tensor.shape)} for {where}; "
                f"needs floating point {needed}"
            )
    return reading


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


def _refuse_bad_arguments(
    windows: Sequence[Window],
    temperatures: Sequence[float],
    context: int,
    seed: int,
    samples: int | None,
) -> None:
    sound = all(0 < temperature < math.inf for temperature in temperatures)
    if not sound or not temperatures or len(set(temperatures)) < len(temperatures):
        raise ValueError(
            f"record: temperatures are {list(temperatures)}; needs one at least, positive, finite "
            "and distinct (greedy choices need none: a sample's first target is the argmax)"
        )
    if not windows:
        raise ValueError("record: windows is empty; needs one at least, or longer text")
    for name, value, least in (("context", context, 1), ("samples", samples or 0, 0)):
        if value < least:
            raise ValueError(f"record: {name} is {value}; needs at least {least}")
    if not -(1 << 63) <= seed < 1 << 63:
        raise ValueError(f"record: seed is {seed}; needs a signed 64-bit integer")


def _refuse_unreadable(windows: Sequence[Window], unread: int, target_size: int) -> None:
    for index, window in enumerate(windows):
        where = f"record: window {index} (document {window.document}) has"
        if len(window.ids) <= unread:
            raise ValueError(
                f"{where} {len(window.ids) or 'no'} tokens; needs at least {unread + 1}: leave it "
                "out"
            )
        if not 0 <= min(window.ids) <= max(window.ids) < target_size:
            bad = next(id for id in window.ids if not 0 <= id < target_size)
            raise ValueError(
                f"{where} token {bad} at position {window.ids.index(bad)}; needs ids in "
                f"[0, {target_size}): the text was cut by another tokenizer than the target's"
            )
