"""Target and drafter read a text once; what calibration needs is kept, in bounded memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .reading import Read, Reading, Window
from .recording import Each, Recording
from .recording_file import RecordingState
from .running_recording import RunningRecording, plan_memory


def read_models(target: Any, drafter: Any, *, train: bool = False) -> Read:
    """Reads with two Hugging Face models of one vocabulary, each on its own device.

    With `train` the drafter's states have a gradient, where gradients are enabled.

    The drafter's logits are taken to be its LM head applied to its last hidden state;
    `rdk_cuda.integrations.huggingface.HuggingFaceModel` checks that of a model. A model in training
    mode is refused, since its dropout would be recorded.
    """
    for name, model in (("target", target), ("drafter", drafter)):
        if model.training:
            raise ValueError(
                f"read_models: {name}, a {type(model).__name__}, is in training mode; call "
                f"{name}.eval() first"
            )

    def read(ids: Tensor) -> Reading:
        with torch.no_grad():
            logits = target(input_ids=ids.to(target.device), use_cache=False).logits
        with torch.set_grad_enabled(train and torch.is_grad_enabled()):
            # Without its LM head, whose logits are not needed.
            states = drafter.base_model(input_ids=ids.to(drafter.device), use_cache=False)
        return Reading(logits, states.last_hidden_state)

    return read


@torch.no_grad()
def record(
    read: Read,
    windows: Sequence[Window],
    *,
    temperatures: Sequence[float] = (1.0,),
    memory: int = 2 << 30,
    samples: int | None = None,
    likeliest: int | None = None,
    context: int = 256,
    batch_size: int = 8,
    seed: int = 0,
    state: str | Path | None = None,
    save_every: float = 60.0,
    models: str = "",
    each: Each | None = None,
) -> Recording:
    """Read a text with both models and keep what calibration needs, in bounded memory.

    The result is the same to the bit for every batch size and after every interruption, as long as
    `read` returns the same outputs for a window. A real model's outputs may differ in their last
    bits between batch sizes.

    Args:
        read: both models, as from `read_models`. It is first called with two tokens 0, to learn the
            sizes of what it returns.
        windows: consecutive tokens of one document each. Neighbours of one length are read
            together.
        temperatures: of the target, positive and distinct.
        memory: bytes for everything that is kept and worked with here, whatever the length of the
            text. The windows, the models and the memory that they need are not included. A quarter
            is for windows that are read together, so batches may be smaller than `batch_size`.
        samples: how many positions to keep, at most all of them. None: as many as `memory` allows.
        likeliest: m, how many target tokens to keep for each; 16384, or V_t if that is less. The
            others are missing when virtual tokens are calibrated, so take fewer only if the
            target's tail has less mass than what is pruned.
        context: how many tokens of the text to keep for each.
        batch_size: the largest number of windows to read together.
        seed: int64, of the choice of samples.
        state: a file that is written about every `save_every` seconds, less often if writing is
            slow. If it exists, the recording continues from it. It stays when all is done, and the
            same call then returns at once. What was read since the last write is read again.
        models: names the models, in any words. `state` is refused if it has another name.
        each: shows the progress over batches.

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
    _refuse_bad_arguments(temperatures, context, batch_size, seed, samples)
    if not windows:
        raise ValueError("record: windows is empty; needs one at least, or longer text")
    sizes = read(torch.zeros(1, 2, dtype=torch.int64, device="cpu"))
    unread = int(sizes.target_logits.shape[1:2] == (1,))  # the first token of every text
    _checked(sizes, (1, 2 - unread), "two tokens 0")
    target_size, width = sizes.target_logits.shape[2], sizes.hidden.shape[2]
    _refuse_short_text(windows, unread)
    _refuse_unknown_tokens(windows, target_size)
    lengths = [len(window.ids) - unread for window in windows]
    plan = plan_memory(
        memory, lengths, temperatures, target_size, width, samples, likeliest, context
    )
    running = RunningRecording(plan, seed, sizes.target_logits.device, sizes.hidden.device)
    kept = None
    if state is not None:
        text = f"{len(windows)} windows, {sum(lengths)} tokens, SHA-256 {_digest(windows)}"
        kept = RecordingState(Path(state), running, save_every, text=text, models=models)
        kept.go_on(lengths)

    batches = _batches(lengths, running.windows, batch_size, plan.batch_limit)
    for batch in batches if each is None else each(batches, "Calibrating: reading text"):
        _add_batch(running, read, [windows[i] for i in batch], unread)
        if kept is not None:
            kept.batch_was_added(last=running.windows == len(windows))
    return _finished(running)


