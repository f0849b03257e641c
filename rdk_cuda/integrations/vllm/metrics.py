"""A worker's counters, and their way to `/metrics` of vLLM's server.

vLLM's `stat_logger_plugins` are shown what its scheduler knows, and nothing of a worker. So a
worker adds up on its device, and writes the sums into a file now and then. The server's process
reads the files of its workers when it is asked for metrics. Before vLLM starts its processes
`plugin` names the folder, in an environment variable that they inherit.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...dynamic_tokens.sources import is_pruned
from ...files import read_json, write_json
from ...functional import Method
from ...vocabulary import Vocabulary
from ..draft_arena import DraftArena

FOLDER = "RDK_CUDA_METRICS"
_SECONDS = 5.0  # between two files

# By name: what it is, its label, and the label's values.
_FAMILIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "drafted_tokens": ("Drafts that were verified.", "distribution", ("known", "none")),
    "accepted_tokens": (
        "Accepted drafts: tokens of the drafter's head, dynamic tokens, those that virtual tokens "
        "stood for, and drafts whose distribution was not kept.",
        "kind",
        ("head", "dynamic", "virtual", "none"),
    ),
    "verified_steps": ("Steps that verified drafts.", "method", ("token", "block")),
    "sharded_steps": ("Those whose logits stayed on their ranks.", "method", ("token",)),
    "put_back_tokens": ("Drafts that were put back, to be rejected.", "cut_by", ("grammar",)),
}
_COUNTED = [(name, value) for name, (_, _, values) in _FAMILIES.items() for value in values]


class Counters:
    """Sums of what a worker verified, on its device.

    Args:
        vocabulary: the drafter's own tokens.
        device: that of the drafts.

    Attributes:
        active: whether it counts. Not before the first step of a request: warming up is no work.
    """

    def __init__(self, vocabulary: Vocabulary, device: torch.device) -> None:
        self.active = False
        self._pruned = is_pruned(vocabulary, device)
        self._sums = torch.zeros(len(_COUNTED), dtype=torch.int64, device=device)
        # Read here to be published: a step's tokens are not known before its copy has ended.
        pinned = device.type == "cuda"
        self._copy = torch.zeros_like(self._sums, device="cpu", pin_memory=pinned)
        self._changed, self._next = False, 0.0
        self._writer: threading.Timer | None = None

    def count(
        self,
        arena: DraftArena,
        drafts: Tensor,
        offsets: Tensor,
        slots: Tensor,
        num_accepted: Tensor,
        method: Method,
        sharded: bool = False,
    ) -> None:
        """Add a step. Waits for nothing.

        Args:
            arena: what the drafts were drawn from.
            drafts: `[N]`, packed; -1 is none, and behind the last offset is padding.
            offsets: `[B + 1]` int32. num_accepted: `[B]`.
            slots: `[B]`, as in `DraftArena.verify`.
            method: by which they were verified. sharded: whether logits stayed on their ranks.
        """
        if not self.active or not len(drafts):
            return
        places = torch.arange(len(drafts), device=drafts.device)
        request = torch.searchsorted(offsets[1:].contiguous(), places, right=True)
        request = request.clamp_(max=len(slots) - 1)
        there = (places < offsets[-1]) & (drafts >= 0)
        accepted = there & (places - offsets[request] < num_accepted[request])
        rows = arena.draft_rows(offsets, slots, len(drafts))
        pruned = self._pruned[drafts.long().clamp(min=0)]
        dynamic = torch.zeros_like(pruned)
        if arena.rows.dynamic_tokens is not None:
            named = arena.rows.dynamic_tokens.flatten(0, 1)
            named = named[rows.clamp(0, len(named) - 1)]
            dynamic = pruned & (named == drafts[:, None]).any(1)
        unknown = there & (rows < 0)
        known, other = accepted & ~unknown, accepted & unknown
        kinds = (known & ~pruned, known & dynamic, known & pruned & ~dynamic, other)
        sums = torch.stack([there ^ unknown, unknown, *kinds]).sum(1)
        self._sums[: len(sums)] += sums
        self._sums[_COUNTED.index(("verified_steps", method))] += there.any()
        self._sums[_COUNTED.index(("sharded_steps", "token"))] += there.any() & sharded
        self._copy.copy_(self._sums, non_blocking=True)
        self._changed = True

    def put_back(self, drafts: Tensor | int) -> None:
        """Add drafts that a grammar had cut. The step that counts them next has them, too.

        So they are taken from what it drafted: to vLLM they are none, as it has cut them.
        """
        if self.active:
            self._sums[-1] += drafts
            self._sums[_COUNTED.index(("drafted_tokens", "known"))] -= drafts

    def read(self) -> dict[str, int]:
        """Return the sums, by `NAME.VALUE`, up to the last step whose tokens are known."""
        names = (f"{name}.{value}" for name, value in _COUNTED)
        return dict(zip(names, self._copy.tolist(), strict=True))

    def publish(self) -> None:
        """Have changed sums written for the server, some seconds after the last time or now.

        A thread writes them, also when no step follows. A full disk costs the metrics, and not the
        worker.
        """
        folder = os.environ.get(FOLDER)
        if folder is not None and self._changed and self._writer is None:
            self._changed = False
            wait = max(0.0, self._next - time.monotonic())
            self._writer = threading.Timer(wait, self._write, [Path(folder)])
            self._writer.daemon = True
            self._writer.start()

    def _write(self, folder: Path) -> None:
        self._next, self._writer = time.monotonic() + _SECONDS, None
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            write_json(self.read(), folder / f"{os.getpid()}.json")


class _Files:
    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        sums: Counter[str] = Counter()
        files = list(Path(os.environ[FOLDER]).glob("*.json"))
        for file in files:
            sums.update(read_json(file))
        for name, (says, label, values) in _FAMILIES.items() if files else ():
            family = CounterMetricFamily(f"rdk_cuda:{name}", says, labels=[label])
            for value in values:
                family.add_metric([value], sums[f"{name}.{value}"])
            yield family


def serve_metrics() -> None:
    """Name the folder, if no process of this server has, and show what is in it in this one."""
    from prometheus_client import REGISTRY

    # vLLM makes its processes by multiprocessing. Another program may have started this one.
    if FOLDER not in os.environ or multiprocessing.parent_process() is None:
        folder = Path(tempfile.gettempdir()) / f"rdk_cuda-{uuid.uuid4().hex}"
        os.environ[FOLDER] = str(folder)
        owner = os.getpid()

        def remove() -> None:
            if os.getpid() == owner:
                shutil.rmtree(folder, ignore_errors=True)

        atexit.register(remove)
    REGISTRY.register(_Files())
