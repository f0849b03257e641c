"""Drafters measured on held-out text: acceptance at each position, and a row for each drafter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ...decoding.models import Read
from ...drafter import FullHead, PrunedDrafter
from ...functional import overlap, redistribute
from ..errors import InputError
from ..inputs.documents import Window
from ..recording import Each, silently
from ..stages.pruning import FULL, PRUNED, Method
from ..timing import HeadCost, Times, expected_accepted_length, predicted_speed_up
from .rows import Bootstrap, Row, evaluation_row, recovered_share


class EvaluationError(InputError, ValueError):
    """Figures that make no evaluation."""


def evaluate(
    read: Read,
    full_head: FullHead,
    methods: Mapping[float, Sequence[Method]],
    windows: Sequence[Window],
    *,
    draft_length: int,
    drafts_every: int = 1,
    times: Times | None = None,
    head_dtype: torch.dtype | None = None,
    each: Each = silently,
    seed: int = 0,
) -> list[Row]:
    """A row for each method at each temperature (0 is greedy), all at the same positions.

    Args:
        methods: the share of the loss that is recovered needs the full drafter, and the pruned one
            with the same `keep`.
        windows: held-out text, all of one length, at least `draft_length`.
        drafts_every: positions from one draft's begin to the next in what is read.
        times: of the models, with the same K; without them no speed-up is predicted.
        head_dtype: of the heads when their bytes are counted; that of `full_head` if absent.
    """
    drafters = {at: [method.drafter for method in chosen] for at, chosen in methods.items()}
    reading = each(windows, "Measuring acceptance: held-out text")
    rates = measure_acceptance(read, full_head, drafters, reading)
    for temperature, measured_rates in rates.items():
        if not bool(measured_rates.isfinite().all()):
            raise EvaluationError(
                f"acceptance at temperature {temperature:g} is NaN; needs models whose logits on "
                "the held-out text are finite, also when divided by the temperature"
            )
    bootstrap = Bootstrap([window.document for window in windows], seed=seed)
    rows = []
    for temperature, chosen in methods.items():
        measured = dict(zip(((m.name, m.keep) for m in chosen), rates[temperature], strict=True))
        for method, rate in zip(chosen, rates[temperature], strict=True):
            recovered = None
            if method.name not in (FULL, PRUNED) and (FULL, 1.0) in measured:
                pruned = measured[PRUNED, method.keep]
                recovered = recovered_share(bootstrap, rate, pruned, measured[FULL, 1.0])
            columns = method.drafter.mean_dynamic_columns(window.contexts for window in windows)
            dtype = head_dtype or full_head[0].dtype
            cost = HeadCost.of(method.drafter, columns, dtype.itemsize)
            lengths = expected_accepted_length(rate, draft_length)[..., ::drafts_every]
            length = float(lengths.double().mean())
            speed = predicted_speed_up(times, length, cost)
            affinity = method.drafter.affinity
            row = evaluation_row(
                bootstrap.mean(rate),
                recovered,
                temperature=temperature,
                keep=method.keep,
                method=method.name,
                tuned=method.tuned,
                positions=rate.numel(),
                windows=len(windows),
                documents=len(bootstrap.members),
                head_rows=affinity.draft_size,
                virtual_rows=affinity.draft_size - method.drafter.vocabulary.draft_size,
                dynamic_columns=columns,
                draft_length=draft_length,
                accepted_length=length,
                head_bytes=cost.bytes_read(),
                head_flops=cost.flops,
                **speed,
            )
            rows.append(row)
    return rows


@torch.no_grad()
def measure_acceptance(
    read: Read,
    full_head: FullHead,
    drafters: Mapping[float, Sequence[PrunedDrafter]],
    windows: Iterable[Window],
) -> dict[float, Tensor]:
    """Acceptance of drafters at the same positions of a text, at one or more temperatures.

    At temperature 0 a position counts 1 if the greedy draft is the target's greedy choice (DESIGN
    section 2, "Temperature 0"). The windows are all of one length.

    Returns:
        For each temperature `[drafters, windows, n]` float32, n as in `Reading`.
    """
    rates: dict[float, list[Tensor]] = {temperature: [] for temperature in drafters}
    for window in windows:
        ids = torch.tensor([window.ids], dtype=torch.int64, device="cpu")
        logits, hidden = (rows[0].float().cpu() for rows in read(ids))
        contexts = window.contexts[-len(hidden) :]
        for temperature, chosen in drafters.items():
            each = [
                _acceptance(
                    logits, drafter, temperature, **drafter.columns(full_head, hidden, contexts)
                )
                for drafter in chosen
            ]
            rates[temperature].append(torch.stack(each))
    return {temperature: torch.stack(parts, dim=1) for temperature, parts in rates.items()}


def _acceptance(
    target_logits: Tensor, drafter: PrunedDrafter, temperature: float, **columns: Tensor
) -> Tensor:
    """`[n]`; greedy, 1 where both choose the same token."""
    if temperature > 0:
        return overlap(target_logits, affinity=drafter.affinity, temperature=temperature, **columns)
    q = redistribute(affinity=drafter.affinity, temperature=0.0, **columns)
    return q.gather(1, target_logits.argmax(1, keepdim=True))[:, 0]
