"""Whether all ranks of tensor parallelism have the same values: a check for debugging."""

from __future__ import annotations

from torch import Tensor

from .sharded_head import Collective


class RanksDifferError(RuntimeError):
    """Ranks that are to draft the same have other values than rank 0."""


def compare_ranks(what: str, own: Tensor, all_gather: Collective) -> None:
    """Compare each row with that of rank 0. Waits for the device.

    Args:
        what: the values, for the message.
        own: `[B, ...]`, this rank's. NaN equals NaN.
        all_gather: joins the ranks' along the first dimension. So all of them raise, or none.

    Raises:
        RanksDifferError: saying which rank differs, in how many rows, and by how much.
    """
    rows = len(own)
    if not rows:
        return
    # vLLM gathers no integers on a CPU. Ids of tokens are below 2^24, so exact.
    own = own if own.is_floating_point() else own.float()
    parts = all_gather(own.contiguous()).view(-1, rows, own[0].numel())
    first = parts[:1]
    differs = ((parts != first) & ~(parts.isnan() & first.isnan())).any(2)
    if not differs.any():
        return
    rank, row = differs.nonzero()[0].tolist()
    distance = float((parts[rank, row].double() - parts[0, row].double()).abs().max())
    raise RanksDifferError(
        f"rdk_cuda.integrations.vllm: the {what} of rank {rank} differ from those of rank 0 in "
        f"{int(differs[rank].sum())} of {rows} rows, in row {row} by {distance:.3g}; every rank "
        "drafts by itself, so all need the same. Compare the ranks' weights, and try "
        "--disable-custom-all-reduce"
    )
