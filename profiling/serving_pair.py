"""What a measured acceptance would be worth on a pair of the size that is served.

Nothing here is measured but the accepted length. Decoding one sequence, every weight is read once
for a pass, and reading is what takes the time; so times are bytes, and the bandwidth cancels out.
The target is Llama 3.1 8B in bfloat16, the drafter one of its layers with its LM head, as EAGLE
drafters are (arXiv:2401.15077); a pass over a few tokens takes as long as over one.
"""

from __future__ import annotations

from rdk_cuda.calibration.methods import FULL, LOW_RANK
from rdk_cuda.calibration.worth import HeadCost, Times
from rdk_cuda.commands.evaluation_files import Row

__all__ = ["ASSUMPTIONS", "serving_cost", "serving_speed_up", "serving_times"]

VOCABULARY, WIDTH = 128_256, 4096
BYTES = 2  # bfloat16
TARGET_WEIGHTS = 8_030_261_248
LAYER_WEIGHTS = 218_112_000  # attention 41.9 M, feed-forward 176.2 M, two norms
RANK = WIDTH // 8  # of a low-rank head, as `Pruning.rank`

ASSUMPTIONS = (
    f"The last column is computed, not measured, for a pair of the size that is served: "
    f"V = {VOCABULARY:,}, d = {WIDTH:,}, bfloat16, one sequence, times proportional to the bytes "
    f"of weights read. The target's pass reads {BYTES * TARGET_WEIGHTS / 1e9:.2f} GB (Llama 3.1 "
    f"8B), the drafter's body {BYTES * LAYER_WEIGHTS / 1e9:.3f} GB (one layer of it), its head "
    f"rows × {WIDTH:,} × {BYTES} bytes, with the same share kept, the same number of virtual rows "
    "and of dynamic columns; speed-up = (1 + accepted length) × target / (target + K × (body + "
    "head)). The accepted length is the one measured here, so the column says what the head's "
    "size is worth, not what that pair would accept."
)


def serving_times(draft_length: int) -> Times:
    """In bytes, which are proportional to seconds."""
    target = float(BYTES * TARGET_WEIGHTS)
    body = float(BYTES * LAYER_WEIGHTS)
    return Times(draft_length, target, target, drafter_body=body, head_weight=BYTES)


def serving_cost(row: Row) -> HeadCost:
    """Of the head that a row's would be there."""
    kept = VOCABULARY if row["method"] == FULL else round(row["keep"] * VOCABULARY)
    low_rank = row["method"] == LOW_RANK
    return HeadCost(
        rows=kept + row["virtual_rows"],
        hidden_size=WIDTH,
        bytes_each=BYTES,
        dynamic_columns=row["dynamic_columns"],
        factored_rows=VOCABULARY - kept if low_rank else 0,
        rank=RANK if low_rank else 0,
    )


def serving_speed_up(row: Row) -> float:
    """Over the target alone.

    Example:
        >>> head = {"keep": 0.25, "virtual_rows": 64, "dynamic_columns": 60.0, "draft_length": 4}
        >>> row = {**head, "method": "virtual+dynamic", "accepted_length": 2.0}
        >>> f"{serving_speed_up(row):.2f}"
        '2.55'
    """
    times = serving_times(row["draft_length"])
    return times.speed_up(row["accepted_length"], serving_cost(row))
