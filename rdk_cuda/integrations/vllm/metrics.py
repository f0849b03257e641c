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
from ..draft_arena import DraftArena, Layout

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
# On the device a draft counts as its kind, and 4 more where it was accepted.
_KINDS = _FAMILIES["accepted_tokens"][2]
_VIRTUAL, _NONE = _KINDS.index("virtual"), _KINDS.index("none")
_ACCEPTED = len(_KINDS)
_PUT_BACK, _NO_DRAFT = 2 * _ACCEPTED, 2 * _ACCEPTED + 2  # less one, where -1 is what was offered


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
        pruned = is_pruned(vocabulary) * _VIRTUAL
        # Of each token, and last of -1. A dynamic one counts one less.
        self._kinds = torch.nn.functional.pad(pruned, (0, 1), value=_NO_DRAFT).to(device)
        self._one = torch.ones((), dtype=torch.int64, device=device)
        self._sums = torch.zeros(_NO_DRAFT + 1, dtype=torch.int64, device=device)
        # Read here to be published: a step's tokens are not known before its copy has ended.
        self._copy = torch.zeros(
            len(self._sums), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda"
        )
        self._steps: Counter[str] = Counter()
        self._changed, self._next = True, 0.0  # zeros are shown from the first step on
        self._writer: threading.Timer | None = None

    def count(
        self,
        arena: DraftArena,
        drafts: Tensor,
        layout: Layout,
        num_accepted: Tensor,
        method: Method,
        sharded: bool = False,
    ) -> None:
        """Add a step. Waits for nothing.

        Args:
            arena: what the drafts were drawn from.
            drafts: `[N]`, packed; -1 is none. layout: theirs. num_accepted: `[B]`.
            method: by which they were verified. sharded: whether logits stayed on their ranks.
        """
        if not self.active or not len(drafts):
            return
        kinds, rows = self._kinds[drafts], layout.rows
        if (named := arena.named) is not None:
            own = rows.clamp(0, named.shape[1] - 1) if layout.unknown else rows
            kinds = kinds.add((named.index_select(1, own) == drafts).any(0), alpha=-1)
        if layout.unknown:
            kinds = kinds.where((rows >= 0) | (kinds >= _PUT_BACK), _NONE)
        kinds = kinds.add(num_accepted[layout.request] > layout.place, alpha=_ACCEPTED)
        self._sums.index_put_((kinds,), self._one, accumulate=True)
        self._steps[f"verified_steps.{method}"] += 1
        self._steps["sharded_steps.token"] += sharded
        self._copy.copy_(self._sums, non_blocking=True)
        self._changed = True

    def put_back(self, drafts: Tensor | int) -> None:
        """Add drafts that a grammar had cut. The step that counts them next has them, too.

        So they are taken from what it drafted: to vLLM they are none, as it has cut them.
        """
        if self.active:
            self._sums[_PUT_BACK] += drafts

    def read(self) -> dict[str, int]:
        """Return the sums, by `NAME.VALUE`, up to the last step whose tokens are known."""
        sums = self._copy.tolist()
        accepted, put_back = sums[_ACCEPTED:_PUT_BACK], sums[_PUT_BACK]
        none = sums[_NONE] + accepted[_NONE]
        found = [sum(sums[:_PUT_BACK]) - none - put_back, none, *accepted]
        found += [self._steps[f"{name}.{value}"] for name, value in _COUNTED[len(found) : -1]]
        names = (f"{name}.{value}" for name, value in _COUNTED)
        return dict(zip(names, [*found, put_back], strict=True))

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