def _add_batch(
    running: RunningRecording, read: Read, windows: Sequence[Window], unread: int
) -> None:
    ids = torch.tensor([list(window.ids) for window in windows], dtype=torch.int64, device="cpu")
    first = running.windows
    where = f"windows {first} to {first + len(windows) - 1}"
    plan = running.plan
    shape = ids.shape[0], ids.shape[1] - unread
    reading = _checked(read(ids), shape, where, plan.target_size, plan.width)
    for window, logits, hidden in zip(windows, *reading, strict=True):
        running.add(window, logits, hidden)


def _finished(running: RunningRecording) -> Recording:
    for name in ("probs", "squares", "moment"):
        running.sums[name].div_(running.positions)
    sums = {name: tensor.cpu() for name, tensor in running.sums.items()}
    return Recording(
        temperatures=running.plan.temperatures,
        mean_probs=sums["probs"],
        mean_squares=sums["squares"],
        counts=sums["counts"],
        hidden_second_moment=sums["moment"],
        samples=running.reservoir.samples(),
    )


def _batches(
    lengths: Sequence[int], first: int, batch_size: int, limit: Callable[[int], int]
) -> list[range]:
    """Neighbours of one length from window `first` on, as many as may be read together."""
    batches = []
    while first < len(lengths):
        last = first + 1
        most = first + min(batch_size, limit(lengths[first]))
        while last < min(most, len(lengths)) and lengths[last] == lengths[first]:
            last += 1
        batches.append(range(first, last))
        first = last
    return batches


def _digest(windows: Sequence[Window]) -> str:
    """What tells one text from another, and one division into windows from another."""
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
    """The reading, if it is one of this shape, and of V_t and d as they were."""
    for name, tensor, size, last in (
        ("target_logits", reading.target_logits, "V_t", target_size),
        ("hidden", reading.hidden, "d", width),
    ):
        got = f"{tensor.dtype} {list(tensor.shape)}"
        sound = tensor.is_floating_point() and tensor.dim() == 3 and tensor.shape[:2] == shape
        if not sound or tensor.shape[2] != (last or tensor.shape[2]) or tensor.shape[2] == 0:
            needed = f"[{shape[0]}, {shape[1]}, {size if last is None else f'{size} = {last}'}]"
            raise ValueError(
                f"record: read returned {name} {got} for {where}; needs floating point {needed}"
            )
    return reading


def _refuse_bad_arguments(
    temperatures: Sequence[float], context: int, batch_size: int, seed: int, samples: int | None
) -> None:
    sound = all(0 < temperature < math.inf for temperature in temperatures)
    if not sound or not temperatures or len(set(temperatures)) < len(temperatures):
        raise ValueError(
            f"record: temperatures are {list(temperatures)}; needs one at least, positive, finite "
            "and distinct (greedy choices need none: a sample's first target is the argmax)"
        )
    for name, value, least in (("context", context, 1), ("batch_size", batch_size, 1)):
        if value < least:
            raise ValueError(f"record: {name} is {value}; needs at least {least}")
    if samples is not None and samples < 0:
        raise ValueError(f"record: samples is {samples}; needs at least 0")
    if not -(1 << 63) <= seed < 1 << 63:
        raise ValueError(f"record: seed is {seed}; needs a signed 64-bit integer")


def _refuse_short_text(windows: Sequence[Window], unread: int) -> None:
    for index, window in enumerate(windows):
        if len(window.ids) <= unread:
            raise ValueError(
                f"record: window {index} (document {window.document}) has "
                f"{len(window.ids) or 'no'} tokens; needs at least {unread + 1}: leave it out"
            )


def _refuse_unknown_tokens(windows: Sequence[Window], target_size: int) -> None:
    for index, window in enumerate(windows):
        if not 0 <= min(window.ids) <= max(window.ids) < target_size:
            position, token = next(
                (i, token) for i, token in enumerate(window.ids) if not 0 <= token < target_size
            )
            raise ValueError(
                f"record: window {index} (document {window.document}) has token {token} at "
                f"position {position}; needs ids in [0, {target_size}): the text was cut by "
                "another tokenizer than the target's"
            )
